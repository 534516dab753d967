# make demo    installs, captions six photos and shows where a classifier looks, in a minute
# make train   installs and trains a captioner on synthetic scenes, in minutes (no download of data)
# make models  trains the two models of scenes that come with visattn again (20 minutes)
# make photo-captioner RUN=DIR  scores a run of the photo captioner and puts it into the package
# make pictures    makes the pictures of README and documentation again
# make test    installs and runs the tests that show what a change breaks, in minutes
# make test-all    runs those that are slow too: every config trained, every notebook, whole stories
# make test-machines  runs what computes as other x86 processors would, on 1, 2 and 4 threads, in any order
# make fuzz    reads 500 times as many damaged files of every kind as the tests do
# make net     writes anew what must not change (tests/net); look at the difference before a commit
# make check   lint, format, types, import rules
# make docs    builds the documentation into docs/_build (no network needed)
# make bench   times maps beside those of other libraries
# make peers   installs the libraries that we compare with, apart from ours
# make clean   removes environments and caches; runs/ stays
#
# Each makes .venv if it is missing; it is renewed when pyproject.toml or constraints.txt change.
# Another Python: make clean, then make PYTHON=python3.13 test

PYTHON ?= python3
BIN := .venv/bin

# Files of tests side by side, each file on one core; more than four would only fill the memory.
# In the order in which they are found: many short examples come last, and no core waits for a long file.
SIDE_BY_SIDE := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Compiled apart, since the checks of shapes cannot be traced; only the files that have such tests are read.
COMPILED := JAXTYPING_DISABLE=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) -q -m 'compile and not slow'
LONG := not gpu and not data and not peers and not compile and not ray

# Small networks: a second thread brings little, and on a busy machine costs many times its worth.
demo train models photo-captioner pictures test test-all test-machines net: export OMP_NUM_THREADS := 1
# Tests start Python often, and to compile everything each time takes longer than what they test.
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

# ------------------------------------------------------------------ what people type

demo: .venv/core.stamp
	@echo "demo 1 of 2: caption six photos, and show where a classifier looks on them"
	$(BIN)/visattn demo --out runs/demo
	@echo "demo 2 of 2: insert attention blocks into the classifier: its outputs stay equal"
	$(BIN)/python -c "import torch, visattn as va; model = va.load('imagenet-classifier'); \
	  x = torch.randn(1, 3, 224, 224); before = model(x); print(va.insert(model, 'cbam')); \
	  assert torch.equal(model(x), before); print('equal outputs')"
	@echo "Open runs/demo/index.html in a browser."

train: .venv/core.stamp
	$(BIN)/visattn fit --config scenes_demo
	@echo "Next: $(BIN)/visattn caption PHOTOS --model RUN, with the folder of the run that is named above."

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

# Those that compile run even if others failed.
test: .venv/dev.stamp
	@failed=0; \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) || failed=1; \
	echo "make test: now the tests that compile, with the shape checks off"; \
	$(COMPILED) $$(grep -rl 'mark\.compile' tests) || failed=1; \
	if [ $$failed = 1 ]; then echo "make test: failed, see above"; exit 1; fi
	@echo "make test: passed. Left out: -m slow (make test-all); -m gpu (needs a GPU); -m data (needs VISATTN_DATA);"
	@echo "make test: -m peers (needs make peers); -m ray (needs ray)."

test-all: .venv/dev.stamp
	@failed=0; \
	VISATTN_CHECK_ALL=1 $(BIN)/python -m pytest $(SIDE_BY_SIDE) -m '$(LONG)' || failed=1; \
	$(subst compile and not slow,compile,$(COMPILED)) $$(grep -rl 'mark\.compile' tests) || failed=1; \
	if [ $$failed = 1 ]; then echo "make test-all: failed, see above"; exit 1; fi

# What torch and oneDNN choose their kernels by, and the threads; each in an order of its own.
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
