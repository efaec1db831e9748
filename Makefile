# One folder, one virtual environment. Every target sets up what it needs.
#
#   make demo      train the same model with and without compression over a thin wire
#   make test      all tests
#   make check     lint, types, import layers
#   make docs      the documentation as a site, in strict mode
#   make install   only the virtual environment

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: install demo test check format docs clean

install: $(STAMP)

# torch comes first and by its exact version: an open range would fetch a CUDA build of gigabytes
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[hf,dev,docs]'
	@touch $@

demo: $(STAMP)
	$(BIN)/thinwire compare --recipes zero3,zero3:compute=fp32,qsdp,zeropp,thin --hosts 4 --ranks 1 \
	  --link 200mbit --steps 12 --also-unshaped --html demo-out/compare.html

test: $(STAMP)
	$(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site demo-out
