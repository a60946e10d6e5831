# One entry per routine; README, CONTRIBUTING and .ci/run call the same ones.
# Needs: make, a POSIX shell, Python >= 3.11 with venv. Reaches the package registry while installing, and nothing else.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
.NOTPARALLEL:

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?=                # the interpreter to make the environment with; empty: the first suitable one
DEMO_ARGS ?=             # for example DEMO_ARGS=--help
PYTEST_ARGS ?=           # for example PYTEST_ARGS="-k upload -x"
TEST_PROCESSES ?= 2      # as many as there are processors
BENCH_ARGS ?=            # for example BENCH_ARGS=--quick, or BENCH_ARGS="--only nvflare"
PAPER ?=                 # of bench-papers-small
MUTANTS_ARGS ?=          # for example MUTANTS_ARGS="--area codec", or MUTANTS_ARGS="--jobs 4"
SEEDS ?=                 # of simulate-faults, for example SEEDS=17 or SEEDS=1-100000; empty: new ones for SIMULATE_MINUTES
SIMULATE_MINUTES ?= 3
STRIDE ?= 12             # of fail-file-operations: one of so many operations, others each time
SIMULATE_ARGS ?=         # for example SIMULATE_ARGS=--trace
FUZZ_TARGETS ?= block payload message chunk
FUZZ_RUNS ?= 100000      # executions of each target
FUZZ_ARGS ?=             # further options of libFuzzer, for example FUZZ_ARGS=-seed=1

# Set for what runs the code: no tool of ours needs a terminal or asks a question.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# The libraries have 300 MB of Python, of which a tenth is ever imported: what is imported is compiled then and kept.
INSTALL := $(BIN)/python -m pip install --no-compile
unexport PYTHONDONTWRITEBYTECODE
# Imported once while nothing else runs, so that the first processes of a federation do not all compile the same.
IMPORTED := import torch, torchvision.transforms.v2, sklearn.datasets, matplotlib.pyplot, grpc.aio, cryptography.x509, typer, rich.progress

.PHONY: help setup setup-demo demo test test-oldest test-slow test-all simulate-faults fail-file-operations planted-bugs mutants fuzz bench-wire bench-scale bench-secure bench-training bench-lossy bench-learning bench-robust bench-privacy bench-demo bench-faults soak bench-papers-small lint lint-deploy docs pictures site protos clean

help:  ## show this list
	@echo "make TARGET"
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

setup: $(VENV)/.semisilo-dev  ## make .venv and install semisilo with the tools of development

setup-demo: $(VENV)/.semisilo  ## make .venv and install semisilo alone

demo: setup-demo  ## run a real federation here: a coordinator, three silos, self-training over mutual TLS
	@echo "==> semisilo demo $(DEMO_ARGS)" >&2
	@$(BIN)/semisilo demo $(DEMO_ARGS)

# worksteal: each process begins with a run of neighbouring tests, so that what the tests of a file share is made once,
# and takes from the others when it has finished its own. One process more than processors: a fifth of the time of the
# quick tests is waiting, for a browser, a server or a timer, and some of that of the slow ones.
test: setup  ## run the tests that take seconds
	@echo "==> tests, without those marked slow" >&2
	$(BIN)/python -m pytest -m "not slow" -n $$(( $(TEST_PROCESSES) + 1 )) --dist worksteal $(PYTEST_ARGS)

test-oldest: build/oldest/.made  ## run the quick tests with the oldest packages that pyproject.toml permits
	@echo "==> tests, without those marked slow, with the packages of build/oldest/packages.txt" >&2
	build/oldest/bin/python -m pytest -m "not slow" -n $$(( $(TEST_PROCESSES) + 1 )) --dist worksteal $(PYTEST_ARGS)

test-slow: setup  ## run the tests that take longer: browsers, simulations, kills and restarts, 100 million parameters, the wheel
	@echo "==> tests marked slow" >&2
	$(BIN)/python -m pytest -m slow -n $$(( $(TEST_PROCESSES) + 1 )) --dist worksteal $(PYTEST_ARGS)

test-all: test test-slow simulate-faults fail-file-operations  ## run all tests, and schedules of faults that nobody has run before

simulate-faults: setup  ## run a simulated federation through faults drawn from seeds: SEEDS=17 replays one bit for bit
	@echo "==> python -m tests.simulator.run $(or $(SEEDS),--new --minutes $(SIMULATE_MINUTES)) $(SIMULATE_ARGS)" >&2
	@$(BIN)/python -m tests.simulator.run $(or $(SEEDS),--new --minutes $(SIMULATE_MINUTES)) --jobs $(TEST_PROCESSES) $(SIMULATE_ARGS)

fail-file-operations: setup  ## fail every STRIDE-th operation on a file of a hub and a silo, one in a run; STRIDE=1 fails all
	@echo "==> python -m tests.simulator.run --fail-every-operation --stride $(STRIDE) $(SIMULATE_ARGS)" >&2
	@$(BIN)/python -m tests.simulator.run --fail-every-operation --stride $(STRIDE) --jobs $(TEST_PROCESSES) $(SIMULATE_ARGS)

planted-bugs: setup  ## put old bugs back, one at a time, and count the seeds until simulate-faults finds each (hours)
	@$(BIN)/python -m tests.simulator.planted --jobs $(TEST_PROCESSES)

mutants: setup  ## break the program in hundreds of places, one at a time, and see that tests notice
	@echo "==> python -m tests.mutants.run $(MUTANTS_ARGS)" >&2
	@$(BIN)/python -m tests.mutants.run $(MUTANTS_ARGS)

fuzz: $(VENV)/.semisilo-fuzz  ## feed the decoders of the wire what a fuzzer makes up; what it finds lies in build/fuzz/
	@set -e; for target in $(FUZZ_TARGETS); do \
	    mkdir -p build/fuzz/$$target; \
	    echo "==> python -m tests.fuzz.run $$target -runs=$(FUZZ_RUNS) $(FUZZ_ARGS)" >&2; \
	    $(BIN)/python -m tests.fuzz.run $$target -runs=$(FUZZ_RUNS) -artifact_prefix=build/fuzz/$$target- $(FUZZ_ARGS) \
	        build/fuzz/$$target tests/fuzz/corpus/$$target; \
	done

bench-wire: setup-demo build/peers/flower/.made build/peers/nvflare/.made  ## measure rounds against Flower and NVIDIA FLARE (half an hour); writes benchmarks/wire/RESULTS.md
	@echo "==> python -m benchmarks.wire.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.wire.run $(BENCH_ARGS)

bench-scale: setup-demo  ## measure rounds of 8 to 1,000 silos against bare gRPC, and simulations (half an hour); writes benchmarks/scale/RESULTS.md
	@echo "==> python -m benchmarks.scale.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.scale.run $(BENCH_ARGS)

bench-secure: setup-demo  ## measure what secure aggregation costs a silo, the coordinator and the wire (ten minutes); writes benchmarks/secure/RESULTS.md
	@echo "==> python -m benchmarks.secure.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.secure.run $(BENCH_ARGS)

bench-training: setup-demo  ## measure a silo's training against a plain PyTorch loop (half an hour); writes benchmarks/training/RESULTS.md
	@echo "==> python -m benchmarks.training.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.training.run $(BENCH_ARGS)

bench-lossy: setup-demo  ## measure accuracy against the bytes of lossy updates (half an hour); writes benchmarks/lossy/RESULTS.md
	@echo "==> python -m benchmarks.lossy.run --write $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.lossy.run --write $(BENCH_ARGS)

bench-learning: setup-demo  ## measure our method against labels alone and the papers' methods (hours; goes on where it was); writes benchmarks/learning/RESULTS.md
	@echo "==> python -m benchmarks.learning.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.learning.run $(BENCH_ARGS)

bench-robust: setup-demo  ## measure what lying silos cost under each rule of [robust] (hours; goes on where it was); writes benchmarks/robust/RESULTS.md
	@echo "==> python -m benchmarks.robust.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.robust.run $(BENCH_ARGS)

bench-privacy: setup  ## measure accuracy against epsilon of differential privacy (hours; goes on where it was); writes benchmarks/privacy/RESULTS.md; BENCH_ARGS=--probe: what updates give away, PROBE.md
	@echo "==> python -m benchmarks.privacy.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.privacy.run $(BENCH_ARGS)

bench-demo: setup-demo  ## run the demo with three seeds (minutes); writes benchmarks/demo/ and the table of README
	@echo "==> python -m benchmarks.demo.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.demo.run $(BENCH_ARGS)

bench-faults: setup-demo  ## measure what a running study survives and how soon it goes on (a quarter of an hour); writes benchmarks/faults/RESULTS.md
	@echo "==> python -m benchmarks.faults.run $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.faults.run $(BENCH_ARGS)

soak: setup-demo  ## let a study run through faults for MINUTES (120), and measure whether anything grows; writes benchmarks/faults/SOAK.md
	@echo "==> python -m benchmarks.faults.soak --minutes $(or $(MINUTES),120) $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.faults.soak --minutes $(or $(MINUTES),120) $(BENCH_ARGS)

bench-papers-small: setup-demo  ## run a paper's central comparison at a small scale: PAPER=semifl|fedmatch|fedmix|fed_shvr (all when left out); writes benchmarks/papers/RESULTS.md
	@echo "==> python -m benchmarks.papers.run $(PAPER) $(BENCH_ARGS)" >&2
	@$(BIN)/python -m benchmarks.papers.run $(PAPER) $(BENCH_ARGS)

lint: setup build/protos/.made  ## check style, types, layers, protos, and that what is generated is current
	@echo "==> ruff, mypy, layers, buf, generated code and lists" >&2
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/buf lint protos
	build/protos/bin/python protos/generate.py --check
	$(BIN)/python -P docs/list_modules.py --check
	$(BIN)/python -P docs/list_methods.py --check
	$(BIN)/python -P docs/draw_sequences.py --check
	$(BIN)/hadolint deploy/*.Dockerfile
	$(BIN)/shellcheck deploy/install.sh

lint-deploy: $(VENV)/.semisilo-deploy  ## check deploy/ with Compose, Helm, the schemas of Kubernetes, and systemd where it is
	@echo "==> what others' tools say to deploy/" >&2
	$(BIN)/python -m pytest tests/test_deploy.py tests/test_deploy_linters.py $(PYTEST_ARGS)

docs: setup  ## update the generated parts of docs/: modules, references of methods, sequence diagrams
	$(BIN)/python -P docs/list_modules.py
	$(BIN)/python -P docs/list_methods.py
	$(BIN)/python -P docs/draw_sequences.py

pictures: setup  ## take the screenshots of the documentation anew, from a demo federation (five minutes; needs Chromium)
	@$(BIN)/python -P docs/take_pictures.py

site: setup docs  ## build the documentation as a site that works offline: build/site/index.html
	@echo "==> mkdocs build" >&2
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "$(CURDIR)/build/site/index.html"

protos: build/protos/.made  ## write common/wire/ anew from protos/
	build/protos/bin/python protos/generate.py

clean:  ## remove the environment, caches and what builds and the demo have left
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. Each stamp is written last, so that an interrupted installation is done again.

$(VENV)/.made:
	@set -e; \
	for candidate in $(PYTHON) $(if $(PYTHON),,python3 python3.13 python3.12 python3.11); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        found=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	    echo "error: no Python >= 3.11 with the modules venv and ensurepip was found$(if $(PYTHON), as $(PYTHON))." >&2; \
	    echo "       Install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi; \
	echo "==> making $(VENV) with $$($$found --version)" >&2; \
	"$$found" -m venv $(VENV)
	@touch $@

$(VENV)/.semisilo: pyproject.toml | $(VENV)/.made
	@echo "==> installing semisilo and what it needs into $(VENV) (the first time this fetches torch, which is large)" >&2
	$(INSTALL) --editable .
	@$(BIN)/python -P -c '$(IMPORTED)'
	@touch $@

$(VENV)/.semisilo-dev: pyproject.toml | $(VENV)/.made
	@echo "==> installing semisilo and the tools of development into $(VENV) (the first time this fetches torch, which is large)" >&2
	$(INSTALL) --editable '.[dev]'
	@$(BIN)/python -P -c '$(IMPORTED)'
	@touch $(VENV)/.semisilo $@

$(VENV)/.semisilo-deploy: $(VENV)/.semisilo-dev
	@echo "==> installing Compose, Helm and the schemas of Kubernetes into $(VENV)" >&2
	$(INSTALL) --editable '.[deploy]'
	@touch $@

$(VENV)/.semisilo-fuzz: $(VENV)/.semisilo-dev
	@echo "==> installing the fuzzer into $(VENV)" >&2
	$(INSTALL) --editable '.[fuzz]'
	@touch $@

# The oldest versions of all packages, and the newest tools. setuptools: Triton of an old torch imports it, and a newer
# one does not like that under pytest.

build/oldest/.made: pyproject.toml | $(VENV)/.made
	@echo "==> installing the oldest packages that pyproject.toml permits into build/oldest" >&2
	@rm -rf build/oldest && mkdir -p build
	$(BIN)/python -m venv build/oldest
	build/oldest/bin/python -m pip install uv
	echo 'setuptools<80' >build/oldest/constraints.txt
	build/oldest/bin/uv pip compile --quiet --resolution lowest-direct --extra all --constraint build/oldest/constraints.txt pyproject.toml --output-file build/oldest/packages.txt
	build/oldest/bin/python -m pip install --no-compile --requirement build/oldest/packages.txt \
	    httpx hypothesis import-linter pytest pytest-timeout pytest-xdist pyyaml
	build/oldest/bin/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $@

# The compiler of the protos, in an environment of its own: it wants an older protobuf than the other tools.

build/protos/.made: protos/requirements.txt | $(VENV)/.made
	@echo "==> installing the compiler of the protos into build/protos" >&2
	@rm -rf build/protos && mkdir -p build
	$(BIN)/python -m venv build/protos
	build/protos/bin/python -m pip install --requirement protos/requirements.txt
	@touch $@

# The peers of the benchmark, each in an environment of its own; used again while their requirements stay the same.

build/peers/%/.made: benchmarks/wire/requirements-%.txt | $(VENV)/.made
	@echo "==> installing $* into build/peers/$*" >&2
	@rm -rf build/peers/$* && mkdir -p build/peers
	$(BIN)/python -m venv build/peers/$*
	build/peers/$*/bin/python -m pip install --requirement $<
	@touch $@
