#!/bin/sh
# Build the images, start Compose and then the pods of the manifests, run a schedule and a cluster run in them, compare
# the bits with those of this machine, take everything away: sh infra/try_containers.sh, or `make deployments`.
#
# Needs Docker 20.10 or later that runs here (DOCKER_HOST), with its plugins compose (2.24) and buildx, curl, and PyPI for
# the packages; 8 GB of disk. Where Docker Hub cannot be reached, root and debootstrap (Debian's): the two base images
# are then made of Debian's packages and the Python of this machine, and the script says so.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$here/../.venv/bin/python
folder=$(mktemp -d /tmp/npmdask-containers-XXXXXX)
chmod 755 "$folder"
export NPMDASK_CONFIG="$folder/config" NPMDASK_DATA="$folder"
compose() { docker compose --project-name npmdask-trial -f "$here/compose.yaml" --env-file "$folder/secrets.env" "$@"; }
end() {
  compose down --volumes >/dev/null 2>&1 || true
  "$python" -m infra.pods "$folder/secrets.env" --remove || true
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM
cd "$here/.."

stand_in() { # of python:...: Debian, and the Python of this machine in /usr/local
  prefix=$("$python" -c 'import sys; print(sys.base_prefix)')
  [ "$prefix" != /usr ] || { echo "a stand-in for $1 needs a Python outside of /usr (pyenv, uv)" >&2; exit 3; }
  echo "no $1 can be had: a stand-in, of debootstrap and $("$python" -V)"
  debootstrap --variant=minbase --include=ca-certificates,libssl3,libffi8,libsqlite3-0,libbz2-1.0,libreadline8 \
    bookworm "$folder/base" >/dev/null
  cp -a "$prefix/." "$folder/base/usr/local/"
  rm -rf "$folder"/base/usr/local/lib/python3*/site-packages/*
  cp /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/"
  chroot "$folder/base" ldconfig
  tar -C "$folder/base" -c . | docker import --change 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    --change 'ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt' - "$1" >/dev/null
  rm -rf "$folder/base"
}
stand_in_of_postgres() { # what the topology uses of the official image: user 999, its sockets, a first start
  echo "no $1 can be had: a stand-in, of Debian's PostgreSQL"
  mkdir "$folder/postgres"
  cat > "$folder/postgres/docker-entrypoint.sh" <<'EOF'
#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  mkdir -p "$PGDATA" && chmod 700 "$PGDATA"
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username=postgres --pwfile=/tmp/password $POSTGRES_INITDB_ARGS
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
  export PGPASSWORD="$POSTGRES_PASSWORD"
  pg_ctl --wait -o "-c listen_addresses= -c unix_socket_directories=/var/run/postgresql" start
  for file in /docker-entrypoint-initdb.d/*.sql; do psql -U postgres -h /var/run/postgresql -f "$file"; done
  pg_ctl --mode=fast --wait stop
fi
exec "$@"
EOF
  chmod 755 "$folder/postgres/docker-entrypoint.sh"
  docker build --quiet --tag "$1" --file - "$folder/postgres" >/dev/null <<EOF
FROM $2
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 postgres && apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql \
 && install -d -o 999 -g 999 /var/lib/postgresql && install -d -o 999 -g 999 -m 3777 /var/run/postgresql
ENV PATH=/usr/lib/postgresql/15/bin:\$PATH
COPY docker-entrypoint.sh /usr/local/bin/
ENTRYPOINT ["docker-entrypoint.sh"]
EOF
}
have() { docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" >/dev/null 2>&1; }
base=$(sed -n 's/^FROM \(python:[^ ]*\) AS base/\1/p' infra/Dockerfile)
database=$(sed -n 's/^ *image: \(postgres:[^ ]*\).*/\1/p' infra/compose.yaml)
have "$base" || stand_in "$base"
have "$database" || stand_in_of_postgres "$database" "$base"

"$python" infra/make_secrets.py "$folder/secrets.env"
mkdir "$folder/config"
cat > "$folder/config/schedules.toml" <<'EOF'
[[schedule]]
name = "nightly"
flow = "npm"
config = "nightly.toml"
store = "/srv/npmdask/runs/nightly"
every = 3600
EOF
cat > "$folder/config/nightly.toml" <<'EOF'
[source]
path = "s3://npmdask/x.zarr"
kind = "samples"
[algorithm]
target_rank = 4
[run]
cluster = "tcp://dask-scheduler:8786"
store = "/srv/npmdask/runs/nightly"
EOF
"$python" -c "
import sys, numpy as np, zarr
rows = np.random.default_rng(0).standard_normal((4000, 100)) * 0.9 ** np.arange(100)
zarr.create_array(sys.argv[1], data=rows, chunks=(500, 100))" "$folder/x.zarr"
"$python" -m npmdask.cli.main run "$folder/x.zarr" -k 4 --kind samples --store "$folder/local" --quiet >/dev/null
upload() { # ADDRESS of the object store: what is there before the schedule runs
  (cd "$folder" && "$python" -c "
import sys, pathlib
from obstore.store import S3Store
env = dict(line.split('=', 1) for line in pathlib.Path('secrets.env').read_text().split())
store = S3Store('npmdask', endpoint=sys.argv[1], access_key_id=env['AWS_ACCESS_KEY_ID'], region='us-east-1',
                secret_access_key=env['AWS_SECRET_ACCESS_KEY'], client_options={'allow_http': True})
for file in pathlib.Path('x.zarr').rglob('*'):
    if file.is_file():
        store.put(file.as_posix(), file.read_bytes())" "$1")
}
compare() { # what came out of a container, with what came out here
  for part in steps result survey; do diff -r "$folder/local/$part" "$folder/$1/$part"; done
  echo "$1: the same bits as on this machine"
}

compose build --quiet prefect-server object-store
compose up --detach --no-build object-store 2>/dev/null
until upload http://127.0.0.1:9000 2>/dev/null; do sleep 1; done
tries=0
until compose up --detach --no-build 2>"$folder/log"; do # on a busy machine the server is healthy too late for the first
  tries=$((tries + 1))
  [ "$tries" -lt 10 ] || { cat "$folder/log" >&2; exit 1; }
  sleep 10
done
echo "compose: up; waiting for the schedule"
until compose exec worker test -d /srv/npmdask/runs/nightly/result 2>/dev/null; do sleep 2; done
compose cp worker:/srv/npmdask/runs/nightly "$folder/nightly" 2>/dev/null
compare nightly
compose down --volumes 2>/dev/null

"$python" -m infra.pods "$folder/secrets.env"
pod=npmdask-pods-object-store-0
upload "http://$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' $pod):9000"
docker exec npmdask-pods-worker-0 npmdask run s3://npmdask/x.zarr -k 4 --kind samples --quiet \
  --set run.cluster=tcp://dask-scheduler:8786 --store /srv/npmdask/runs/pods >/dev/null
docker cp npmdask-pods-worker-0:/srv/npmdask/runs/pods "$folder/pods" >/dev/null
compare pods
