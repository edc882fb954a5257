# `make report` on a fresh machine with Python 3.11 or later is all it takes; inside .venv plain `snakemake` is the product.
PYTHON ?= python3
BIN := .venv/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: faults help report plan partial check test test-vllm lint format lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

report: $(BIN)/.installed ## measure what is missing and write results/report.html
	snakemake --cores 1 results/report.html

plan: $(BIN)/.installed ## show which jobs would run and how long they would take; measures nothing
	python scripts/plan.py

partial: $(BIN)/.installed ## write results/report.partial.html from the cells that are there
	snakemake --cores 1 partial

check: $(BIN)/.installed ## hold all that lies under results/ against itself; fails if anything is off
	snakemake --cores 1 check

test: $(BIN)/.installed-dev ## run every check and every test
	$(MAKE) lint
	pytest -q

test-vllm: $(BIN)/.installed-dev ## measure a real vLLM: make test-vllm VLLM=path/to/vllm MODEL=directory
	VLLM=$(abspath $(VLLM)) MODEL=$(abspath $(MODEL)) pytest -q tests/workflow/test_real_vllm.py

faults: $(BIN)/.installed-dev ## write the README's table of faults anew, from the tests that do them
	python -m tests.faults

lint: $(BIN)/.installed-dev ## ruff, snakefmt, snakemake --lint, mypy
	ruff check .
	ruff format --check .
	snakefmt --check Snakefile rules
	snakemake --lint
	mypy

format: $(BIN)/.installed-dev ## format all code
	ruff check --fix .
	ruff format .
	snakefmt Snakefile rules

lock: $(BIN)/.installed-dev ## pin the newest versions in requirements*.txt and envs/*.yaml
	uv pip compile -q --upgrade --universal --python-version 3.11 --no-header requirements.in -o requirements.txt
	uv pip compile -q --upgrade --universal --python-version 3.11 --no-header requirements-dev.in -o requirements-dev.txt
	python envs/pin.py

clean: ## remove results, logs and Snakemake's records (the environment stays)
	rm -rf results logs .snakemake .speedmatrix

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 report")'
	$(PYTHON) -m venv .venv

$(BIN)/.installed: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.txt
	@touch $@

$(BIN)/.installed-dev: requirements-dev.txt $(BIN)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@
