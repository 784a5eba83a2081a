# perfbisect. Every target sets itself up in .venv/ and build/; it needs python3 (3.10 or newer, with venv and pip), git and make.
#
#   make setup           create .venv/ with perfbisect and the tools for development
#
#   make demo            find a planted slow commit with the real vLLM on CPU       (15 minutes, 4 GB)
#   make demo-fast       the same with a pretend engine                             (2 minutes)
#   make demo-compare    compare commits whose difference is known, real vLLM      (1 hour)
#   make demo-releases   bisect real releases of vLLM or vLLM-Omni on CPU           (1 hour)
#   make demo-track      detect planted changes in generated nightly results        (minutes)
#   make demo-nightly    run ten nights with planted regressions and failures       (minutes)
#   make demo-omni       bisect planted changes of speech with the real vLLM-Omni  (2 hours)
#   make demo-fleet      bisect over a Slurm and a machine behind ssh               (10 minutes)
#
#   make check           lint, types, order of imports, rules of the repository
#   make test            tests of each behaviour with a pretend engine              (4 minutes)
#   make test-processes  the long ones: kills, packages, scripts, simulations       (15 minutes)
#   make coverage        the tests of the decisions, and the lines of these that they run (4 minutes)
#   make test-others     make test without the tests that make coverage runs
#   make test-vllm       the tests with the real vLLM on CPU                        (10 minutes)
#   make test-omni       the real server of vLLM-Omni on CPU, measured            (10 minutes)
#   make test-images     servers in images, with podman; installs it if missing     (5 minutes)
#   make test-fleet      machines behind a real sshd, Slurm and Ray; installs them  (15 minutes)
#   make test-browser    the dashboard in Chromium; installs it if missing          (minutes)
#   make proof           with the real vLLM and vLLM-Omni: bisect, profile, a night, failures  (1 hour)
#   make bench           measure the overhead of perfbisect against its limits      (1 minute)
#   make bench-explain   explain commits of twelve kinds, planted in the real vLLM  (6 hours)
#   make bars            check the published error rates with fresh seeds           (10 minutes)
#
#   make docs            write the command reference and the digests of JSON schemas
#   make lock            update requirements/*.txt to the newest versions
#   make clean           remove build/, dist/ and .venv/
#
# SEED=N plants the slow commit of a demo elsewhere or repeats `make bars`, SHARE=0.15 plants a smaller one; IMAGE_TOOL=docker tests
#   images with docker's daemon; ARGS='...' is passed to pytest or to the script.

PYTHON ?= python3
VENV := .venv
# Two workers more than processors: many tests wait for processes.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(6, len(os.sched_getaffinity(0)) + 2))')
IMAGE_TOOL ?= podman
SHORT := not processes and not vllm and not browser and not images and not fleet
# What coverage is asked of, and the tests that give it.
DECISIONS := model stats bisect/decision series/detection series/suspects
DECISION_TESTS := bisect model series stats
# Collecting all tests takes each worker longer than these do.
LONG_TESTS = $(shell grep -rlE 'mark\.processes|mostly_long' tests --include='test_*.py')
PY := $(VENV)/bin/python
STAMP := $(VENV)/.perfbisect-stamp
LOCK := $(PY) -m uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-header --no-annotate

.PHONY: demo demo-fast demo-releases demo-compare demo-track demo-nightly demo-fleet demo-omni test test-processes test-others coverage test-images test-fleet test-browser test-vllm test-omni proof fleet-tools check bench bench-explain bars docs lock clean setup
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:
	@sed -n -e 's/^#   make/  make/p' -e 's/^# SEED/  SEED/p' Makefile

setup: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml
	@command -v git >/dev/null || { echo "git is missing: install it (Debian, Ubuntu: apt install git)" >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.10 or newer, or use: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$$($(PYTHON) --version) is too old: perfbisect needs Python 3.10 or newer; use: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) cannot create virtual environments (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/dev.txt
	@# A path in place of a hook of imports: with that each Python takes twice as long to start.
	$(PY) -m pip install -qq --no-deps --no-build-isolation --config-settings editable_mode=compat -e .
	$(PY) -m pip check -qq
	@touch $@

demo: $(STAMP)
	$(PY) -m scripts.demo $(if $(SEED),--seed $(SEED)) $(if $(SHARE),--share $(SHARE))

demo-fast: $(STAMP)
	$(PY) -m scripts.demo --fast $(if $(SEED),--seed $(SEED)) $(if $(SHARE),--share $(SHARE))

demo-compare: $(STAMP)
	$(PY) -m scripts.demo_compare $(ARGS)

demo-releases: $(STAMP)
	$(PY) -m scripts.demo_releases $(ARGS)

demo-track: $(STAMP)
	$(PY) -m scripts.demo_track $(ARGS)

demo-nightly: $(STAMP)
	$(PY) -m scripts.demo_nightly $(ARGS)

demo-omni: $(STAMP)
	$(PY) -m scripts.demo_omni $(if $(SEED),--seed $(SEED)) $(ARGS)

demo-fleet: $(STAMP) fleet-tools
	$(PY) -m scripts.demo_fleet $(if $(SEED),--seed $(SEED)) $(ARGS)

# Compiled once, also where this is set: the tests start perfbisect over a hundred times, and pytest rewrites every test
# file in each worker.
export PYTHONDONTWRITEBYTECODE =
PYTEST = $(PY) -m compileall -q perfbisect pretend tests/fakes && $(PY) -m pytest -n $(WORKERS) --dist worksteal

test: $(STAMP)
	$(PYTEST) -m "$(SHORT)" $(ARGS)

test-others: $(STAMP)
	$(PYTEST) -m "$(SHORT)" $(DECISION_TESTS:%=--ignore=tests/%) $(ARGS)

# Tracing slows the simulations by a third, so only these tests are traced, and apart from `make test`.
coverage: $(STAMP)
	$(PYTEST) -m "$(SHORT)" $(DECISION_TESTS:%=tests/%) $(DECISIONS:%=--cov=perfbisect/%) --cov-report=term:skip-covered --cov-fail-under=95

test-processes: $(STAMP)
	$(PYTEST) -m processes $(LONG_TESTS) $(ARGS)

test-browser: $(STAMP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } || \
	  { echo "no browser: install Chromium (Debian, Ubuntu: apt install chromium)" >&2; exit 1; }
	$(PY) -m pytest -m browser tests/browser $(ARGS)

test-images: $(STAMP)
	@command -v $(IMAGE_TOOL) || [ $(IMAGE_TOOL) != podman ] || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends podman catatonit runc; } || \
	  { echo "no podman: install it (Debian, Ubuntu: apt install podman catatonit runc)" >&2; exit 1; }
	IMAGE_TOOL=$(IMAGE_TOOL) $(PY) -m pytest -m images tests/images $(ARGS)

# Programs that a user's PATH may lack are in /usr/sbin.
FLEET_TOOLS := setpriv sshd ssh ssh-keygen munged slurmctld slurmd sbatch
FLEET_PACKAGES := openssh-server openssh-client slurmctld slurmd slurm-client munge

fleet-tools:
	@export PATH="$$PATH:/usr/sbin:/sbin"; \
	  lacking() { for tool in $(FLEET_TOOLS); do command -v $$tool >/dev/null || echo $$tool; done; }; \
	  [ -z "$$(lacking)" ] || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(FLEET_PACKAGES); } || \
	  { echo "missing:" $$(lacking) "(Debian, Ubuntu: apt install $(FLEET_PACKAGES))" >&2; exit 1; }

# Ray's cluster takes a gigabyte and half a minute to start: one after the other.
test-fleet: $(STAMP) fleet-tools
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/ray.txt
	$(PY) -m pytest -m "fleet and not ray" tests/fleet -n $(WORKERS) --dist worksteal $(ARGS)
	$(PY) -m pytest -m ray tests/fleet -n 0 $(ARGS)

test-vllm: $(STAMP) fleet-tools
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/explain.txt
	$(PY) -m pytest -m "vllm and not proof" tests/vllm -s $(ARGS)

test-omni: $(STAMP)
	$(PY) -m pytest -m "vllm and not proof" tests/omni -s $(ARGS)

proof: $(STAMP) fleet-tools
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/explain.txt
	$(PY) -m pytest -m proof tests/vllm tests/omni -s $(ARGS)

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest tests/test_house.py

bench: $(STAMP)
	$(PY) -m scripts.bench $(ARGS)

bench-explain: $(STAMP)
	$(PY) -m pip install -qq --no-deps --require-hashes -r requirements/explain.txt
	$(PY) -m scripts.bench_explain $(ARGS)

bars: $(STAMP)
	$(PY) -m scripts.bars $(if $(SEED),--seed $(SEED)) $(ARGS)

docs: $(STAMP)
	$(PY) -m scripts.gen_cli_docs
	$(PY) -m scripts.schema_digests

lock: $(STAMP)
	$(LOCK) --upgrade pyproject.toml -o requirements/runtime.txt
	$(LOCK) --upgrade pyproject.toml requirements/build.in --extra dev --extra mcp --extra notify --extra parquet -c requirements/runtime.txt -o requirements/dev.txt
	$(LOCK) --upgrade requirements/ray.in -c requirements/dev.txt -o requirements/ray.txt
	$(LOCK) --upgrade requirements/explain.in -o requirements/explain.txt

clean:
	rm -rf build dist $(VENV)
