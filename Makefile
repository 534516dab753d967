# make demo    installs, captions six photos and shows where a classifier looks, in a minute
# make train   installs and trains a captioner on synthetic scenes, in minutes (no download of data)
# make models  retrains the two bundled models of scenes (20 minutes)
# make photo-captioner RUN=DIR  scores a run of the photo captioner and adds it to the package
# make pictures    regenerates the pictures of README and documentation
# make test    installs and runs the default tests, in minutes
# make test-all    includes slow tests: every config trained, every notebook, whole stories
# make test-machines  runs numeric tests with the kernels of other x86 processors, on 1, 2 and 4 threads, in other orders
# make fuzz    reads 500 times as many damaged files of each kind as the tests do
# make net     rewrites the regression files (tests/net); review the diff before committing
# make check   lint, format, types, import rules
# make docs    builds the documentation into docs/_build (no network needed)
# make bench   compares the speed of maps with other libraries
# make peers   installs those libraries in an environment of their own
# make clean   removes environments and caches, but not runs/
#
# Each creates .venv if it is missing, and updates it when pyproject.toml or constraints.txt change.
# To use another Python: make clean, then make PYTHON=python3.13 test

PYTHON ?= python3
BIN := .venv/bin

# Test files in parallel, one per core; more than four would only fill the memory.
# In discovery order: many short examples come last, so that no core waits for a long file.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Separate, since shape checks cannot be traced by torch.compile; only files with such tests are collected.
COMPILED := JAXTYPING_DISABLE=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) -q -m 'compile and not slow'
LONG := not gpu and not data and not peers and not compile and not ray

# Small networks gain little from a second thread, and lose much on a busy machine.
demo train models photo-captioner pictures test test-all test-machines net: export OMP_NUM_THREADS := 1
# Tests often start Python, and compiling all modules each time takes longer than the tests.
test test-all test-machines fuzz: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo train models photo-captioner pictures test test-all test-machines fuzz net check docs bench peers clean
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

# ------------------------------------------------------------------ commands

demo: .venv/core.stamp
	@echo "demo 1 of 2: caption six photos, and show where a classifier looks on them"
	$(BIN)/visattn demo --out runs/demo
	@echo "demo 2 of 2: insert attention blocks into the classifier; its outputs do not change"
	$(BIN)/python -c "import torch, visattn as va; model = va.load('imagenet-classifier'); \
	  x = torch.randn(1, 3, 224, 224); before = model(x); print(va.insert(model, 'cbam')); \
	  assert torch.equal(model(x), before); print('equal outputs')"
	@echo "Open runs/demo/index.html in a browser."

train: .venv/core.stamp
	$(BIN)/visattn fit --config scenes_demo
	@echo "Next: $(BIN)/visattn caption PHOTOS --model RUN, with the run folder named above."

MODELS := runs/models
CAPTIONER := $(MODELS)/scenes-captioner
GLIMPSES := $(MODELS)/scenes-glimpses
BUNDLED := visattn/models/bundled
# To try the commands in 90 s of CPU time, without touching the models of the package:
# make models SHORT="--trainer.max_steps 20 --trainer.val_check_interval 10" TEST_SCENES=20 BUNDLED=runs/bundled
SHORT :=
TEST_SCENES := 500

models: .venv/core.stamp
	@rm -rf $(MODELS)
	@echo "models 1 of 4: train the captioner (about 15 minutes)"
	$(BIN)/visattn fit --config configs/scenes_captioner.yaml --run $(CAPTIONER) --seed_everything 0 --data.num_workers 0 $(SHORT)
	@echo "models 2 of 4: train the glimpse model (about 6 minutes of CPU time)"
	$(BIN)/visattn fit --config configs/ram_scenes.yaml --run $(GLIMPSES) --seed_everything 0 $(SHORT)
	@echo "models 3 of 4: round the weights to half precision, and test them"
	$(BIN)/python tools/bundle_models.py round $(CAPTIONER) $(GLIMPSES)
	$(BIN)/visattn test --run $(CAPTIONER) --data.source.test $(TEST_SCENES)
	$(BIN)/visattn test --run $(GLIMPSES)
	@echo "models 4 of 4: write weights and cards into $(BUNDLED)"
	$(BIN)/python tools/bundle_models.py bundle $(CAPTIONER) $(GLIMPSES) --out $(BUNDLED)

PHOTOS := $(MODELS)/photo-captioner

photo-captioner: .venv/core.stamp
	@rm -rf $(PHOTOS) && mkdir -p $(PHOTOS)/checkpoints
	cp $(RUN)/config*.yaml $(PHOTOS) && cp $(RUN)/checkpoints/best.ckpt $(PHOTOS)/checkpoints
	$(BIN)/python tools/bundle_models.py round $(PHOTOS)
	$(BIN)/visattn test --run $(PHOTOS) --data.source.test $(VISATTN_DATA)/flickr8k/Flickr_8k.devImages.txt \
	  --data.feature_cache_dir null --trainer.precision 32-true
	$(BIN)/python tools/bundle_models.py bundle $(PHOTOS) --out $(BUNDLED)
	$(MAKE) pictures

pictures: .venv/core.stamp
	$(BIN)/python tools/pictures.py
	$(BIN)/python docs/benchmark_plots.py

# The compile tests run even if others failed.
test: .venv/dev.stamp
	@failed=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) || failed=1; \
	echo "make test: now the compile tests, without shape checks"; \
	$(COMPILED) $$(grep -rl 'mark\.compile' tests) || failed=1; \
	if [ $$failed = 1 ]; then echo "make test: failed, see above"; exit 1; fi
	@echo "make test: passed. Left out: -m slow (make test-all); -m gpu (needs a GPU); -m data (needs VISATTN_DATA);"
	@echo "make test: -m peers (needs make peers); -m ray (needs ray)."

test-all: .venv/dev.stamp
	@failed=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m '$(LONG)' || failed=1; \
	$(subst compile and not slow,compile,$(COMPILED)) $$(grep -rl 'mark\.compile' tests) || failed=1; \
	if [ $$failed = 1 ]; then echo "make test-all: failed, see above"; exit 1; fi

# Kernel selection of torch and oneDNN, and threads; each with its own test order.
MACHINES := \
  ATEN_CPU_CAPABILITY=default,VISATTN_TEST_THREADS=1 ATEN_CPU_CAPABILITY=avx2,VISATTN_TEST_THREADS=2 \
  ONEDNN_MAX_CPU_ISA=AVX2,VISATTN_TEST_THREADS=4 ONEDNN_MAX_CPU_ISA=SSE41,VISATTN_TEST_THREADS=2 \
  ATEN_CPU_CAPABILITY=default,ONEDNN_MAX_CPU_ISA=SSE41,VISATTN_TEST_THREADS=4
COMPUTING := $(addprefix tests/,functional geometry blocks insertion recording attribution models metrics data viz pipelines) visattn

test-machines: export OMP_WAIT_POLICY := passive
test-machines: .venv/dev.stamp
	@failed=; order=0; for machine in $(MACHINES); do \
	  order=$$((order + 1)); words=$$(echo $$machine,VISATTN_TEST_ORDER=$$order | tr , ' '); \
	  echo "make test-machines: $$words"; \
	  env $$words $(BIN)/python -m pytest $(SIDE_BY_SIDE) -q $(COMPUTING) || failed="$$failed$$words; "; \
	done; \
	if [ "$$failed" ]; then echo "make test-machines: failed with $$failed"; exit 1; fi

fuzz: .venv/dev.stamp
	VISATTN_FUZZ_TIMES=500 $(BIN)/python -m pytest tests/data/test_hostile_files.py -k random_edits

net: .venv/dev.stamp
	$(BIN)/python -m pytest tests/net -q -m "slow or not slow" --write-golden
	@git diff --stat tests/net

docs: .venv/dev.stamp
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "make docs: open docs/_build/index.html"

check: .venv/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: .venv/core.stamp .venv-peers/peers.stamp
	$(BIN)/python tools/benchmark.py peers

peers: .venv-peers/peers.stamp
	@echo ".venv-peers is ready: $(BIN)/python -m pytest -m peers"

clean:
	rm -rf .venv .venv-peers build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
