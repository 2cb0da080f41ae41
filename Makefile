# One virtual environment, .venv, from the pinned versions in constraints.txt.
# Works with GNU make 3.81 (macOS) and later.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
# The build backend goes in first, pinned, so that the build itself runs without isolation.
INSTALL = $(PIP) install -c constraints.txt hatchling editables && \
    $(PIP) install -c constraints.txt --no-build-isolation -e
SHELL := /bin/sh

# PYTHON=... picks the interpreter; otherwise the first of these that is 3.11 or later.
PYTHON ?=
CANDIDATES := $(PYTHON) python3.11 python3 python3.12 python3.13

# ARGS=... is handed to the command of the target, e.g. make test ARGS='-m "not slow"'
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo docs screenshots test sanitize lint format wheel bench bench-peers clean

help:  ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

install: $(STAMP)  ## make .venv and install the package with everything for development

demo: $(DEMO)  ## train even weights and ASPIRE-EASE on real data: a table and a page in demo/
	@$(BIN)/aspire demo --out demo $(ARGS)

# Tests that start servers, sites and clusters have the machine to themselves; the others share it.
PROCESSES := tests/federation tests/flower tests/pages/test_watch.py tests/test_chaos.py \
    tests/test_deploy.py tests/test_every_engine.py tests/test_ray.py tests/test_watch.py

# pytest's exit code 5 means that ARGS left no test in this half.
test: $(STAMP)  ## run the whole test suite
	$(BIN)/python -m pytest -q -n 2 --dist loadfile $(PROCESSES:%=--ignore=%) $(ARGS) || [ $$? = 5 ]
	$(BIN)/python -m pytest -q $(PROCESSES) $(ARGS) || [ $$? = 5 ]

# A copy whose C is compiled with the sanitizers, and the tests of the C on it. Python itself is not, so
# it has to load their libraries first; what it keeps until its end is no leak of ours.
SANITIZED := build/sanitized
OF_C := tests/batched/test_stacks.py tests/batched/test_activations.py tests/core/test_vectors.py \
    tests/runtimes/test_digest.py tests/runtimes/test_native.py

sanitize: $(STAMP)  ## run the tests of the C under the address and undefined-behaviour sanitizers
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	cp -R src tests hatch_build.py pyproject.toml $(SANITIZED)
	rm -f $(SANITIZED)/src/aspire/compiled/*.so
	CFLAGS="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" \
	    $(BIN)/python $(SANITIZED)/hatch_build.py
	cd $(SANITIZED) && PYTHONPATH=src ASAN_OPTIONS=detect_leaks=0 \
	    LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" \
	    $(CURDIR)/$(BIN)/python -m pytest -q -s -p no:cacheprovider $(OF_C) $(ARGS)

lint: $(STAMP)  ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(STAMP)  ## build the documentation site into build/docs; every warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q docs build/docs $(ARGS)

screenshots: $(STAMP)  ## every page in Chromium, wide and narrow, light and dark, into build/screenshots
	$(BIN)/python -m tests.screenshots

format: $(STAMP)  ## let ruff format the code and fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# auditwheel finds the oldest Linux that the wheel serves, and refuses one without compiled code.
wheel: $(STAMP)  ## build the wheel, with its compiled code, and the sdist into dist/
	rm -rf build/wheel dist && mkdir -p dist
	$(BIN)/python -m build --no-isolation --outdir build/wheel
	if [ -x $(BIN)/auditwheel ]; then \
	    PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl; \
	else cp build/wheel/*.whl dist; fi
	cp build/wheel/*.tar.gz dist

bench: $(STAMP)  ## measure speed: ratios to baselines of the same run, in a few minutes
	@$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(STAMP)  ## install other simulators in .venv-peers and measure the same work with them
	@$(BIN)/python benchmarks/peers/run.py $(ARGS)

clean:  ## remove .venv and everything that was generated
	rm -rf $(VENV) .venv-peers demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src reproduction tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/pip:
	@for python in $(CANDIDATES); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        echo "making $(VENV) with $$("$$python" --version)"; \
	        exec "$$python" -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "ASPIRE needs Python 3.11 or later and found none: install it, or name it with make PYTHON=/path/to/python" >&2; \
	exit 1

# The C is compiled by an install: another C needs another install.
C := hatch_build.py $(wildcard src/aspire/compiled/*.c)

$(STAMP): pyproject.toml constraints.txt $(C) | $(BIN)/pip
	@echo "installing the pinned versions into $(VENV) (once; torch takes a while)"
	@$(INSTALL) '.[dev]'
	@touch $(DEMO) $@

# Less than $(STAMP), which brings the rest when another target asks for it.
$(DEMO): pyproject.toml constraints.txt $(C) | $(BIN)/pip
	@echo "installing what the demo needs into $(VENV) (once; torch takes a while)"
	@$(INSTALL) '.[demo]'
	@touch $@
