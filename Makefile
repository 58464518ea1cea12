# SPDX-License-Identifier: Apache-2.0
# Every command of the project. Each one installs what it needs, and costs little when nothing changed.
#   KVFERRY_PIP_ARGS   extra arguments for pip (an index with PyTorch's CPU wheels)
#   KVFERRY_PYTHON     the Python to make .venv from (default: python3)
#   BENCH_ARGS         for make bench-capacity, bench-engine, bench-lmcache: arguments of bench/lab/capacity.py,
#                      bench/lab/engine.py, bench/lab/lmcache_l2.py
#   GPU_CHECK_ARGS     for make gpu-check: arguments of tools/gpu_check.py
#   STAGES             for make test: only these (host-asan fuzz host-tsan release lint docs protocol python python-older lmcache e2e)

SHELL := /bin/bash
.DEFAULT_GOAL := help
# The targets share .venv and build/.
.NOTPARALLEL:

export KVFERRY_STARTED := $(shell date +%s)
# A wish of ours, not of the Python that runs make.
unexport PYTHONPATH
# Set-up leaves it to Python to compile the modules that are imported, once.
unexport PYTHONDONTWRITEBYTECODE
PY := .venv/bin/python

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install system packages, .venv with vLLM's CPU build, and kvferry itself
	@tools/setup_system.sh test
	@tools/setup_nvcc.sh
	@tools/setup_venv.sh
	@tools/build_wheel.sh
	@echo "ready: activate with '. .venv/bin/activate'"

.PHONY: ready build
build: ## Build the wheel and install it into .venv
# What runs the engine: no test tools, no kvferry-bench.
ready: scope := engine
ready build:
	@tools/setup_system.sh build
	@tools/setup_venv.sh
	@tools/build_wheel.sh $(scope)

.PHONY: check
check: ## The inner loop: build what changed, quick tests and lint, in minutes
	@tools/run_tests.sh check

.PHONY: test
test: ## Run every test; ends with "N passed, N failed"
	@tools/run_tests.sh $(STAGES)

.PHONY: wheels
wheels: ## Build wheels for other machines, one for each Python from 3.11 to 3.13 found here, into dist/wheels
	@tools/setup_system.sh wheels
	@tools/build_wheels.sh

.PHONY: test-wheels
test-wheels: ## Try the wheels of dist/wheels in bare Debian roots; needs root
	@tools/setup_system.sh wheels
	@tools/test_wheels.sh

.PHONY: test-kvcached
test-kvcached: ready ## Run the tests beside kvcached's elastic pool, with vLLM 0.30
	@tools/setup_nvcc.sh
	@tools/setup_vllm_site.sh 0.30
	@tools/setup_kvcached.sh
	@PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONPATH="$(CURDIR)/build/kvcached/site:$(CURDIR)/build/vllm030/site" \
	  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 .venv/bin/pytest tests/kvcached

.PHONY: test-dynamo
test-dynamo: ready ## Run the tests under NVIDIA Dynamo, with vLLM 0.31
	@tools/setup_vllm_site.sh 0.31
	@tools/setup_dynamo.sh
	@PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONPATH="$(CURDIR)/build/dynamo/site:$(CURDIR)/build/vllm031/site" \
	  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 .venv/bin/pytest tests/dynamo tests/python/test_aborts.py

.PHONY: test-fleet
test-fleet: ready ## Run the tests of several nodes: prefill and decode apart with NIXL, Mooncake's store, LMCache with Redis
	@tools/setup_fleet.sh
	@tools/setup_lmcache.sh
	@PATH="$(CURDIR)/build/fleet/bin:$(CURDIR)/build/fleet/site/bin:$(CURDIR)/.venv/bin:$$PATH" \
	  PYTHONPATH="$(CURDIR)/build/fleet/site" LD_LIBRARY_PATH="$(CURDIR)/build/fleet/lib" \
	  VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 .venv/bin/pytest tests/fleet

.PHONY: demo
demo: ready ## Watch vLLM store its KV cache, lose it and load it back
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) examples/demo.py

.PHONY: lint
lint: setup ## Check format, types, house rules, and run clang-tidy
	@. tools/step.sh && . tools/compiler_cache.sh && $(PY) tools/lint.py --tidy

.PHONY: format
format: ready ## Reformat C++ and Python
	@$(PY) tools/lint.py --fix

.PHONY: stubs
stubs: ready ## Write python/kvferry/_core.pyi anew from the built extension
	@$(PY) tools/stubs.py

.PHONY: keys
keys: ready ## Write python/kvferry/vllm/keys.md anew from the code that reads the keys
	@$(PY) tools/write_keys.py

.PHONY: docs
docs: ## Build the documentation site into build/site, from the Markdown files, the headers and the Python sources
	@tools/setup_docs.sh headers
	@build/docs/venv/bin/python tools/build_docs.py --headers

.PHONY: bench
bench: ## Run a short form of all of kvferry-bench and kvferry-lab, into bench/results/
	@tools/setup_system.sh bench
	@tools/bench.sh

.PHONY: bench-meta
bench-meta: ready ## Measure the scheduler side against vLLM's stock connectors
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) bench/lab/meta.py

.PHONY: bench-capacity
bench-capacity: ready ## Count the tokens that a tier holds, by model family, beside vLLM's OffloadingConnector
	@tools/setup_vllm_site.sh 0.33
	@PYTHONPATH="$(CURDIR)/build/vllm033/site" VLLM_NO_USAGE_STATS=1 $(PY) bench/lab/capacity.py $(BENCH_ARGS)

.PHONY: bench-engine
bench-engine: ready ## Measure whole engines: alone, with kvferry, with the stock connectors, with a large pool
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) bench/lab/engine.py $(BENCH_ARGS)

.PHONY: bench-shared
bench-shared: ready ## Measure what engines that share a tier win by it, and what they cost each other
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) bench/lab/shared_engines.py $(BENCH_ARGS)

.PHONY: bench-resizing
bench-resizing: ready ## Measure what resizing a tier costs the requests beside it
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) bench/lab/resizing.py $(BENCH_ARGS)

.PHONY: bench-lmcache
bench-lmcache: ready ## Measure kvferry as an L2 of LMCache beside LMCache's own local ones
	@tools/setup_lmcache.sh
	@tools/setup_system.sh bench
	@tools/build_bench.sh
	@$(PY) bench/lab/lmcache_l2.py $(BENCH_ARGS)

.PHONY: gpu-check
gpu-check: ## Run the checks that want a GPU, ten minutes a call; GPU_CHECK_ARGS="--help" says how
	@tools/setup_system.sh build
	@tools/setup_nvcc.sh
	@. tools/compiler_cache.sh && "$${KVFERRY_PYTHON:-python3}" tools/gpu_check.py --prepare $(GPU_CHECK_ARGS)

.PHONY: soak
soak: ## The random model under TSan and all C++ tests under ASan, for SOAK_MINUTES (60)
	@tools/setup_system.sh test
	@tools/soak.sh

.PHONY: soak-shared
soak-shared: ready ## Kill engines that share a tier, NUM_DEATHS (10000) times
	@tools/setup_system.sh test
	@tools/soak_shared.sh

.PHONY: clean
clean: ## Remove build/ and dist/ (not .venv)
	rm -rf build dist .venv/.kvferry/wheel
