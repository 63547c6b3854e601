# Two commands on a fresh machine: `make demo`, `make test`. Needs Python ≥ 3.11 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out
STDLIB = $(shell $(PYTHON) -c "import sysconfig; print(sysconfig.get_path('stdlib'))")

.PHONY: install demo test test-thorough lint types wheel check clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,hf]"
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

test: install
	$(BIN)/python -m pytest

# Random examples, kills and interrupts, for SYNTH_THOROUGH_SECONDS (300) in all. A failure names the
# SYNTH_SEED that repeats it.
test-thorough: install
	$(BIN)/python -m pytest -m thorough tests/thorough

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

wheel: install
	rm -rf dist build
	$(BIN)/python -m build --quiet --wheel --outdir dist

check: lint types test wheel

clean:
	rm -rf $(VENV) $(OUT) build dist *.egg-info
