# lattice: `make chat` talks to a model, `make test` tests. GNU make 3.81 (macOS) and POSIX sh suffice.
#
# PYTHON=/path/to/python3.13   the interpreter `.venv` is made with (default: the first of python3, python3.13, ...
#                              that is 3.11 or newer)
# EXTRA=cpu|cuda12|cuda13      MLX's back end on Linux (default: what fits this machine)
# ARGS="..."                   given to the command behind `chat`, `serve`, `bench` and to pytest

ifeq ($(origin EXTRA),undefined)
EXTRA := $(shell sh scripts/venv.sh extra)
endif
VENV := .venv
RUN := $(VENV)/.run-$(EXTRA)
DEV := $(VENV)/.dev-$(EXTRA)
BIN := $(VENV)/bin
export EXTRA PYTHON VENV

.PHONY: help chat serve bench test test-all check format docs wheel clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' Makefile

# NOTE: greedy, because a 4-bit model of 135 million parameters finds Paris about one time in four at the usual
# temperature of 0.7. ARGS come later and so win.
chat: $(RUN) ## talk to a model in the terminal
	@exec $(BIN)/lattice chat --temperature 0 $(ARGS)

serve: $(RUN) ## answer OpenAI clients on port 11435
	@exec $(BIN)/lattice serve $(ARGS)

bench: $(RUN) ## measure this machine with smollm2-135m
	@exec $(BIN)/lattice bench speed --model smollm2-135m $(ARGS)

test: $(DEV) ## the tests, at most ten minutes on two cores
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-all: $(DEV) ## every test with full counts
	$(BIN)/python -m pytest $(ARGS)

check: $(DEV) ## formatting, lint, types and the matrix's proofs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict lattice_cli
	$(BIN)/python scripts/matrix.py

format: $(DEV) ## rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DEV) ## rewrite docs/reference from --help
	$(BIN)/python scripts/reference.py docs/reference

wheel: $(DEV) ## build the wheel into dist/, with the compiled kernels where a compiler is
	$(BIN)/python scripts/wheel.py dist

clean: ## remove .venv and everything built or cached here
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh run

$(DEV): pyproject.toml scripts/venv.sh
	@sh scripts/venv.sh dev
