# Two commands do everything: `make plan` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Measured data are read in place where they are at hand; tests on them skip with a reason elsewhere.
ifneq ($(wildcard ../shared/data),)
export PLANNER_DATA ?= $(abspath ../shared/data)
endif

.PHONY: plan test lint types bench cases clean

plan: $(VENV)/.planner
	$(BIN)/planner plan --dnn vgg16 --machines 4x8xrtx-2080-ti --network "25 Gbit/s"

test: lint types
	$(BIN)/python -m pytest -n auto

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m pytest benchmarks -p no:xdist --benchmark-columns=min,median,max,rounds

cases: $(VENV)/.planner
	$(BIN)/planner case --all

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.planner: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@ $(VENV)/.planner

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
