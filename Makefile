# `make demo` and `make test` are the two commands of the README; both install what they need first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TORCHREC := $(VENV)/.torchrec
GPU_OUT ?= results/gpu-check

.PHONY: install install-torchrec demo demo-balance test lint bench gpu-check clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  f"fsbench needs Python 3.11 or newer, $(PYTHON) is {sys.version.split()[0]}: make PYTHON=...")'
	@echo "installing fsbench and torch into $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cpu,dev]'
	@touch $@

# The embedding strategies of that name need it. Without its dependencies: it asks for fbgemm-gpu, the CUDA build.
install-torchrec: $(TORCHREC)

$(TORCHREC): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torchrec]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps torchrec
	@touch $@

# The built-in matrix at equal steps: 16 cells on two local ranks, each in fresh processes; about four minutes.
demo: $(INSTALLED)
	$(BIN)/fsbench data fetch ml-100k
	$(BIN)/fsbench run --matrix --steps 120

# Stragglers: two workloads, two ways to shard; about two and a half minutes.
demo-balance: $(INSTALLED)
	$(BIN)/fsbench data fetch ml-100k
	$(BIN)/fsbench run --workload ml-100k --workload long-cpu --sharding naive --sharding cost-aware

# Tests on real data, and those of torchrec, skip and say so where it cannot be had. Two files at a time: most of them wait
# for processes.
test: $(INSTALLED)
	-$(MAKE) --no-print-directory install-torchrec
	-$(BIN)/fsbench data fetch ml-100k
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# On a machine with a GPU and without network, about five minutes: tests marked gpu, single-rank cells on an NCCL world of
# one, and contention. All of it runs, whatever fails first.
gpu-check:
	failed=0; \
	$(PYTHON) -m pytest -m gpu -s tests/test_gpu.py tests/test_gpu_timeline.py || failed=1; \
	$(PYTHON) -m fsbench run --workload long-cpu --workload sparse --on local:ranks=1 --sharding naive --embedding plain \
	  --embedding prioritized --collectives backend --collectives host-staged --collectives copy-engine --steps 40 \
	  --out $(GPU_OUT) || failed=1; \
	$(PYTHON) -m fsbench contention --out $(GPU_OUT)/contention.toml --quiet || failed=1; \
	exit $$failed

# Timings, as ratios within one run: never asserted in tests. Beside verl's balancer, where its wheel can be had.
bench: $(INSTALLED)
	-test -d $(VENV)/public || $(BIN)/python -m pip install --quiet --no-deps --target $(VENV)/public verl==0.9.1
	$(BIN)/python -m pytest tests/bench/bench_*.py --benchmark-only --benchmark-disable-gc

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
