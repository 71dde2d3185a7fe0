# Everything runs inside .venv, which `make setup` builds (and every other target builds first if it is missing or stale).
#   make demo    compile three models, print eager / Inductor / burnish side by side
#   make test    lint, type-check and run every test
#   make quick   the tests that take seconds
#   make test-gpu  the tests that need an NVIDIA GPU; how they went is written to GPU_SUMMARY
#   make coverage  which lines of burnish the tests run, in percent; TESTS= and PYTEST_ARGS= as for test
#   make docs    build the docs site into site/
#   make matrix  the tests that a new torch breaks first, with each TORCH="2.11 2.12 …"; MATRIX_ARGS=--here for this one
#   make fuzz    look for programs that are compiled wrongly, for SECONDS (60); FUZZ_ARGS="--seed 7 --out found"
#   make bench   measure burnish, Inductor and eager; write benchmarks/results/ and docs/benchmarks.md
#   make promises  the table of promises: small workloads, the gate, budget, doctor, bench, background
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first Python on the PATH that is new enough; `make PYTHON=/path/to/python3.12 …` overrides it.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(if $(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("ok")' 2>/dev/null),$(p))))
# Extra pip arguments, e.g. PIP_ARGS="--index-url …" for a mirror or a CPU-only torch.
PIP_ARGS ?=
# Test files or folders, and further pytest arguments.
TESTS ?= tests
PYTEST_ARGS ?=
# pytest workers. Each runs with one thread (see tests/conftest.py), so workers = cores keeps the machine busy, not oversubscribed.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# How long `make fuzz` looks, and its further arguments (`python -m tests.fuzz --help`).
SECONDS ?= 60
FUZZ_ARGS ?=

# Versions of torch for `make matrix` (all that burnish knows), and its further arguments (`python -m tests.matrix --help`).
TORCH ?=
MATRIX_ARGS ?=

# Where `make test-gpu` writes its summary.
GPU_SUMMARY ?= benchmarks/results/test-gpu.json

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done

.PHONY: help setup demo test test-gpu quick matrix fuzz bench promises readme docs lint coverage clean
help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
	  echo "burnish needs Python 3.11 or newer and found none on the PATH; try: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "burnish needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "setup: building $(VENV) with $$($(PYTHON) --version) (torch is a large download the first time)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[hf,test,dev,examples]'
	@touch $(STAMP)
	@$(BIN)/python -c 'import torch, sys; print(f"setup: Python {sys.version.split()[0]}, torch {torch.__version__}")'

demo: setup
	@$(BIN)/python -m burnish demo

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 25 $(TESTS) $(PYTEST_ARGS)

test-gpu: setup
	$(BIN)/python -m tests.gpu $(GPU_SUMMARY) $(PYTEST_ARGS)

quick: setup
	$(BIN)/python -m pytest tests/tiny -m "not slow" $(PYTEST_ARGS)

# Code that Dynamo traces or that runs in child processes is not seen: the figure is a lower bound.
coverage: setup
	$(BIN)/python -m pytest -n $(WORKERS) $(TESTS) --cov=burnish --cov-report=term $(PYTEST_ARGS)

matrix: setup
	$(BIN)/python -m tests.matrix $(TORCH) --pip "$(PIP_ARGS)" $(MATRIX_ARGS)

fuzz: setup
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --workers $(WORKERS) $(FUZZ_ARGS)

bench: setup
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.readme

# A figure beyond its goal is written down like any other: the other benchmarks run all the same.
promises: setup
	-$(BIN)/python -m benchmarks.never_slower
	-$(BIN)/python -m benchmarks.trust
	$(BIN)/python -m benchmarks.background
	$(BIN)/python -m benchmarks.readme

readme: setup
	$(BIN)/python -m benchmarks.readme

docs: setup
	$(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check burnish benchmarks tests examples
	$(BIN)/ruff format --check -q burnish benchmarks tests examples
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find burnish benchmarks tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
