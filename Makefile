# Two words get you going: `make run`. Needs Python 3.11 or newer; everything else goes into .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# The first of these that is 3.11 or newer; a name on PATH may be a shim without a version behind it.
PYTHONS := $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# A stamp carries the hash of what it was installed from: a change installs again, anything else costs nothing.
RUN_HASH := $(shell { cat requirements.txt; sed '/^\[tool/,$$d' pyproject.toml; } | sha256sum | cut -c1-16)
RUN_STAMP := $(VENV)/.installed-run-$(RUN_HASH)
DEV_STAMP := $(VENV)/.installed-dev-$(RUN_HASH)

# One process for the end-to-end tests and one for those with a browser, which wait a lot, and one for all others.
WORKERS ?= 3
# Compiled code is kept, whatever the caller's habit: a run starts many interpreters, and asserts are rewritten in each.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# What the main lane is started with.
BEFORE ?=
# Most tests are of an installation under one plain account; where root starts them, they run as one all the same (bench/live/plain.py).
PLAIN := $(BIN)/python -m bench.live.plain --
# Fast and basic first: what breaks everything shows within seconds.
TESTS := tests/scheduler tests/agent tests/client tests/quotas tests/nodes tests/jobs tests

.PHONY: help run demo demo-clean install dev test test-quick test-main test-postgres test-root test-days lint format bench soak clean

help:
	@echo "make run     start everything on this machine (Ctrl-C stops it)"
	@echo "make demo    the same with a simulated lab: 5 nodes, 19 cards, people, jobs (make demo-clean removes it)"
	@echo "make test    run the tests (installs the development tools first); make test-quick: core, agent and client in a minute"
	@echo "make test-days  what reckons with the calendar, on five days on which calendars are wrong first"
	@echo "make lint    ruff, mypy, import contracts, migrations, system checks"
	@echo "make bench   measure latency and throughput on the real thing"
	@echo "make soak    the long fault tests"
	@echo "make clean   remove caches and build output; .venv and var stay"

$(BIN)/python:
	@for python in $(PYTHONS); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); \
	    echo "$$python can't make virtual environments; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	done; \
	echo "No Python 3.11 or newer found (tried: $(PYTHONS)); install one, or say make PYTHON=/path/to/python $(MAKECMDGOALS)" >&2; exit 1

$(RUN_STAMP): | $(BIN)/python
	@echo "installing into $(VENV) (a minute or so, once)"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -r requirements.txt -e .
	@rm -f $(VENV)/.installed-run-*; touch $@

$(DEV_STAMP): | $(BIN)/python
	@echo "installing with development tools into $(VENV)"
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet -r requirements.txt -e '.[dev]'
	@rm -f $(VENV)/.installed-*; touch $@ $(RUN_STAMP)

install: $(RUN_STAMP)
dev: $(DEV_STAMP)

# exec: the terminal's Ctrl-C and a service manager's SIGTERM reach the supervisor itself.
run: $(RUN_STAMP)
	@exec $(BIN)/python manage.py up $(ARGS)

# A data folder of its own: nothing of it gets into the real one.
demo: $(RUN_STAMP)
	@NEBULA_DATA="$${NEBULA_DATA:-var-demo}" exec $(BIN)/python manage.py up --demo $(ARGS)

demo-clean: $(RUN_STAMP)
	@NEBULA_DATA="$${NEBULA_DATA:-var-demo}" exec $(BIN)/python manage.py demo_clean

# Both databases side by side: half of the first run's time is end-to-end tests that wait for processes. The second, which is one process
# that never waits, goes first where both want a core: else it would be alone at the end.
test: $(DEV_STAMP)
	@$(MAKE) -j2 --output-sync=target BEFORE='nice -n 5' test-main test-postgres test-root

# For the way: what needs no database, no server and no browser.
test-quick: $(DEV_STAMP)
	@$(PLAIN) env $(PYTEST) -n 2 -m "not soak and not root" tests/scheduler tests/agent tests/client $(ARGS)

test-main: $(DEV_STAMP)
	@$(BEFORE) $(PLAIN) env $(PYTEST) -n $(WORKERS) -m "not soak and not root" $(TESTS) $(ARGS)

# What only root can do: become other accounts, mount, freeze. Nothing of it is skipped in silence where somebody else starts the tests.
test-root: $(DEV_STAMP)
	@if [ "$$(id -u)" = 0 ]; then env $(PYTEST) -n 0 -m "root and not soak" tests $(ARGS); \
	elif [[ ",$${NEBULA_REQUIRE:-}," = *,root,* ]]; then echo "FAILED: the root lane did not run: you are not root." >&2; exit 1; \
	else echo "SKIPPED: the root lane did not run: you are not root." >&2; fi

# The tests that touch the database once more, on PostgreSQL. Who may call what is the same on both.
test-postgres: $(DEV_STAMP)
	@$(PLAIN) $(BIN)/python -m nebulagrid.embedded postgres -- env $(PYTEST) -m "not soak and not e2e and not browser and not root" tests/quotas tests/nodes tests/jobs $(filter-out tests/test_access.py,$(wildcard tests/test_*.py)) $(ARGS)

# What reckons with the calendar, on the days on which calendars are wrong first: a month's last evening, New Year's Eve, 29 February and both
# switches of daylight saving, each under another zone of the machine. DAYS: those to try.
DAYS ?= 2026-11-30T23:26/UTC 2026-12-31T23:55/Asia/Shanghai 2028-02-29T23:40/America/Sao_Paulo 2027-03-28T00:55/Europe/Berlin 2027-10-31T00:55/Europe/Berlin
CALENDAR ?= tests/quotas tests/nodes tests/jobs
test-days: $(DEV_STAMP)
	@for day in $(DAYS); do \
	  echo "--- the clock starts at $${day%%/*} UTC, TZ=$${day#*/}"; \
	  NEBULA_TESTS_AT=$${day%%/*} TZ=$${day#*/} $(PLAIN) env $(PYTEST) -q -n 2 -m "not soak and not root" $(CALENDAR) $(ARGS); \
	done

soak: $(DEV_STAMP)
	@$(PLAIN) env $(PYTEST) -m "soak and not root" -n 0 --timeout 900 tests $(ARGS)
	@if [ "$$(id -u)" = 0 ]; then env $(PYTEST) -m "soak and root" -n 0 --timeout 900 tests $(ARGS); fi

bench: $(DEV_STAMP)
	@$(PLAIN) $(BIN)/python -m bench.run $(ARGS)

lint: $(DEV_STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python manage.py makemigrations --check --dry-run
	@$(BIN)/python manage.py check

format: $(DEV_STAMP)
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format .

clean:
	@rm -rf build dist ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench/out
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
