# Two commands do everything: make demo, make test. Both set up what is missing first.
SHELL := /bin/bash
VENV := .venv/bin
export PYTHON

.PHONY: setup demo test unit lint peers clean

setup:            ## make .venv with everything, once
	@bash .ci/setup

demo: setup       ## two regions up, a tour in six languages, failures, all down (KEEP=1 leaves them up)
	@$(VENV)/grix demo $(if $(KEEP),--keep,)

test: setup       ## every test, on real regions where it matters: these in one process, all others in a second one
	@$(VENV)/python -m pytest -n 2 --dist loadscope --hypothesis-profile=thorough

unit: setup       ## tests that need no region, two at a time: under a minute
	@$(VENV)/python -m pytest -n 2 --dist worksteal tests/unit tests/properties

lint: setup       ## ruff, layers, types
	@$(VENV)/ruff check --no-cache .
	@$(VENV)/lint-imports
	@$(VENV)/mypy

peers:            ## other gateways for the benchmark, into .venv-peers (optional)
	@bash .ci/peers

clean:            ## take a region of this folder down, remove what was made here
	@if [ -x $(VENV)/grix ]; then $(VENV)/grix down; fi
	rm -rf .venv .venv-peers .grix .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache tests/e2e/node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
