# `make demo` runs the whole chain on this machine; `make test` checks the project. Both install what they need.
SHELL := bash
PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_OFFLINE := 1
export MLFLOW_DISABLE_TELEMETRY := true
DEMO := results/smollm2-demo
INSTALLED := $(VENV)/.installed
CHROMIUM := $(shell command -v chromium)

.PHONY: help install demo demo-miswired demo-draft mlflow test test-engine test-rest check nightly benchmarks lock browser clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED) ## make .venv from requirements.lock (about 7 GB, most of it PyTorch)

$(INSTALLED): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 13); sys.exit(0 if ok else "draftproof needs Python 3.11 or 3.12: make install PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
	python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: install ## the whole chain: real SGLang, CPU, about 10 minutes
	snakemake
	@echo
	@sed -n 3p $(DEMO)/diagnosis.md
	@echo "report:  $(DEMO)/report/report.html"
	@echo "MLflow:  make mlflow, then http://127.0.0.1:5000"

demo-miswired: install ## a draft served with other layers than it was trained on: the verdict, then the corrected run, about 10 minutes
	python workflow/demo/miswired.py --out results/models/demo-miswired
	snakemake --quiet rules --configfile config.yaml workflow/demo/miswired.yaml --config $(call miswired,demo-miswired) -- results/demo-miswired/diagnosis.json
	python workflow/demo/miswired.py --out results/models/demo-corrected --wiring results/demo-miswired/accuracy/wiring.json
	snakemake --quiet rules --configfile config.yaml workflow/demo/miswired.yaml --config $(call miswired,demo-corrected) -- results/demo-corrected/diagnosis.json
	@for each in demo-miswired demo-corrected; do echo; echo "$$each:"; sed -n 3p results/$$each/diagnosis.md; done

miswired = experiment=$(1) 'draft={path: results/models/$(1)}'

demo-draft: install ## train the demo draft again (about two hours)
	snakemake --quiet -- results/models/smollm2-135m-instruct/config.json
	python workflow/demo/generate.py --prompts 4000 --max-minutes 45
	python workflow/demo/train.py --epochs 10 --max-minutes 46

mlflow: install ## browse the results at http://127.0.0.1:5000
	mlflow server --host 127.0.0.1 --port 5000 --workers 1 --backend-store-uri sqlite:///results/mlflow/mlflow.db

check: install ## formatting, types, workflow lint, lock and schemas: fast
	ruff check .
	ruff format --check .
	mypy
	snakefmt --check Snakefile workflow/rules
	snakemake --lint

test: check ## everything CI runs
	$(MAKE) --jobs 2 --output-sync=target --no-print-directory test-engine test-rest

test-engine: # mostly waits for servers to start, so it shares the machine well
	python -m pytest -m "engine and not slow" --durations 15

test-rest:
	python -m pytest -m "not engine and not slow" --durations 15

nightly: check ## the slow tests too: containers, SLURM, wide sweeps
	python -m pytest

benchmarks: install ## the project's own speed, as ratios
	python benchmarks/run.py
	python benchmarks/checkpoint.py

lock: ## requirements.lock from requirements.in
	$(PYTHON) .ci/lock.py

browser: ## Chromium for the browser tests (Debian, as root)
	$(if $(CHROMIUM),,apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver)

clean: ## remove all results
	find results -mindepth 1 -not -name README.md -delete
