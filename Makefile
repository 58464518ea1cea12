# SPDX-License-Identifier: Apache-2.0
# Every command of the project. Each one installs what it needs, and costs little when nothing changed.
#   KVFERRY_PIP_ARGS   extra arguments for pip (an index with PyTorch's CPU wheels)
#   KVFERRY_PYTHON     the Python to make .venv from (default: python3)
#   STAGES             for make test: only these (host-debug lint python python-033 e2e host-asan host-tsan clang)

SHELL := /bin/bash
.DEFAULT_GOAL := help
# The targets share .venv and build/.
.NOTPARALLEL:

export KVFERRY_STARTED := $(shell date +%s)
# A wish of ours, not of the Python that runs make.
unexport PYTHONPATH
PY := .venv/bin/python

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install system packages, .venv with vLLM's CPU build, and kvferry itself
	@tools/setup_system.sh test
	@tools/setup_venv.sh
	@tools/build_wheel.sh
	@echo "ready: activate with '. .venv/bin/activate'"

.PHONY: ready
ready: # what runs the engine: no test tools
	@tools/setup_system.sh build
	@tools/setup_venv.sh
	@tools/build_wheel.sh

.PHONY: build
build: ready ## Build the wheel and install it into .venv

.PHONY: test
test: ## Run every test; ends with "N passed, N failed"
	@tools/run_tests.sh $(STAGES)

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

.PHONY: bench-meta
bench-meta: ready ## Measure the scheduler side against vLLM's stock connectors
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) bench/meta.py

.PHONY: soak
soak: ## Repeat the C++ tests under TSan and ASan for SOAK_MINUTES (30)
	@tools/setup_system.sh test
	@tools/soak.sh

.PHONY: clean
clean: ## Remove build/ and dist/ (not .venv)
	rm -rf build dist .venv/.kvferry/wheel
