#!/bin/sh
# Submit infra/slurm.sh to a real SLURM of one node, and end the job in four ways: scontrol requeue, death of the node,
# scancel (and sbatch again), the end of its time. The result has the bits of a run that nothing happened to.
#
# Needs root, debootstrap and Debian's packages; 1 GB of disk. SLURM is installed in a folder and runs in namespaces:
# nothing is installed on this machine, and nothing is left. `sh infra/try_slurm.sh`, or `make deployments`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
prefix=$("$root/.venv/bin/python" -c 'import sys; print(sys.base_prefix)')
if [ "${1:-}" != inside ]; then
  folder=$(mktemp -d /tmp/npmdask-slurm-XXXXXX)
  trap 'rm -rf --one-file-system "$folder"' EXIT
  trap 'exit 130' INT TERM
  debootstrap --variant=minbase \
    --include=slurm-wlm,munge,procps,libssl3,libffi8,libsqlite3-0,libbz2-1.0,libreadline8 bookworm "$folder/node" >/dev/null
  unshare --mount --pid --net --uts --ipc --fork --kill-child sh "$here/try_slurm.sh" inside "$folder/node"
  exit
fi

node=$2
mkdir -p "$node/sys" "$node$root" "$node$prefix" "$node/srv/trial"
mount --rbind "$root" "$node$root"
mount --rbind "$prefix" "$node$prefix"
mount --rbind /sys "$node/sys"
mount --rbind /dev "$node/dev"
mount -t proc proc "$node/proc"
hostname node
ip link set lo up
ip link add eth0 type veth peer name eth1 # names of hosts are looked up only where there is more than the loopback
ip address add 10.78.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
printf '127.0.0.1 localhost\n10.78.0.1 node\n' > "$node/etc/hosts"
echo 'CgroupPlugin=cgroup/v1' > "$node/etc/slurm/cgroup.conf"
cat > "$node/etc/slurm/slurm.conf" <<'EOF'
ClusterName=trial
SlurmctldHost=node
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait=10
NodeName=node CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=node Default=YES MaxTime=INFINITE State=UP
EOF
cp "$here/slurm.sh" "$node/srv/trial/"
cat > "$node/srv/trial/kills.sh" <<'EOF'
set -eu
mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd
dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 2>/dev/null
chown munge: /run/munge /etc/munge/munge.key && chmod 400 /etc/munge/munge.key
setpriv --reuid=munge --regid=munge --init-groups munged --force
slurmctld && slurmd 2>/dev/null
until sinfo --noheader --format=%T | grep -q idle; do sleep 1; done
cd /srv/trial
python -c "
import numpy as np, zarr
rows = np.random.default_rng(0).standard_normal((40_000, 300)) / np.sqrt(np.arange(1, 301))
zarr.create_array('x.zarr', data=rows, chunks=(1000, 300))
for store in ('local', 'job'):
    open(f'{store}.toml', 'w').write(
        '[source]\npath = \"x.zarr\"\nkind = \"samples\"\n[algorithm]\nname = \"power\"\ntarget_rank = 5\n'
        f'iteration_rank = 8\nmax_steps = 400\n[stop]\ntol = 1e-7\n[run]\nstore = \"{store}\"\nthreads = 1\n')"
npmdask run local.toml --quiet >/dev/null
state() { scontrol show job "$job" | sed -n 's/ *JobState=\([A-Z_]*\).*/\1/p'; }
until_step() { until [ -n "$(ls job/steps 2>/dev/null)" ] && [ "$(ls job/steps | tail -n 1 | sed 's/^0*//')" -ge "$1" ]; do sleep 0.2; done; }
submit() { sbatch --parsable --mem=1G --cpus-per-task=1 "$@" slurm.sh job.toml; }
again() { until [ "$(state)" = PENDING ]; do sleep 0.5; done; scontrol update "jobid=$job" StartTime=now; echo "$1: queued again"; }
job=$(submit --time=10)
until_step 4; scontrol requeue "$job"; again "scontrol requeue"
until_step 9; pkill -KILL -x slurmd; pkill -KILL slurmstepd; pkill -KILL -f 'npmdask run'
until sinfo --noheader --format=%T | grep -q down; do sleep 1; done; slurmd 2>/dev/null; again "death of the node"
until_step 14; scancel "$job"; sleep 15; echo "scancel: $(state)"; [ "$(state)" = CANCELLED ]
job=$(submit --time=1 --signal=B:USR1@55)
until [ "$(state)" = RUNNING ]; do sleep 0.2; done; again "end of the time"
scontrol update "jobid=$job" TimeLimit=30
until [ "$(state)" = COMPLETED ]; do [ "$(state)" != FAILED ]; sleep 1; done
for part in steps result survey; do diff -r "local/$part" "job/$part"; done
echo "slurm: the same bits as without kills"
EOF
exec chroot "$node" env -i PATH="$root/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin" HOME=/root PYTHONPATH="$root" \
  sh /srv/trial/kills.sh
