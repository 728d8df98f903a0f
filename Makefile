# Every target sets up what it needs: `make demo` on a fresh clone is enough.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ADAPTERS := .venv/.adapters
DOCS := .venv/.docs
BENCH := .venv/.bench
WILD := .venv/.wild
TRAINERS := .venv/.trainers
RAY := .venv/.ray

STORAGE := build/storage/.installed
# Cases at a time, of up to 8 ranks each.
JOBS ?= 1

.PHONY: demo test test-flows test-all test-record test-slurm browser-deps screenshots lint format docs
.PHONY: bench bench-record bench-bugs bench-lowprecision bench-lowprecision-gpu bench-megatron bench-programs bench-wild
.PHONY: bench-bugs-auto bench-fingerprints bench-gpu bench-trainers crash faults fuzz clean study bench-scale bench-simulated
.DEFAULT_GOAL := demo

# torch first and by itself: a later resolver run must not choose another build of it. Which one it is
# depends on whether there is a GPU: install_torch.py.
$(STAMP): pyproject.toml constraints.txt install_torch.py build_kernel.py src/ttrace/measure/kernel.c src/ttrace/measure/kernel_lanes.h src/ttrace/measure/sketch.c
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python install_torch.py $(BIN)/python -c constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The frameworks that TTrace has adapters for. megatron-core's own dependencies would choose another
# torch, and are for GPUs; DeepSpeed compiles its kernels for GPUs when it is first used, or not at all.
$(ADAPTERS): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps megatron-core==0.16.1
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt deepspeed
	touch $@

# Plots, and models of Hugging Face.
$(BENCH): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

# Packages with bugs that TTrace found, in the versions that have them.
$(WILD): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[wild]'
	touch $@

# What torchtitan depends on takes 1.5 GB; its models and its trainer need little of it (zoo/trainers).
$(TRAINERS): $(ADAPTERS)
	DS_BUILD_OPS=0 $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[trainers]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps torchtitan==0.3.0
	touch $@

# A cluster for checks, on this machine.
$(RAY): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]'
	touch $@

# A server of S3 and its client. They depend on other versions of packages than those that are pinned
# here, so they have a folder of their own, which only the processes of these tests see.
$(STORAGE): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check --target build/storage --upgrade 'moto[server]==5.2.5' 's3fs==2026.9.0'
	touch $@

demo: $(STAMP)
	@echo "== a correct run must be silent =="
	$(BIN)/ttrace demo
	@echo "== the same with a planted bug: exit code 1 is what we want to see =="
	$(BIN)/ttrace demo --bug column-input-grad; test $$? -eq 1

# Unit, property, contract and repository tests, and one flow for each phase of a step and each
# adapter: minutes on two cores. tests/README.md says what the tiers are.
TESTS = $(BIN)/python -m pytest -n 2 --dist worksteal
test: $(STAMP) $(ADAPTERS)
	$(TESTS) --tier test

# What CI runs beside them: the flows in which everything occurs that occurs in any, and a seventh of
# the others. Trainers keep what they know in global variables, so they have a run of their own.
test-flows: test-deps
	$(TESTS) --tier flows -m "not trainers and not slurm"
	$(TESTS) --tier flows -m trainers

# Everything, as every night: an hour and a half on two cores.
test-all: test-deps
	$(TESTS) -m "not trainers and not slurm"
	$(TESTS) -m trainers

# What tests/tiers chooses from, written anew; after tests were added, or took another time.
test-record: test-deps
	$(TESTS) --record-flows -m "not trainers and not slurm"
	$(TESTS) --record-flows -m trainers

.PHONY: test-deps
test-deps: $(STAMP) $(ADAPTERS) $(BENCH) $(WILD) $(RAY) $(STORAGE) $(TRAINERS) browser-deps

# Job scripts under a real Slurm of two nodes on this machine, Debian's; as root, or with sudo. The
# tests start its daemons themselves: those of the packages are not needed. A few minutes.
test-slurm: $(STAMP) $(RAY)
	@command -v slurmctld munged sbatch >/dev/null || { SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends slurm-wlm munge; }
	$(BIN)/python -m pytest tests/slurm

# Writers of a trace killed at every call, with a disk that fails: minutes on two cores.
crash: $(STAMP)
	$(BIN)/python -m attacks.crash

# axe-core finds what assistive technology cannot read.
AXE := build/axe/node_modules/axe-core/package.json
$(AXE):
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.0

# Debian's chromium, its driver, npm and tmux, those that are missing; as root, or with sudo. Who has
# Node.js from elsewhere has npm with it, and Debian's would conflict with it.
browser-deps: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	@missing=; \
	command -v chromedriver >/dev/null || missing="chromium chromium-driver"; \
	for tool in npm tmux; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	test -z "$$missing" || { SUDO=$$(command -v sudo || true); \
	  $$SUDO apt-get update -qq && $$SUDO apt-get install -y -qq --no-install-recommends $$missing; }
	$(MAKE) --no-print-directory $(AXE)

screenshots: browser-deps
	$(BIN)/python -m tests.browser.screenshots

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DOCS): $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

# site/index.html opens from disk; a broken link, or an asset from the network, is an error.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# 20,000 mutated traces and 5,000 mutated results: about ten minutes on two cores.
fuzz: $(STAMP)
	$(BIN)/python -m attacks.fuzz

# Fails where a ratio got worse by more than a third since it was recorded.
bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The numbers of docs/reference/benchmarks.md: on a quiet machine, from a tree without changes.
bench-record: $(STAMP)
	$(BIN)/python -m benchmarks --record

# 60 cases through the whole flow: about ten minutes on two cores.
bench-bugs: $(STAMP)
	$(BIN)/python -m benchmarks.bugs

# These and Megatron's with fingerprints first: the same places must be named, and every twin be
# silent. What is in benchmarks/bugs-auto.json is not run again: remove it after tolerances change.
bench-bugs-auto: $(STAMP) $(ADAPTERS)
	PYTHONPATH=examples/megatron_gpt $(BIN)/python -m benchmarks.bugs.auto

# A check of 64 layers on 64 ranks by fingerprints; a few minutes and 2 GB of disk, mostly to make traces.
bench-fingerprints: $(STAMP)
	$(BIN)/python -m benchmarks.fingerprints

# Checks of large traces by every engine; some minutes, and 4 GB of disk, on a quiet machine.
bench-scale: $(STAMP) $(RAY)
	$(BIN)/python -m benchmarks.scale engines killed ray ranks

# Layouts of 64 ranks in one process, correct and wrong: minutes on two cores.
bench-simulated: $(STAMP)
	$(BIN)/python -m benchmarks.simulated

# On one GPU, with torch, numpy, safetensors and xxhash; nothing is installed.
bench-gpu:
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.gpu

# Programs as people write them, correct and wrong.
bench-programs: $(BENCH)
	$(BIN)/python -m benchmarks.programs

# Trainers in many strategies, correct and wrong.
bench-trainers: $(TRAINERS)
	$(BIN)/python -m benchmarks.trainers

# Bugs of released packages, each with its twin and its proof: minutes on two cores.
bench-wild: $(BENCH) $(ADAPTERS) $(WILD)
	$(BIN)/python -m benchmarks.wild

# Recipes of low precision in several layouts, correct and with bugs: most of an hour on two cores.
# What is in benchmarks/lowprecision/clean.json is not run again: remove it after tolerances change.
bench-lowprecision: $(WILD)
	$(BIN)/python -m benchmarks.lowprecision

# Those whose products a GPU can make itself, with them; nothing is installed.
bench-lowprecision-gpu:
	PYTHONPATH=src:. $(PYTHON) -m benchmarks.lowprecision.gpu

# Every layout in both precisions, every bug and its twin: hours on 2 cores, or JOBS=5 on 16. What
# is in benchmarks/megatron.json is not run again.
bench-megatron: $(STAMP) $(ADAPTERS)
	PYTHONPATH=examples/megatron_gpt $(BIN)/python -m benchmarks.megatron --jobs $(JOBS)
	$(BIN)/python -m benchmarks.megatron.table

# A study, or a module of one: NAME=power, NAME=power.depth; studies/README.md has them all.
study: $(BENCH)
	$(BIN)/python -m studies.$(NAME) $(ARGS)

# Raises in every function of the tracer that a run reaches: 20,000 times, 45 minutes on two cores.
faults: $(STAMP)
	$(BIN)/python -m attacks.faults

clean:
	rm -rf .venv ttrace-out site
