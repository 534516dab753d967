# make demo    installs, trains a small captioner and shows where it looked (no download of data)
# make test    installs and runs the tests
# make test-hosts  trains across two hosts made of network namespaces (needs root)
# make fuzz    reads a million damaged files of every kind; VISATTN_FUZZ_CASES says how many
# make check   lint, format, types, import rules
# make bench   times our ways against the plain ones
# make peers   installs the libraries that we compare with, apart from ours
# make clean   removes environments and caches; runs/ stays
#
# Each makes .venv if it is missing; it is renewed when pyproject.toml or constraints.txt change.
# Another Python: make clean, then make PYTHON=python3.13 test

PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
# what the scenes of configs/scenes_demo.yaml hold
KINDS := --textures plain --most 2 --shapes circle square triangle cross \
  --colours red green blue yellow purple orange
BEST := $(DEMO)/checkpoints/best.ckpt

# Files of tests side by side, each file on one core; more than four would only fill the memory.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist loadfile

# Small networks: a second thread brings little, and on a busy machine costs many times its worth.
demo test test-hosts: export OMP_NUM_THREADS := 1

.PHONY: help demo test test-hosts fuzz check bench peers clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:
	@sed -n '/^$$/q; s/^# \{0,1\}//p' Makefile

# ------------------------------------------------------------------ environments

.venv/core.stamp: pyproject.toml constraints.txt
	@$(PYTHON) tools/install.py core

.venv/dev.stamp: pyproject.toml constraints.txt
	@$(PYTHON) tools/install.py dev

.venv-peers/peers.stamp: tools/peers.txt constraints.txt
	@$(PYTHON) tools/install.py peers

# ------------------------------------------------------------------ what people type

demo: .venv/core.stamp
	@rm -rf $(DEMO)
	@echo "demo 1 of 5: train on drawn scenes (about 3 minutes on two cores)"
	$(BIN)/visattn fit --config configs/scenes_demo.yaml --run $(DEMO)
	@echo "demo 2 of 5: score it on scenes that it has not seen"
	$(BIN)/visattn test --config configs/scenes_demo.yaml --data.test 256 --ckpt_path $(BEST)
	@echo "demo 3 of 5: keep the best checkpoint as one safetensors file"
	$(BIN)/visattn export $(BEST) --out $(DEMO)/model.safetensors
	@echo "demo 4 of 5: draw six more scenes"
	$(BIN)/visattn data scenes --split test --count 6 --size 256 $(KINDS) --out $(DEMO)/pictures
	@echo "demo 5 of 5: say what is on them and where each word looked"
	$(BIN)/visattn caption $(DEMO)/pictures --weights $(DEMO)/model.safetensors --out $(DEMO)/captions
	@echo
	@echo "Scores ($(DEMO)/test.json):"
	@awk -F'"|: |,' '$$4 ~ /[0-9]/ { printf "  %-24s %.3f\n", $$2, $$4 }' $(DEMO)/test.json
	@echo "Open $(DEMO)/captions/index.html in a browser: each picture, and where each word looked."

test: .venv/dev.stamp
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)
	@echo "make test: now the tests that compile, with the shape checks off"
	JAXTYPING_DISABLE=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) -q -m compile tests
	@echo "make test: passed. Left out: -m slow; -m gpu (needs a GPU); -m data (needs VISATTN_DATA);"
	@echo "make test: -m peers (needs make peers); -m hosts (make test-hosts, needs root); -m fuzz (make fuzz)."

test-hosts: .venv/dev.stamp
	$(BIN)/python -m pytest -m hosts -rs tests/hosts

fuzz: .venv/dev.stamp
	$(BIN)/python -m pytest -m fuzz tests

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: .venv/core.stamp
	$(BIN)/python tools/benchmark.py

peers: .venv-peers/peers.stamp
	@echo ".venv-peers is ready: $(BIN)/python -m pytest -m peers"

clean:
	rm -rf .venv .venv-peers build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
