# Everything starts here: each target makes .venv and installs what it needs.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
# One more than there are cores: tests of servers and devices mostly wait.
WORKERS = $(shell $(BIN)/python -c 'import os; print(1 + (os.cpu_count() or 1))')

.DEFAULT_GOAL := help
.PHONY: help install demo docs test test-all lint wheel-test bench mutate audit clean
MUTANTS ?= ofms.core.* ofms.policies.*

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

install: $(STAMP)  ## make .venv and install the package with all that development needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## from nothing to a finished run: pre-train twenty small models, run late hedging and OFMS-FT, print one table
	$(BIN)/python examples/demo.py

docs: $(STAMP)  ## the site in build/site, with its notebooks executed; a warning or a dead link fails
	rm -rf build/site
	$(BIN)/sphinx-build -q -W -n --keep-going -d build/doctrees -b html docs build/site
	$(BIN)/python .ci/site_links.py build/site

test: lint  ## lint, types, import layers and tests; under ten minutes
	$(BIN)/pytest -n $(WORKERS) -m 'not slow'

test-all: lint  ## the same with the tests that take long, and twenty times as many inputs of the fuzzers
	OFMS_FUZZ=many $(BIN)/pytest -n $(WORKERS)

lint: $(STAMP)  ## ruff, mypy and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

wheel-test:  ## build the wheel and try it in empty environments, with the pinned and with the lowest versions
	PYTHON=$(PYTHON) .ci/wheel

bench: $(STAMP)  ## what it costs, as ratios; with nothing else running
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/deployment_memory.py
	$(BIN)/python benchmarks/device.py
	$(BIN)/python benchmarks/edge.py

mutate: $(STAMP)  ## mutation tests, an hour or more; resumes; for a part, MUTANTS="ofms.core.rates*"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutate]'
	OMP_NUM_THREADS=1 $(BIN)/python .ci/mutmut_forks.py $(foreach part,$(MUTANTS),'$(part)')
	$(BIN)/python .ci/mutants.py

audit: $(STAMP)  ## licences and known vulnerabilities of what is installed; needs pypi.org
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[audit]'
	$(BIN)/python .ci/audit.py

clean:  ## remove .venv and what tools left behind
	rm -rf $(VENV) mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
