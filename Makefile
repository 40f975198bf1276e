# Every task sets itself up: a new machine needs make, Python 3.11 or newer, and pip.

# 3.11 is what the versions in constraints.txt are tested with; anything newer may do.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
SOURCES := src/ortolan models tests benchmarks scripts examples
BUNDLE := build/pythonic
ALL_FAULTS := tests/hostile/test_faults.py::test_every_fault_in_long_work_leaves_old_or_new_files

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all setup demo test test-ci test-slow test-gpu fuzz check fix

all: check test

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[chat,export,gguf,plot,train,vision,demos,dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/ortolan export models/pythonic $(BUNDLE) --force
	$(BIN)/ortolan verify $(BUNDLE)
	$(BIN)/ortolan run $(BUNDLE) "def read_lines(path):" -n 64
	$(BIN)/ortolan bench $(BUNDLE) -p 128 -n 128 -r 3

# The models of the tests are too small for two threads, the tests many enough for two processes.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# The slow tests that take a bounded time: what the documents show, typed as it stands there, and
# forms of parity that take long to trace. Their graphs are kept for scripts/vocabulary.py --graphs.
test-ci: $(INSTALLED)
	mkdir -p build/graphs
	OMP_NUM_THREADS=1 ORTOLAN_TEST_GRAPHS=$(CURDIR)/build/graphs $(BIN)/pytest -n 2 -m slow --ignore=tests/cli/test_install.py \
		--ignore=tests/end_to_end/test_demo.py --deselect=$(ALL_FAULTS) \
		--ignore=tests/modeling/families/test_inert_keys.py --ignore=tests/export/locality \
		--ignore=tests/export/source/transformers/test_weights.py \
		--ignore=tests/export/source/transformers/test_adapter.py

# These, every type of transformers and each key of its config, all modules that look where they may
# not, installs into new environments, faults of each file operation, and the demo of a fresh clone.
test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow

# All of tests/gpu, what runs on the CPU included: where both are wrong, it is no fault of a GPU. In an
# environment as it is: `setup` would put the CPU's onnxruntime over the GPU's.
test-gpu:
	$(BIN)/pytest -m "" -rs tests/gpu

# Bundles and requests that are changed at random, as many as one likes: make fuzz COUNT=100000
# What it finds is found again with the SEED that it prints.
COUNT ?= 20000
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_operators --count $(COUNT) $(if $(SEED),--seed $(SEED))
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_requests --count $(COUNT) $(if $(SEED),--seed $(SEED))
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz --count $(COUNT) $(if $(SEED),--seed $(SEED))

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	PYTHONPATH=src $(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/check_sizes.py
	$(BIN)/codespell

fix: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
