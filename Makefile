# gpugrid on one machine. Needs Python 3.11 with venv and pip, and make; everything else is fetched once and cached.
# `make` lists the targets.

PYTHON ?= python3.11
ARGS ?=
PYTEST_ARGS ?=
# Two fill the two cores of a small machine, and most tests of whole stacks wait; every worker has a broker of its own.
WORKERS ?= 2
UV_VERSION := 0.13.9

BIN := .venv/bin
STAMP := .venv/.gpugrid-installed
LEVELS := $(wildcard tests/unit tests/properties tests/contract tests/simulation tests/end_to_end tests/infra tests/gpu)
# The suites of the compiled kernels and what stands on them run a second time as plain Python; other properties run no kernel.
JIT_OFF := $(wildcard tests/unit/allocator) $(shell grep -rl --include='test_*.py' allocator tests/properties 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slurm lint format bench soak simulate lock clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## install everything: .venv from the lock file, Kafka into the user's cache folder
	@$(BIN)/python -m deploy.local.broker resolve

$(STAMP): requirements.lock pyproject.toml deploy/local/install.py
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "Python 3.11 is needed and $(PYTHON) was not found: install it, or run make setup PYTHON=/path/to/python3.11." >&2; \
		exit 1; }
	@$(PYTHON) deploy/local/install.py

demo: setup ## replay a real day on a real Kafka (ARGS="--hours 6 --seed 2")
	@$(BIN)/gpugrid demo $(ARGS)

test: setup lint ## prove everything: lint, then the tests by level, then the core suites without the JIT
	@echo "== the planner's kernels, compiled once"
	@$(BIN)/python -c "from services.allocator.shell.warmup import use_kernel_cache, warm_up; use_kernel_cache(); warm_up()"
	@for level in $(LEVELS); do \
		echo "== $$level"; \
		case $$level in tests/infra) share=loadfile;; *) share=worksteal;; esac; \
		$(BIN)/python -m pytest $$level -n $(WORKERS) --dist $$share $(PYTEST_ARGS) || exit 1; \
	done
	@echo "== what stands on the kernels, NUMBA_DISABLE_JIT=1"
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest $(JIT_OFF) -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-slurm: setup ## the Slurm driver against a real Slurm; installs what is missing (Debian, as root)
	@command -v slurmctld >/dev/null 2>&1 || apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge libpmix2
	@$(BIN)/python -m pytest tests/contract/test_slurm_driver.py $(PYTEST_ARGS)

test-infra: setup ## traces and metrics in real back ends; installs Prometheus, builds Jaeger once (twelve minutes)
	@$(BIN)/python -m deploy.backends install --jaeger
	@GPUGRID_INFRA_REQUIRED=1 $(BIN)/python -m pytest tests/infra $(PYTEST_ARGS)

test-gpu: setup ## the node agent on this machine's real GPUs
	@GPUGRID_GPU_REQUIRED=1 $(BIN)/python -m pytest tests/gpu -s $(PYTEST_ARGS)

lint: $(STAMP) ## style, types and import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP) ## rewrite to the house style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## measure planner, latency, throughput and ten days (ARGS="latency" for one)
	@$(BIN)/python -m bench $(ARGS)

soak: setup ## 300,000 job events with kills in the middle, an hour (ARGS="--events 5000" for a few minutes)
	@$(BIN)/python -m bench.soak $(ARGS)

simulate: $(STAMP) ## 10,000 seeds of everything going wrong (ARGS="--seed 123 --trace" for one)
	@$(BIN)/python -m tests.simulation.system $(ARGS)

lock: ## resolve requirements.lock and the Kafka jars anew, after a change in pyproject.toml
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@build/lock/bin/uv pip compile pyproject.toml --group dev --generate-hashes --python-version 3.11 \
		--no-emit-index-url --no-header --quiet --output-file requirements.lock

clean: ## remove .venv, run folders and tool caches of this clone; the user's cache folder stays
	@rm -rf .venv run build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
