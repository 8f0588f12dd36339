# Everything runs in .venv, made from the lock file. `make run` and `make test` need nothing but git, make, python3.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed
PEERS := .venv-peers/.installed
RELEASE := .venv-release/.installed
# Tests make and delete a million small files: in memory, where 8 GiB are free, they take half of the time.
SCRATCH := $(shell free=$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}'); \
  [ "$${free:-0}" -gt 8388608 ] && echo /dev/shm || echo "$${TMPDIR:-/tmp}")
module = folder=$$(mktemp -d -p $(SCRATCH) npmdask-tests-XXXXXX) && chmod 711 "$$folder" && trap 'rm -rf "$$folder"' EXIT INT TERM && \
  TMPDIR="$$folder" $(BIN)/python -m $(1)
tests = $(call module,pytest $(1))
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile every module

.PHONY: env docs deployments hosts lanes peer-suites peers run serve private test test-of check house full bench bench-quick papers certificates mutants kills matrix soak audit audit-deps format lock lock-peers lock-release release news clean

env: $(STAMP)

$(STAMP): infra/requirements.lock pyproject.toml infra/make-env
	@sh infra/make-env $(PYTHON)
	@touch $(STAMP)

run: env            ## the main job: 4 GiB of samples through the Prefect flow, inside 1 GiB of memory; topics of real text
	@$(BIN)/python -m flows.main_job

serve: env          ## a Prefect server, its keeper and a worker on this machine, with an example that runs at once; until Ctrl-C
	@$(BIN)/npmdask serve --example runs/example

private: env        ## a scheduled private release of the same data, three times, until the budget refuses the fourth
	@$(BIN)/python -m flows.private_job

test: env           ## everything but the heavy suites; four at a time, for many only wait for their processes
	@$(call tests,-m "not heavy" -n 4 --dist worksteal --durations 10)

test-of: env         ## the tests of one feature, and the contract that holds for all: FEATURE=missing
	@$(call tests,-m "not heavy" -n 3 --dist worksteal tests/$(or $(FEATURE),$(error FEATURE=name: a folder of tests/)) tests/contract)

full: env           ## every heavy test: what `make test` leaves out, the parts of kills, audit and certificates among it
	@$(BIN)/python -m pytest -m heavy

check: env          ## the fast loop: format, lint, types, fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(call tests,-m "not slow and not heavy" -x -n 2 tests)

house: env          ## what a plain run loads and what can be deleted, beside their limits; half a minute; docs/project/house.md
	@$(BIN)/python -m infra.house_gates --table

delete: env          ## each feature is deleted in a copy, with all that needs it: the rest runs, resumes, passes its checks; FEATURE=topics for one
	@FEATURE=$(FEATURE) $(BIN)/python -m pytest tests/test_delete.py tests/test_rest.py $(if $(FEATURE),-k "[$(FEATURE)]")

docs: env           ## the site, in build/site: pages, API, gallery; offline; a warning or a broken link is an error
	@$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet docs build/site

lanes: env          ## tests of the core with the oldest and the newest versions that the metadata allow; needs the network
	@$(BIN)/python -m infra.lanes $(if $(PYTHON_NEWEST),--python $(PYTHON_NEWEST))

peer-suites: env    ## the peers' own tests of PCA, SVD and EOFs, npmdask behind their imports; needs the network; DASK_ML=FOLDER
	@$(BIN)/python -m infra.peer_suites $(ONLY) $(if $(DASK_ML),--dask-ml $(DASK_ML))

peers: $(PEERS)     ## the packages that `make bench` compares with, in an environment of their own

$(PEERS) $(RELEASE): .venv-%/.installed: infra/%.lock infra/make-tools
	@sh infra/make-tools $* $(PYTHON)
	@touch $@

release: $(RELEASE) ## wheel, source distribution, SBOM and hashes in build/release, tried in clean environments; TAG=1; PYTHONS="3.11 3.12"
	@.venv-release/bin/python -m infra.release $(if $(TAG),--tag) $(if $(PYTHONS),--pythons $(PYTHONS))

news: $(RELEASE)    ## CHANGELOG.md gets the section of the version in pyproject.toml out of infra/news
	@.venv-release/bin/python -m infra.release --news

bench: env peers    ## every number to reach: ONLY=row-name for one, SCALE=small for tiny data; docs/papers/benchmarks.md
	@$(BIN)/python -m benchmarks $(ONLY) --scale $(or $(SCALE),full)

bench-quick: env peers ## ten ratios of CPU seconds to other programs, in minutes; ONLY="ROW ..." for some; KEEP=1 NOTE=... adds a line to their history
	@$(BIN)/python -m benchmarks.quick $(ONLY) $(if $(KEEP),--keep) --note "$(NOTE)"

papers: env         ## the papers' experiments, fifty minutes; docs/papers/streams.md, docs/papers/tensors.md, docs/papers/theory-experiments.md
	@$(BIN)/python -m benchmarks.paper_msg all
	@$(BIN)/python -m benchmarks.paper_stream all
	@$(BIN)/python -m benchmarks.paper_tensor --figure all
	@$(BIN)/python -m benchmarks.paper_theory all

certificates: env   ## 3,000 random certificates, then 12 minutes of random families; nightly: SEED is the day's, or yours
	@$(BIN)/python -m pytest tests/theory/certificates
	@$(call module,tests.theory.families)

mutants: env        ## mistakes in what runs are trusted for, and the tests that must fail with them, the private ones last; ONLY=kind
	@$(call module,infra.mutants $(ONLY))

kills: env          ## 200 kills at random instants of runs, releases and streams, and one at every change of a store, bit for bit
	@$(BIN)/python -m pytest tests/faults tests/*/test_*kills.py tests/privacy/runs tests/prefect -m heavy

matrix: env         ## kill each of seven parts of a local cluster in each of five phases of a private release: half an hour
	@$(BIN)/python -m infra.kill_matrix

hosts: env          ## eight workers, a client and an S3 server in network namespaces, and cables that are pulled; needs root
	@$(BIN)/python -m pytest tests/hosts -m heavy

deployments: env    ## the images, Compose, the pods and SLURM for real; root, Docker, debootstrap, Debian's packages, 8 GB
	@sh infra/try_containers.sh
	@sh infra/try_slurm.sh

soak: env           ## a schedule every 20 s for half an hour, a random kill every minute: nothing lost, doubled or stuck
	@$(BIN)/python -m infra.soak --minutes $(or $(MINUTES),30)

audit: env          ## attack the private release with many runs, and everything that must be rejected
	@$(BIN)/python -m pytest tests/audit -n 2 --dist worksteal
	@$(BIN)/npmdask audit --runs $(or $(RUNS),20000)

audit-deps: env     ## what is installed is the lock, with hashes; known vulnerabilities where pip-audit is installed and can ask
	@$(BIN)/python -m infra.audit_dependencies

format: env
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# COOLDOWN: nothing younger gets into a lock; a package that was hijacked is mostly found and withdrawn within a week.
COOLDOWN ?= 7 days
resolve = uv pip compile --exclude-newer "$(COOLDOWN)" --no-strip-extras --generate-hashes --no-emit-index-url --no-annotate \
  --no-header --python-version 3.11

lock:               ## resolve again (needs uv); the result carries names, versions and hashes only
	$(resolve) pyproject.toml --group dev --group docs --extra all --universal --output-file infra/requirements.lock
	$(BIN)/python infra/make_locks.py

lock-peers:
	$(resolve) infra/peers.in --python-platform linux --output-file infra/peers.lock

lock-release:
	$(resolve) infra/release.in --constraints infra/requirements.lock --python-platform linux --output-file infra/release.lock

clean:              ## what runs and builds leave
	rm -rf .venv .venv-peers .venv-release build docs/gallery runs data/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
