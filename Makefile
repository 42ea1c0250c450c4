# Aliases of plain lines; the README shows the lines themselves. A CPU-only Linux machine adds
#   PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=

VENV := .venv
PIP := $(VENV)/bin/pip install --quiet -c constraints.txt $(PIP_FLAGS)

.PHONY: install demo test lint clean

install: $(VENV)/everything.stamp

demo: $(VENV)/product.stamp
	$(VENV)/bin/elinvar demo

test: $(VENV)/everything.stamp lint
	$(VENV)/bin/pytest $(PYTEST_FLAGS)

lint: $(VENV)/everything.stamp
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Editable, so that one .venv serves the demo, the tests and the work on the code.
$(VENV)/product.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

$(VENV)/everything.stamp: $(VENV)/product.stamp
	$(PIP) -e '.[hf,test,dev]'
	touch $@

# Removes what was built, never a run.
clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
