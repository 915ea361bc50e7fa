# Every target sets up what it needs. PYTHON=python3.12 make ... chooses the interpreter; beside it VENV=.venv-newest
# CONSTRAINTS= takes the newest versions of all packages, in an environment of their own.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints.txt
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: help setup mnist test test-extras lint results docs test-arviz bench clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: .*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV), once; this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[dev]"
	@touch $@

setup: $(READY) ## the virtual environment, with exact versions

mnist: $(READY) ## train the default Bayesian network on MNIST; results in runs/mnist
	$(BIN)/python -m experiments.run experiment=mnist

test: $(READY)   ## all tests, one process per core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

$(VENV)/.extras: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) \
	  -e ".[docs,mlflow,onnx,sklearn,tables,tensorboard,wandb]"
	@touch $@

# Ray's launcher asks for a client of Amazon's cloud, which a local Ray does without, so it comes alone.
$(VENV)/.ray: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) ray \
	  && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(CONSTRAINTS) \
	  hydra-ray-launcher && touch $@

test-extras: $(VENV)/.extras $(VENV)/.ray ## the tests of what is an extra, with the packages themselves
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/training/test_loggers.py tests/experiments/test_callbacks.py \
	  tests/experiments/test_sweep.py \
	  tests/test_estimators.py tests/evaluation/test_export.py \
	  tests/data/test_frames.py tests/data/test_columns.py tests/data/test_tables.py \
	  tests/project/test_browser.py tests/project/test_site.py

lint: $(READY) ## format, style, types and the arrows between the rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

results: $(READY) ## the documents' tables and figures from docs/records/; nothing is run
	$(BIN)/python -m experiments.results

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e ".[docs]"
	@touch $@

docs: $(VENV)/.docs ## the documentation site in build/docs; a warning is an error
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs
	@echo "open build/docs/index.html"

# The ArviZ reader, writer and table of functions under ArviZ 1.x, which needs Python 3.12; torch is not needed for it.
PYTHON312 ?= python3.12
test-arviz:      ## the ArviZ tests under Python 3.12 and ArviZ 1.x, where there is one
	@if $(PYTHON312) --version >/dev/null 2>&1; then \
	  test -e .venv-arviz1/.ready || { $(PYTHON312) -m venv .venv-arviz1 \
	    && .venv-arviz1/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) \
	         arviz h5netcdf h5py matplotlib pytest filelock && touch .venv-arviz1/.ready; } \
	  && .venv-arviz1/bin/python -m pytest --noconftest tests/evaluation/test_arviz_io.py \
       tests/evaluation/test_arviz_functions.py tests/evaluation/test_arviz_plots.py \
       tests/evaluation/test_leave_one_out.py; \
	else echo "no Python 3.12 here: the tests with ArviZ 1.x are left out"; fi

# The libraries compared with bring more than they need here (tensorboard, scikit-learn), so they come alone.
$(VENV)/.peers: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(CONSTRAINTS) \
	  torchbnn bayesian-torch blitz-bayesian-pytorch && touch $@

bench: $(VENV)/.peers ## how fast: ratios to a plain network, to Pyro as usually written and to three other libraries
	$(BIN)/python -m benchmarks.run --json runs/bench/bench.json

clean:           ## remove the environments and caches (not the runs)
	rm -rf .venv .venv-arviz1 .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
