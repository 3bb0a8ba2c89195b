# Every target sets up what it needs: a fresh clone, Python >= 3.11 and make are enough.

PYTHON  ?= python3
OUT     ?= runs/demo
RANKDET_BROWSER ?= chromium
# More than eight workers cost more memory (each imports torch) than they save time.
WORKERS ?= auto
PYTEST_ARGUMENTS ?=
UPGRADE ?=

VENV := .venv
BIN := $(VENV)/bin
# Made when the virtual environment holds pip and uv; and when it holds everything of the lock.
CREATED := $(VENV)/.created
SYNCED := $(VENV)/.synced

# uv must use the interpreter that is here, and must not fetch another one.
export UV_PYTHON_DOWNLOADS := never
UV := $(BIN)/uv
COMPILE := pip compile pyproject.toml --group dev --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help environment test lint types unit-test slow-test gpu-test format demo demo-record \
	theory bench docs lock clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "Variables: PYTHON=$(PYTHON) OUT=$(OUT) WORKERS=$(WORKERS) PYTEST_ARGUMENTS= UPGRADE="

environment: $(SYNCED) ## make .venv from requirements.lock and install rankdet in it

# uv itself comes from the lock too, hashes checked by pip: nothing unlocked is downloaded.
$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: rankdet needs Python 3.11 or newer; '$(PYTHON)' is" \
			"$$($(PYTHON) --version 2>&1 || true)." >&2; \
		echo "Name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; \
		exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements.lock > $(VENV)/uv-requirement.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--require-hashes -r $(VENV)/uv-requirement.txt
	@touch $@

# --no-build-isolation: the build backend is the locked hatchling.
$(SYNCED): $(CREATED) requirements.lock pyproject.toml
	$(UV) pip sync --python $(BIN)/python --require-hashes requirements.lock
	$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

test: lint types unit-test ## everything that must pass before a commit

lint: $(SYNCED) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SYNCED) ## mypy, strict
	$(BIN)/mypy

# Workers and torch's threads would fight for the same cores: one thread for each worker.
unit-test: $(SYNCED) ## the quick tests and the doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 $(PYTEST_ARGUMENTS)

slow-test: $(SYNCED) ## the tests marked slow, one at a time: they need time or memory
	$(BIN)/python -m pytest -m "slow and not gpu" $(PYTEST_ARGUMENTS)

gpu-test: $(SYNCED) ## the tests marked gpu; needs a CUDA device
	$(BIN)/python -m pytest -m gpu $(PYTEST_ARGUMENTS)

format: $(SYNCED) ## let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(SYNCED) ## train, evaluate and predict on drawn images, with a report: some minutes
	$(BIN)/rankdet demo --out $(OUT)

# The record, and the pictures that README.md shows: a sheet that the demo made, and its report.
demo-record: $(SYNCED) ## remake results/demo-cpu.json and docs/pictures: minutes, and a browser
	$(BIN)/rankdet demo --out $(OUT) --compare focal,ohem,auc --device cpu \
		--json results/demo-cpu.json
	cp $(OUT)/detections.jpg docs/pictures/detections.jpg
	$(RANKDET_BROWSER) --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1000,860 \
		--screenshot=docs/pictures/report.png $(abspath $(OUT))/index.html

theory: $(SYNCED) ## the paper's theory in numbers and plots
	$(BIN)/rankdet reproduce theory --out runs/theory

bench: $(SYNCED) ## time and memory of the losses
	$(BIN)/rankdet bench losses

# As a module, so that it finds docs_extensions; from nothing, since pages depend on docstrings too.
docs: $(SYNCED) ## the documentation as a static site, in site/
	$(BIN)/python -m zensical build --strict --clean

lock: $(CREATED) ## remake requirements.lock after a change of pyproject.toml (UPGRADE=--upgrade)
	$(UV) $(COMPILE) $(UPGRADE) -o requirements.lock

clean: ## remove caches and build products; runs/ stays
	rm -rf build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## clean, and remove .venv
	rm -rf $(VENV)
