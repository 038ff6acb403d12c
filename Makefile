# Two commands do everything: `make plan` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Measured data are read in place where they are at hand; tests on them skip with a reason elsewhere.
ifneq ($(wildcard ../shared/data),)
export PLANNER_DATA ?= $(abspath ../shared/data)
endif

# The site of the documentation.
DOCS := .venv-docs

# The programs that launch files are for, and the libraries that networks come from, in rooms of their own.
HEAVY := .venv-heavy
SKY := .venv-sky
NEW := .venv-new

.PHONY: plan test test-heavy equality house lint types bench bench-history cases accuracy gallery docs fuzz clean

plan: $(VENV)/.planner
	$(BIN)/planner plan --dnn vgg16 --machines 4x8xrtx-2080-ti --network "25 Gbit/s"

test: lint types
	$(BIN)/python -m pytest -n auto --dist worksteal --ignore=tests/heavy

# The properties of `make test` with all of their examples, what it leaves out as `long`, and what needs programs, libraries or time.
test-heavy: $(VENV)/.dev $(HEAVY)/.ready $(SKY)/.ready $(NEW)/.ready
	HYPOTHESIS_PROFILE=all $(BIN)/python -m pytest -n auto --dist worksteal -m "hypothesis or long" --ignore=tests/heavy
	PLANNER_SKY=$(abspath $(SKY))/bin/python PLANNER_NEW=$(abspath $(NEW))/bin/python $(HEAVY)/bin/python -m pytest -p no:xdist tests/heavy

# Every recorded answer asked again, three minutes; `make test` asks a sample.
equality: $(VENV)/.dev
	EQUALITY=all $(BIN)/python -m pytest -p no:xdist -q tests/equality

# The measures of the code: size, how far a question and a concept spread, circles, signatures, docs.
house: $(VENV)/.dev
	$(BIN)/python -m research.house

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy --num-workers 2

bench: $(VENV)/.dev
	$(BIN)/python -m pytest benchmarks -p no:xdist --benchmark-columns=min,median,max,rounds

# Every command measured, of this tree or, in turns, of two commits: make bench-history COMMITS="A B" OUT=speed.json
# Some of them: make bench-history ONLY="zoo start-up" REPEAT=2 LARGE= OUT=zoo.json
LARGE = --large --kernels
bench-history: $(VENV)/.dev
	$(BIN)/python -m benchmarks.run $(LARGE) $(addprefix --only ,$(ONLY)) $(addprefix --repeat ,$(REPEAT)) \
		--out $(or $(OUT),speed.json) $(addprefix --commit ,$(COMMITS))

gallery: $(VENV)/.dev
	$(BIN)/python tests/support/gallery.py
	$(BIN)/python tests/support/notebooks.py

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet
	@echo build/site/index.html

fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --inputs 100000 --seed 1 --workers 2

cases: $(VENV)/.planner
	$(BIN)/planner case --all

# Fits and evaluation, from the measurements that PLANNER_DATA names: docs/accuracy*.md and the fitted data. Half an
# hour; each of the programs prints its tables alone, without --write.
accuracy: $(VENV)/.dev $(HEAVY)/.ready
	$(HEAVY)/bin/python -m research.timm_networks
	$(BIN)/python -m research.transformer_fit --write
	$(BIN)/python -m research.nanotron --write
	$(BIN)/python -m research.transformer_fit.mixed --write
	$(BIN)/python -m research.transformer_fit.low_precision --write
	$(BIN)/python -m research.step_fit --write
	$(BIN)/python -m research.fused_fit --write
	$(BIN)/python -m research.kernel_fit --write
	$(BIN)/python -m research.memory_fit --write
	$(BIN)/python -m research.transformer_memory --write
	$(BIN)/python -m research.schedules --write
	$(BIN)/python -m research.runs --write
	$(BIN)/python -m research.links --write
	$(BIN)/python -m research.accuracy --write

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.planner: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@ $(VENV)/.planner

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	touch $@

# torch first, alone: asked for by others it would bring the libraries of another build.
$(HEAVY)/.ready: pyproject.toml tests/heavy/requirements.txt tests/heavy/requirements-no-deps.txt
	$(PYTHON) -m venv $(HEAVY)
	$(HEAVY)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(HEAVY)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test,onnx,hf,serve,distributed,parquet,plot]"
	DS_BUILD_OPS=0 $(HEAVY)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/heavy/requirements.txt
	$(HEAVY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/heavy/requirements-no-deps.txt
	touch $@

$(SKY)/.ready: tests/heavy/requirements-sky.txt
	$(PYTHON) -m venv $(SKY)
	$(SKY)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/heavy/requirements-sky.txt
	touch $@

# Programs that ask for a younger Python than the rest; without one their tests are skipped.
NEW_PYTHON ?= $(firstword $(foreach one,$(PYTHON) python3.13 python3.12,$(shell $(one) -c 'import sys; print(sys.executable * (sys.version_info >= (3, 12)))' 2>/dev/null)))
$(NEW)/.ready: tests/heavy/requirements-new.txt tests/heavy/requirements-new-no-deps.txt
	mkdir -p $(NEW)
	[ -z "$(NEW_PYTHON)" ] || $(NEW_PYTHON) -m venv $(NEW)
	[ -z "$(NEW_PYTHON)" ] || $(NEW)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/heavy/requirements-new.txt
	[ -z "$(NEW_PYTHON)" ] || $(NEW)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/heavy/requirements-new-no-deps.txt
	touch $@

clean:
	rm -rf $(VENV) $(HEAVY) $(SKY) $(NEW) $(DOCS) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
