# `make run` is the first thing to try, `make test` the second. Everything happens in .venv; delete it to start over.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
PROMPT ?= Once upon a time
PACKAGES := $(wildcard aethermind-*/pyproject.toml) pyproject.toml constraints.txt
SOURCES := $(shell find aethermind-*/src aethermind-cpu/csrc -type f -not -name '*.pyc' 2>/dev/null)

.PHONY: run install test test-env native-test sanitize coverage lint format clean bench

run: install
	$(BIN)/aethermind generate "$(PROMPT)"

install: $(VENV)/.installed
test-env: $(VENV)/.installed-dev

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit("AetherMind needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/pip requirements.txt $(PACKAGES) $(SOURCES)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt $(wildcard examples/*/pyproject.toml)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ $(VENV)/.installed

test: test-env native-test
	$(BIN)/python -m pytest

coverage: test-env
	$(BIN)/python -m coverage run -m pytest -q $(wildcard $(addprefix tests/core/,cache config dispatch engine graph sampling text))
	$(BIN)/python -m coverage report

native-test: NATIVE_BUILD := build/native
sanitize: NATIVE_BUILD := build/sanitize
sanitize: NATIVE_OPTIONS := -DAETHER_SANITIZE=ON
native-test sanitize: test-env
	@$(BIN)/cmake -S aethermind-cpu -B $(NATIVE_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DAETHER_TESTS=ON $(NATIVE_OPTIONS) \
		-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
		-Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) > /dev/null
	@$(BIN)/cmake --build $(NATIVE_BUILD) --target native_tests
	$(BIN)/ctest --test-dir $(NATIVE_BUILD) --output-on-failure --no-tests=error

bench: test-env
	$(BIN)/python -m pytest tests/bench -s -q -o python_files='bench_*.py' -o python_functions='bench_*'

lint: test-env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/architecture
	$(BIN)/clang-format --dry-run --Werror $$(find aethermind-*/csrc aethermind-core/src -name '*.h' -o -name '*.cc')

format: test-env
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(find aethermind-*/csrc aethermind-core/src -name '*.h' -o -name '*.cc')

clean:
	rm -rf $(VENV) build aethermind-*/build .pytest_cache .mypy_cache .ruff_cache
