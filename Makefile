# `make demo` and `make test` need nothing but make and Python 3.11 or newer: they make themselves a .venv.

PYTHON ?= python3
ARGS ?=
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --no-input

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test bench servers check lint types clean

help:  ## tell what there is
	@echo "make TARGET [ARGS='...'] [PYTHON=python3.12]"; echo
	@sed -n 's/^\([a-z]*\):.*## /  \1\t/p' Makefile | expand -t 12

demo: $(VENV)/.demo  ## see it work: no server needed
	@$(RUN) examples/booking.py $(ARGS)

test: servers $(VENV)/.dev  ## run the tests, against real servers; ARGS goes to pytest
	@$(RUN) -m pytest $(ARGS)

bench: servers $(VENV)/.bench  ## measure it beside other libraries (15 minutes; ARGS=--quick: one)
	@$(RUN) -m benchmarks $(ARGS)

servers:  ## install the servers that the tests use, where that is allowed
	@missing=; for server in redis-server memcached openssl; do \
	    command -v $$server >/dev/null || missing="$$missing $$server"; \
	done; \
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
	$$sudo systemctl disable --now $$missing >/dev/null 2>&1 || true  # the tests start their own

check: lint types  ## lint and types

lint: $(VENV)/.dev  ## ruff: rules and format
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .

types: $(VENV)/.dev  ## mypy, strict
	@$(RUN) -m mypy

clean:  ## remove all that was made here
	rm -rf $(VENV) build dist .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find benchmarks caslock examples tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.python:
	@command -v "$(PYTHON)" >/dev/null || \
	    { echo "There is no $(PYTHON) here. caslock needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
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

$(VENV)/.dev: pyproject.toml $(VENV)/.python
	@echo "Installing caslock and what its tests need into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing what caslock is measured beside into $(VENV) ..."
	@$(PIP) --editable '.[bench]' || { \
	    echo "Not all of it can be installed here, so each by itself; the tables name what is missing."; \
	    $(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")' | \
	        while read -r peer; do $(PIP) "$$peer" >/dev/null 2>&1 || echo "Not installed: $$peer"; done; }
	@touch $@
