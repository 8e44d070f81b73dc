# The one door: `make` or `make help` lists what there is. Every target sets up what it needs, once,
# in $(VENV); nothing is installed anywhere else.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
# A Debian without its venv module makes an environment without pip; the system's pip serves it.
PIP = $$($(BIN)/python -m pip --version >/dev/null 2>&1 && echo "$(BIN)/python -m pip" \
	|| echo "$(PYTHON) -m pip --python $(BIN)/python")
INSTALL = $(PIP) install -qq --disable-pip-version-check --root-user-action=ignore

.DEFAULT_GOAL := help
.PHONY: help setup check format test faults hard soak cover run bench clean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  (PYTHON=$(PYTHON) VENV=$(VENV); ARGS goes to the command, as in: make test ARGS='-k lease')"

run: $(VENV)/.run ## see it work: adopt, expire and drain a sample database, in under a minute
	@$(BIN)/checkpointd demo $(ARGS)

test: $(VENV)/.dev ## run every test; one that lacks a program is skipped and says so
	@$(BIN)/python -m pytest $(ARGS)

faults: $(VENV)/.dev ## break servers and processes for SECONDS from a SEED [WITHOUT=guard]
	@$(BIN)/python -m tests.faults SECONDS=$(or $(SECONDS),60) \
		$(if $(SEED),SEED=$(SEED)) $(if $(WITHOUT),WITHOUT=$(WITHOUT))

hard: $(VENV)/.dev ## every test that breaks servers or processes: topologies, faults, their controls
	@$(BIN)/python -m pytest -m faults $(ARGS)

soak: $(VENV)/.dev ## MINUTES under mild faults: nothing may grow
	@$(BIN)/python -m tests.faults.soak MINUTES=$(or $(MINUTES),30) $(if $(SEED),SEED=$(SEED))

cover: $(VENV)/.dev ## run every test and show the branches that none took
	@$(BIN)/python -m pytest --cov --cov-report=term-missing:skip-covered $(ARGS)

check: $(VENV)/.dev ## format, lint, types and layers, without changing a file
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## format, and mend what the linter can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.bench ## measure, each figure against a peer in the same run
	@$(BIN)/python -m benchmarks $(ARGS)

setup: $(VENV)/.dev ## make the environment for working on it

clean: ## remove what these targets made
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("checkpointd needs Python 3.11 or newer, and $(PYTHON) is %d.%d: give another, as in: make PYTHON=python3.12 run" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 \
		|| $(PYTHON) -m venv --clear --without-pip $(VENV)

# Each stamp is one set of packages; it is made anew when pyproject.toml changes.
$(VENV)/.run: EXTRAS = embedded,langgraph
$(VENV)/.dev: EXTRAS = dev

$(VENV)/.run $(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing checkpointd[$(EXTRAS)] into $(VENV)"
	@$(INSTALL) --editable '.[$(EXTRAS)]'
	@touch $@

# arq asks for an older redis-py than the daemon, so it gets an environment of its own.
$(VENV)/.bench: | $(VENV)/.dev
	@echo "installing arq into $(VENV)/arq"
	@$(BIN)/python -m venv --clear $(VENV)/arq >/dev/null 2>&1 \
		|| $(BIN)/python -m venv --clear --without-pip $(VENV)/arq
	@$(subst $(BIN)/,$(VENV)/arq/bin/,$(INSTALL)) 'arq==0.28.0'
	@touch $@
