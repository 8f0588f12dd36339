# Everything runs in .venv, made from the lock file. `make run` and `make test` need nothing but git, make, python3.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: env run test check bench kills format lock clean

env: $(STAMP)

$(STAMP): infra/requirements.lock pyproject.toml infra/make-env
	@sh infra/make-env $(PYTHON)
	@touch $(STAMP)

run: env            ## the main job: 4 GiB of samples through the Prefect flow, inside 1 GiB of memory
	@$(BIN)/python -m flows.main_job

test: env           ## everything but the heavy suites
	@$(BIN)/python -m pytest -m "not heavy"

check: env          ## the fast loop: format, lint, types, fast tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -m "not slow and not heavy" -x -n 2

bench: env          ## a pass against its floor, and the cost of a commit; figures in benchmarks/results
	@$(BIN)/python -m benchmarks.passes
	@$(BIN)/python -m benchmarks.peers

kills: env          ## 50 kills at random instants, bit for bit
	@$(BIN)/python -m pytest tests/faults -m heavy

format: env
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock:               ## resolve again (needs uv); the result carries names, versions and hashes only
	uv pip compile pyproject.toml --extra dev --python-version 3.11 --python-platform linux \
	  --no-strip-extras --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --output-file infra/requirements.lock

clean:              ## what runs and builds leave
	rm -rf .venv runs data/generated .pytest_cache .mypy_cache .ruff_cache .hypothesis
