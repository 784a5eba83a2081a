# perfbisect: every target sets itself up. Only python3 (>= 3.10, with venv and pip), git and make have to be there.
#
#   make demo        the real vLLM on CPU: a history with one slow commit, its name, a report   (about 20 minutes)
#   make demo-fast   the same with a pretend engine                                             (under two minutes)
#   make demo-releases  real releases of vLLM on CPU, bisected: whatever is found (about an hour)
#   make demo-compare   comparisons on the real vLLM whose answers are known                     (about an hour)
#   make demo-track     a store and a site of generated nightlies, what was found beside what was planted (minutes)
#   make demo-nightly   ten nights of a nightly with what goes wrong in ten nights, planted; what was found   (minutes)
#   make test        the tests that need no vLLM                                                (minutes)
#   make test-vllm   the tests with the real vLLM                                               (under 30 minutes)
#   make test-browser  the dashboard in a real browser, which is installed where it is missing (minutes)
#   make check       style, types, import contracts, documents
#   make bench       what perfbisect itself costs, beside its limits             (under a minute)
#   make docs        write the generated documents again
#   make lock        choose the newest versions for requirements/*.txt again
#   make clean       remove build/ and the virtual environment
#
# SEED=N plants the slow commit elsewhere; ARGS=... goes to pytest.
# What is downloaded and built stays in .venv/ and build/; pip and uv keep their own caches where they always do.

PYTHON ?= python3
VENV := .venv
# Many tests wait for processes of their own: one worker more than there are processors keeps these at work.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(5, len(os.sched_getaffinity(0)) + 1))')
PY := $(VENV)/bin/python
STAMP := $(VENV)/.perfbisect-stamp
LOCK := $(PY) -m uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate

.PHONY: demo demo-fast demo-releases demo-compare demo-track demo-nightly test test-browser test-vllm check bench docs lock clean setup
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:
	@sed -n 's/^#   make/  make/p' Makefile

setup: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml
	@command -v git >/dev/null || { echo "git is missing: install it (Debian, Ubuntu: apt install git)" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.10 or newer, or say: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$$($(PYTHON) --version) is too old: perfbisect needs Python 3.10 or newer; say: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot make virtual environments (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PY) -m pip install -qq --require-hashes -r requirements/dev.txt
	$(PY) -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	$(PY) -m scripts.demo $(if $(SEED),--seed $(SEED))

demo-fast: $(STAMP)
	$(PY) -m scripts.demo --fast $(if $(SEED),--seed $(SEED))

demo-compare: $(STAMP)
	$(PY) -m scripts.demo_compare $(ARGS)

demo-releases: $(STAMP)
	$(PY) -m scripts.demo_releases $(ARGS)

demo-track: $(STAMP)
	$(PY) -m scripts.demo_track $(ARGS)

demo-nightly: $(STAMP)
	$(PY) -m scripts.demo_nightly $(ARGS)

# Compiled once: over a hundred times a test starts perfbisect, and PYTHONDONTWRITEBYTECODE may be set.
test: $(STAMP)
	$(PY) -m compileall -q perfbisect
	$(PY) -m pytest -m "not vllm and not browser" -n $(WORKERS) --dist worksteal --cov=perfbisect --cov-report=term:skip-covered $(ARGS)
	$(PY) -m coverage report --include="perfbisect/model/*,perfbisect/stats/*,perfbisect/bisect/decision/*,perfbisect/series/detection/*,perfbisect/series/suspects/*" --fail-under=95

test-browser: $(STAMP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } || \
	  { echo "no browser: install Chromium (Debian, Ubuntu: apt install chromium)" >&2; exit 1; }
	$(PY) -m pytest -m browser tests/browser $(ARGS)

test-vllm: $(STAMP)
	$(PY) -m pytest -m vllm tests/vllm -s $(ARGS)

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest tests/test_house.py

bench: $(STAMP)
	$(PY) -m scripts.bench $(ARGS)

docs: $(STAMP)
	$(PY) -m scripts.gen_cli_docs
	$(PY) -m scripts.schema_digests

lock: $(STAMP)
	$(LOCK) --upgrade pyproject.toml -o requirements/runtime.txt
	$(LOCK) --upgrade pyproject.toml requirements/build.in --extra dev -c requirements/runtime.txt -o requirements/dev.txt

clean:
	rm -rf build dist $(VENV)
