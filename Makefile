# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than there are cores: tests wait for processes and disks, too.
JOBS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")
DEMO_READY := $(VENV)/.ready-for-demo
READY := $(VENV)/.ready

.PHONY: help setup demo test test-slow test-all lint format docs bench clean

help:
	@echo "make demo   train a small model, version it, roll it back, prove the bytes are the same"
	@echo "make test   run the test suite (make test-slow: the rest, as CI does)"
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

test: setup
	$(PYTEST) -m "not slow" $(ARGS)

# Long fuzzing, large files, whole matrices; CI runs it too, bounded by the hypothesis profile.
test-slow: setup
	$(PYTEST) -m slow $(ARGS)

test-all: setup
	HYPOTHESIS_PROFILE=nightly $(PYTEST) $(ARGS)

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
