# `make demo` and `make test` need only make and Python 3.11 or newer. They create a virtual environment in .venv.

PYTHON ?= python3
ARGS ?=
SERVERS ?=
VENV ?= .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --no-input --no-compile
# uv needs seconds where pip needs a minute.  If uv fails, pip may still succeed: it reads its own configuration.
INSTALL = install() { { $(PIP) uv && $(RUN) -m uv pip install --quiet --python $(RUN) "$$@"; } >/dev/null 2>&1 || $(PIP) "$$@"; }; install

# CI tests with these versions (`oldest` with others), so that a release of somebody else does not make it red; others get the newest.
PINS_FILE := $(if $(filter true,$(CI)),.ci/pins.txt)
PINS := $(addprefix --constraint ,$(PINS_FILE))

NATS_VERSION := 2.12.15
NATS := .servers/nats-server-$(NATS_VERSION)

HAZELCAST_VERSION := 5.7.0
HAZELCAST_SHA256 := 241ec66cea8491787f68c3336f069ac463877af50bdb7676cd9d538f1940dc33
HAZELCAST := .servers/hazelcast-$(HAZELCAST_VERSION).jar

DYNAMODB_VERSION := 2.6.1
DYNAMODB := .servers/dynamodb-$(DYNAMODB_VERSION)

# Images of containers often set this: then each of thousands of processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

$(if $(filter-out all,$(SERVERS)),$(error SERVERS must be `all` or empty))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test prove quick oldest mutate pythons bench servers check lint types docs pins clean

PYTEST = $(RUN) -m pytest --quiet --dist=loadgroup
# What a version of Python can change: threads, tasks, signals, forks, locks, SQLite. Two minutes on two cores.
# test_herds.py only counts requests, in virtual time: no version of Python changes that.
QUICK := $(filter-out %/test_herds.py,$(wildcard tests/rules/test_*.py)) \
    $(patsubst %,tests/api/test_%.py,asyncio bad_input connect ends fork_and_signals holds import lock \
    lock_order multilock queue renewal tasks) tests/stores/test_memory.py tests/stores/test_sqlite.py \
    tests/commands/test_verify.py::test_an_interrupt_leaves_nothing_behind
# What a version of a client can change.
CLIENTS := $(patsubst %,tests/stores/test_%.py,dynamodb every_server nats redis redis_cluster redis_wait sql sql_wait urls) \
    tests/commands/test_cli_show.py tests/api/test_connect.py tests/api/test_prometheus_opentelemetry.py

help:  ## show this list
	@echo "make TARGET [ARGS='...'] [PYTHON=python3.12]"; echo
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 12

demo: $(VENV)/.demo  ## show double bookings without the lock, and none with it; no server needed
	@$(RUN) examples/booking.py $(ARGS)

test: servers $(VENV)/.collected  ## run the tests against real servers (ARGS goes to pytest)
	@$(PYTEST) --numprocesses=auto -m "not long" $(ARGS)

prove: servers $(VENV)/.collected  ## run the long tests: simulator, planted bugs, torture, other libraries, benchmarks
	@$(PYTEST) --numprocesses=auto -m long $(ARGS)

quick: servers $(VENV)/.dev  ## run the tests that depend on the version of Python (two minutes)
	@$(PYTEST) --numprocesses=logical -m "not long" $(ARGS) $(QUICK)

oldest: servers  ## run the tests of some stores with the oldest clients that pyproject.toml allows (one minute)
	@$(MAKE) --no-print-directory .venv-oldest/.oldest VENV=.venv-oldest
	@.venv-oldest/bin/python -m pytest --dist=loadgroup --numprocesses=logical -m "not long" $(ARGS) $(CLIENTS)

mutate: $(VENV)/.dev  ## change each line of the rules: a test has to fail (ARGS='--sample 100 --seed 7': some)
	@$(RUN) -m tests.proof.mutation $(ARGS)

pythons: servers  ## run the quick tests on every other installed Python from 3.11 on
	@.ci/pythons "$(PYTHON)"

bench: servers $(VENV)/.bench  ## measure caslock and other lock libraries (about 12 minutes; with ARGS=--quick about one)
	@$(RUN) -m benchmarks $(ARGS)

servers:  ## install the servers for the tests, if that is allowed (with SERVERS=all also PostgreSQL, MariaDB, ZooKeeper, etcd, NATS, Hazelcast, DynamoDB Local and Chromium)
	@if test "$(SERVERS)" = all; then $(MAKE) -s $(NATS) & $(MAKE) -s $(HAZELCAST) $(DYNAMODB) & trap wait EXIT; fi; \
	missing=; for server in redis-server memcached openssl; do \
	    command -v $$server >/dev/null || missing="$$missing $$server"; \
	done; \
	if test "$(SERVERS)" = all; then \
	    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$$missing postgresql"; \
	    PATH="$$PATH:/usr/sbin" command -v mariadbd >/dev/null || missing="$$missing mariadb-server"; \
	    command -v etcd >/dev/null || missing="$$missing etcd-server"; \
	    PATH="$$PATH:/usr/sbin" command -v pgbouncer >/dev/null || missing="$$missing pgbouncer"; \
	    command -v chromedriver >/dev/null || missing="$$missing chromium chromium-driver"; \
	    test -e /usr/share/java/zookeeper.jar && command -v java >/dev/null || missing="$$missing zookeeper"; \
	fi; \
	test -n "$$missing" || exit 0; \
	sudo=; test "$$(id -u)" = 0 || sudo="sudo -n"; \
	if ! command -v apt-get >/dev/null || ! $$sudo true 2>/dev/null; then \
	    echo "Not installed:$$missing (this needs apt-get, and root or sudo without a password)"; exit 0; \
	fi; \
	echo "Installing$$missing ..."; \
	get() { $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 "$$@" </dev/null >/dev/null 2>&1; }; \
	get install -y --no-install-recommends $$missing || \
	    { get update; get install -y --no-install-recommends $$missing; } || \
	    { echo "Not installed:$$missing (apt-get refused; try: apt-get install$$missing)"; exit 0; }; \
	for service in redis-server memcached postgresql mariadb etcd pgbouncer; do \
	    case " $$missing " in *" $$service"*) $$sudo systemctl disable --now $$service >/dev/null 2>&1 || \
	        $$sudo service $$service stop >/dev/null 2>&1;; esac; \
	done; \
	dpkg-query -W -f '$${Package} $${Version}, installed from Debian\n' $$missing

$(NATS):  # Debian's is too old: NATS ends single entries since 2.11
	@command -v go >/dev/null || { echo "Not installed: nats-server (this needs Go 1.21 or newer)"; exit 0; }; \
	echo "Building nats-server $(NATS_VERSION) ..."; \
	if said=$$(GOBIN="$(CURDIR)/.servers" GOFLAGS=-mod=mod go install github.com/nats-io/nats-server/v2@v$(NATS_VERSION) 2>&1); then \
	    mv .servers/nats-server $@; echo "nats-server $(NATS_VERSION), built from its Go module"; \
	else echo "Not installed: nats-server (go could not build it: $$(echo "$$said" | tail -1))"; fi

$(HAZELCAST):
	@command -v mvn >/dev/null || { echo "Not installed: Hazelcast (this needs Maven: apt-get install maven)"; exit 0; }; \
	rm -rf $@.part; mkdir -p $@.part; \
	if said=$$(mvn --quiet --batch-mode --strict-checksums dependency:copy -DoutputDirectory="$(CURDIR)/$@.part" \
	        -Dartifact=com.hazelcast:hazelcast:$(HAZELCAST_VERSION) 2>&1 </dev/null) \
	    && echo "$(HAZELCAST_SHA256)  $@.part/$(notdir $@)" | sha256sum --check --status; then \
	    mv $@.part/$(notdir $@) $@; echo "Hazelcast $(HAZELCAST_VERSION), from Maven Central"; \
	else echo "Not installed: Hazelcast ($$(echo "$$said" | grep -m 1 ERROR || echo its checksum is wrong))"; fi; \
	rm -rf $@.part

$(DYNAMODB): tests/support/dynamodb.xml
	@command -v mvn >/dev/null || { echo "Not installed: DynamoDB Local (this needs Maven: apt-get install maven)"; exit 0; }; \
	rm -rf $@.part; mkdir -p .servers; \
	if said=$$(mvn --quiet --batch-mode --strict-checksums --file $< dependency:copy-dependencies -DexcludeTypes=dll,dylib \
	    -DincludeScope=runtime -DoutputDirectory="$(CURDIR)/$@.part" 2>&1 </dev/null); then \
	    rm -rf $@; mv $@.part $@; touch $@; echo "DynamoDB Local $(DYNAMODB_VERSION), from Maven Central"; \
	else rm -rf $@.part; echo "Not installed: DynamoDB Local (Maven has said: $$(echo "$$said" | grep -m 1 ERROR))"; fi

check: lint types  ## run lint and types

lint: $(VENV)/.dev  ## run ruff: rules and format
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: $(VENV)/.dev  ## run mypy in strict mode, and pyright: every public name has a type
	@$(RUN) -m mypy
	@packages=$$($(RUN) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	found=$$(PYTHONPATH=.:$$packages $(VENV)/bin/basedpyright --verifytypes caslock --ignoreexternal --pythonpath $(RUN)) || \
	    { echo "$$found"; exit 1; }; \
	echo "$$found" | grep score

docs: $(VENV)/.docs  ## build the site in build/site; a broken link or a public name without a docstring is an error
	@found=$$(NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --clean --strict --config-file site/mkdocs.yml 2>&1) || \
	    { echo "$$found"; exit 1; }; \
	echo build/site/index.html

pins: $(VENV)/.dev  ## let CI install the newest versions of what the tests need (.ci/pins.txt)
	@$(PIP) uv && $(RUN) -m uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev --no-annotate --no-header \
	    --output-file .ci/pins.txt pyproject.toml

clean:  ## remove everything that make has created
	rm -rf .servers .venv .venv-* build dist .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find benchmarks caslock examples tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.python:
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "$(PYTHON) is not installed. caslock needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$$("$(PYTHON)" --version) is too old. caslock needs 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) can't make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.python
	@echo "Installing caslock into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(PINS_FILE) $(VENV)/.python
	@echo "Installing caslock and what its tests need into $(VENV) ..."
	@$(INSTALL) --editable '.[dev]' $(PINS)
	@touch $@ $(VENV)/.demo $(VENV)/.docs

# Collects the tests once in one process: otherwise every worker of the first run would rewrite and compile every module.
$(VENV)/.collected: $(VENV)/.dev
	@$(RUN) -m pytest --quiet --collect-only >/dev/null || true  # if something is wrong, the run itself will report it
	@touch $@

$(VENV)/.docs: pyproject.toml $(PINS_FILE) $(VENV)/.python
	@echo "Installing what builds the site into $(VENV) ..."
	@$(INSTALL) --editable '.[docs]' $(PINS)
	@touch $@

.venv-oldest/.oldest: pyproject.toml tests/support/oldest.py $(VENV)/.python
	@echo "Installing caslock and the oldest clients for it into $(VENV) ..."
	@$(RUN) -m tests.support.oldest >$(VENV)/oldest.txt
	@$(INSTALL) --editable '.[dev]' --constraint $(VENV)/oldest.txt
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing the other lock libraries into $(VENV) ..."
	@$(INSTALL) --editable '.[bench]' || { \
	    echo "Not all of them can be installed, so they are installed one by one. The tables name what is missing."; \
	    $(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")' | \
	        while read -r peer; do $(PIP) "$$peer" >/dev/null 2>&1 || echo "Not installed: $$peer"; done; }
	@touch $@
