# Each target is a line or two that a person could type. PYTHON names the Python that makes .venv (3.11 to 3.13).
PYTHON ?= python3
BIN = .venv/bin

.PHONY: install lab test grade notebooks bench docs lint

install: .venv/.installed-test  ## .venv with everything, at the pins of constraints.txt; nothing is done when it is up to date

lab: .venv/.installed-lab  ## check the set-up, then open JupyterLab on START_HERE
	$(BIN)/minipaged lab

test: install  ## ruff, all tests, and every lesson and solution executed and compared
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

grade: .venv/.installed-lab  ## a table of your exercises
	$(BIN)/minipaged grade

notebooks: install  ## exercises from solutions, lessons and solutions executed; ONLY="FILE…" for some, REFRESH=1 to measure again
	$(BIN)/python -m minipaged.course.notebook_tools build $(if $(REFRESH),--refresh) $(ONLY)

bench: install  ## the benchmarks that this machine can run
	$(BIN)/minipaged bench kv
	$(BIN)/minipaged bench attention
	$(BIN)/minipaged bench generate --against transformers
	$(BIN)/minipaged bench paging
	$(BIN)/minipaged bench fragmentation

docs: install  ## a static site of README, lessons and docstrings in build/site
	$(BIN)/python docs/build.py build/site

lint: install  ## style of the code and form of the notebooks
	$(BIN)/ruff check .
	$(BIN)/python -m minipaged.course.notebook_tools lint

.venv/.installed-%: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else 'minipaged needs Python 3.11 to 3.13; this is ' + sys.version.split()[0] + '. Try: make PYTHON=python3.11')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing the pinned packages into .venv: a few minutes the first time."
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$*]'
	touch $@
