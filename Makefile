# The newcomer's verbs. Everything happens in .venv; nothing outside this folder is changed, except pip's and the
# tiny checkpoints' caches in your home.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip takes the build of torch that suits this machine: with CUDA 13 on Linux, x86-64 and aarch64 (GB10) alike, which
# runs on the CPU as well; without on macOS. TORCH_INDEX=URL adds another package index to take torch from.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

.PHONY: help demo test check bench format clean

help:
	@echo "make demo    install into $(VENV), make a tiny checkpoint, run two Ray nodes on this machine, write outputs/demo.mp4"
	@echo "make test    install with the development tools and run the whole test suite"
	@echo "make bench   run the benchmarks, write benchmarks/results.json and the README's table"
	@echo "make check   lint, types, import rules, links in the docs"
	@echo "make format  let ruff rewrite the sources"
	@echo "make clean   remove $(VENV), outputs and caches of this folder"

$(BIN)/python:
	@echo "== making $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "expected Python 3.11 or newer, found " + sys.version)'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "== installing splitreel (torch, Ray and diffusers come along: about 6 GB, some minutes)"
	@$(PIP) --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed constraints.txt requirements-dev.txt
	@echo "== installing the development tools"
	@$(PIP) --quiet --constraint constraints.txt --requirement requirements-dev.txt
	@touch $@

demo: $(VENV)/.installed
	@echo "== making a film on two Ray nodes of this machine"
	@$(BIN)/splitreel generate --config examples/demo.yaml --overwrite --output outputs/demo.mp4 \
		--prompt "An alpine lake at sunrise, mist over the water, birds calling." --steps 5 --seed 7
	@echo "== outputs/demo.mp4 is noise with sound: the weights are random. See README.md for the real model."

test: $(VENV)/.installed-dev
	@echo "== running the tests (real Ray nodes, tiny checkpoints, no GPU needed)"
	@$(BIN)/python -m pytest -n 2

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_docs.py

bench: $(VENV)/.installed-dev
	@echo "== running the benchmarks: about half an hour, on a machine that does nothing else"
	@$(BIN)/python benchmarks/run_all.py

format: $(VENV)/.installed-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) outputs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
