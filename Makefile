# Two commands do everything on a machine with python3 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test test-all lint format bench clean

help:
	@echo "make demo   train a small model, version it, go back, prove the bytes are the same"
	@echo "make test   run the whole test suite"
	@echo "make lint   ruff, mypy strict, import-linter"
	@echo "make bench  measure speed, size and memory beside the peers that are installed"

setup: $(READY)

$(READY): requirements-dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

demo: setup
	$(BIN)/python examples/demo.py

# The slow fuzzing runs too, bounded by the hypothesis profile.
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-all: setup
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) demo-run bench-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
