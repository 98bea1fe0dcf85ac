# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
# What the nightly run draws at random: give the seed of a run that failed to have it again.
SEED ?= $(shell date +%Y%m%d)
DEMO_READY := $(VENV)/.ready-for-demo
READY := $(VENV)/.ready

.PHONY: help setup demo test test-slow test-nightly lint format docs bench clean

help:
	@echo "make demo   train a small model, version it, roll it back, prove the bytes are the same"
	@echo "make test   run the test suite (make test-slow: the rest of what CI runs; make test-nightly: all, long)"
	@echo "make lint   ruff, mypy strict, import-linter"
	@echo "make docs   build the documentation site into site/"
	@echo "make bench  measure speed, size and memory beside the peers that are installed"

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The demo needs little: no linters, no Lightning, no fuzzer.
$(DEMO_READY): requirements/demo.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(READY): requirements/dev.txt requirements/no-deps.txt $(DEMO_READY)
	$(PIP) -r requirements/dev.txt
	$(PIP) --no-deps -r requirements/no-deps.txt
	@touch $@

setup: $(READY)

demo: $(DEMO_READY)
	$(BIN)/python examples/demo.py

# Images of containers often set it: then all test modules are compiled anew, by each worker.
unexport PYTHONDONTWRITEBYTECODE

PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# On every push.
test: setup
	$(PYTEST) -m "not slow and not nightly" $(ARGS)

# Real trainings over several processes, large files, crashes at every step: CI runs it, too.
test-slow: setup
	$(PYTEST) -m "slow and not nightly" $(ARGS)

# All of it, with the nightly bounds and examples, and what is marked nightly: tests/README.md.
test-nightly: setup
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --hypothesis-seed=$(SEED) $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) site demo-run bench-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
