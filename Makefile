# Two commands on a fresh machine: `make demo`, `make test`. Needs Python ≥ 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out
TEST_WORKERS ?= 2
IN_PARALLEL = --numprocesses $(TEST_WORKERS) --dist worksteal
WITHOUT_TORCH = tests/api tests/cli tests/profiles tests/synth tests/test_packaging.py
STDLIB = $(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('stdlib'))")

.PHONY: install demo gpu test test-all test-nightly test-oldest test-newest test-docs golden durations test-thorough lint types schemas docs wheel check clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,dev,torch,hf,recipes,picture,docs,ui]"
	touch $@

# Profile a byte-level GPT on this machine, solve it for 4 ranks under a cap that 1F1B meets and
# ZB-H2 does not, and train it on 4 processes on the sources of Python's own standard library.
demo: install
	mkdir -p $(OUT)
	$(BIN)/synth profile gpt-bytes --micro-batch-size 4 --seq-len 128 --ranks 4 --device cpu \
	    -o $(OUT)/profile.json
	$(BIN)/synth solve $(OUT)/profile.json --ranks 4 --micro-batches 8 --mem-limit 101MB \
	    --placement linear --partition even --recompute none --time-limit 20s -o $(OUT)/plan.json
	$(BIN)/synth run $(OUT)/plan.json --data "$(STDLIB)" --steps 60 --lr 5e-4 --device cpu \
	    -o $(OUT)/run.json

# Everything that one CUDA device can show, in at most eight minutes.
gpu: install
	$(BIN)/python -m benchmarks.gpu --json benchmarks/results/gpu.json

# What is marked `slow` only runs in `make test-all`, and what is marked `nightly` in neither.
# Two tests at a time; TEST_WORKERS=0: one.
test: install
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not slow"

test-all: install
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not nightly"

# The rest: long commands of the pages, and most seeds of the sweeps.
test-nightly: install
	$(BIN)/python -m pytest $(IN_PARALLEL) -m nightly

# The fast tests that need no torch, on the oldest declared versions and on the newest that pip finds
# for PYTHON. Each has an environment of its own, which is made anew: pip would keep what is there.
test-oldest: PYTHON = python3.11
test-oldest: CONSTRAINED = --constraint constraints-oldest.txt
test-oldest test-newest: TESTED = .venv-$(@:test-%=%)
test-oldest test-newest:
	$(PYTHON) -m venv --clear $(TESTED)
	$(TESTED)/bin/pip install --quiet $(CONSTRAINED) --editable ".[test,picture]"
	$(TESTED)/bin/python -m pytest $(IN_PARALLEL) -m "not slow" $(WITHOUT_TORCH)
	@echo "tested with $$($(TESTED)/bin/python --version)," $$($(TESTED)/bin/pip freeze --exclude-editable)

# Measures how long tests take, and lists those that `make test` had better be spared.
durations: install
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "not nightly" -p tests.cpu_times \
	    --cpu-times tests/durations.json

# Random examples, kills and interrupts, for SYNTH_THOROUGH_SECONDS (300) in all. A failure names the
# SYNTH_SEED that repeats it.
test-thorough: install
	$(BIN)/python -m pytest -m thorough tests/thorough

# Runs the commands and programs of README and pages, but for those that say why they are not run.
test-docs: install
	$(BIN)/python -m pytest -m "" tests/docs

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

# Plans, tables, `--help`, errors and keys of JSON against what is recorded; `make test-all` has it, too.
golden: install
	$(BIN)/python -m pytest $(IN_PARALLEL) tests/test_golden.py

# The JSON Schemas of all file formats, and the tables of options in docs/commands.md; tests compare
# both with the code.
schemas: install
	$(BIN)/synth schema --folder docs/schemas
	$(BIN)/python -m tests.docs.option_tables

# The pages as a site; a broken link is an error.
docs: install
	$(BIN)/python -m sphinx -q -n -W --keep-going -b html docs docs/_build/html

wheel: install
	rm -rf dist build
	$(BIN)/python -m build --quiet --wheel --outdir dist

check: lint types test-all wheel

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest $(OUT) build dist *.egg-info
