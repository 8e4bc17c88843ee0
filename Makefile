# Two commands are all a newcomer needs: `make demo` and `make test`. Neither needs root.
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# python3.11 where there is one; a candidate that cannot build a venv (a broken shim, no ensurepip) is passed over.
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-alone test-network mutants lint format docs bench clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.runtime ## five hospitals train one model, are killed on the way and go on (installs the runtime only)
	@examples/demo.sh $(BIN)/dpfed

test: $(VENV)/.dev ## every test, in random order on two cores, in about twenty minutes
	@$(BIN)/python -m pytest -n $(WORKERS)

test-alone: $(VENV)/.dev ## each test file in a process of its own; a tenth of them with TENTH=0 to TENTH=9
	@TENTH=$(TENTH) WORKERS=$(WORKERS) $(BIN)/python tests/alone.py

test-network: $(VENV)/.dev ## kill and cut off the real processes of a network on loopback, in a few minutes
	@timeout --kill-after=30 1200 $(BIN)/python -m pytest -n 0 -o faulthandler_timeout=500 -m network tests/network

mutants: $(VENV)/.dev ## put faults into our own code, one at a time, and see that the tests find each
	@$(BIN)/python -m pytest -n $(WORKERS) -m mutants tests/mutants

lint: $(VENV)/.dev ## ruff, and mypy --strict on src
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict src

format: $(VENV)/.dev ## rewrite the files the way `make lint` wants them
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.dev ## the documentation as HTML in docs/_build/html; a warning is an error
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/.dev ## compare with peers; writes benchmarks/results
	@$(BIN)/python benchmarks/run.py

clean: ## remove what the other targets made
	rm -rf $(VENV) .bench docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# pip is the last thing venv installs, so a venv that was interrupted is made again.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "dpfed needs Python 3.11 or newer with venv (python3.11 or python3 on the PATH); or: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing dpfed into $(VENV)"
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "installing dpfed and its development tools into $(VENV)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.runtime
