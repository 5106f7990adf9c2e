# Everything runs in a virtual environment of its own, made on first use; nothing is installed elsewhere.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# What a torch wheel without CUDA needs differs by machine; TORCH=... replaces the pinned version.
TORCH ?= $(shell grep -m1 '^torch==' constraints.txt)
CONSTRAINTS ?= -c constraints.txt
EXTRAS ?= dev

# Tests use one thread each, so as many processes as cores.
WORKERS ?= auto
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8

# `make play SEED=2` trains another draw of weights and graphs.
SEED ?= 5

.PHONY: setup demo play test lint suite check first-cases test-newest test-oldest hashes slow docs docs-tools docs-test notebooks bench gpu clean

setup: $(VENV)/.ready

# What README.md's commands need: the core, and a server for the page.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(0 if sys.version_info >= (3, 11) else 'statewise needs Python 3.11 or newer')"
	@echo 'Installing into $(VENV): PyTorch (200 MB; with CUDA several GB), statewise and what it needs. This takes minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[serve]'
	touch $@

$(VENV)/.ready: $(VENV)/.core
	@echo 'Installing the extras $(EXTRAS) for all commands and tests.'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	touch $@

# Three small trained models in the browser, at once; then it offers to train them here.
demo: $(VENV)/.core
	$(BIN)/statewise demo

# The models that `statewise demo --train` leaves, in the browser; trained where they are missing.
play: $(VENV)/.core
	test -f runs/demo/report/table.md || $(BIN)/statewise demo --train --seed $(SEED)
	$(BIN)/statewise playground runs/demo/next-token runs/demo/next-latent runs/demo/belief-state

# Linters run beside the tests. A process that has no file left takes over half of another one's tests.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint suite

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

suite: setup
	$(PYTEST) --dist worksteal

# The inner loop: linters, and the first case of each test of the rooms below the command line that starts no other process.
check: setup
	@$(MAKE) --no-print-directory -j 2 lint first-cases

WHOLE = cli experiments deploy reporting analysis training/test_kill.py training/test_sharding.py training/test_rows.py backbones/test_hub.py \
    config/test_registry.py strips/planning $(patsubst tests/%,%,$(filter-out tests/test_architecture.py,$(wildcard tests/test_*.py)))
first-cases: setup
	$(PYTEST) --dist worksteal --one-case $(WHOLE:%=--ignore tests/%)

# The suite with the newest versions of all dependencies but torch, whose newest wheel may need CUDA.
test-newest:
	rm -rf .venv-newest
	$(MAKE) suite VENV=.venv-newest CONSTRAINTS= EXTRAS=dev,eval,track

# The suite with each direct dependency at its lower bound. On Linux, that torch brings CUDA: several GB.
test-oldest:
	rm -rf .venv-oldest
	mkdir .venv-oldest
	$(PYTHON) tools/lower_bounds.py > .venv-oldest/lower-bounds.txt
	$(MAKE) suite VENV=.venv-oldest CONSTRAINTS='-c .venv-oldest/lower-bounds.txt' EXTRAS=dev,eval,track \
	    TORCH="$$(grep '^torch==' .venv-oldest/lower-bounds.txt)"

# The pins of constraints.txt with hashes, after a change of either file; without torch, whose wheel differs by machine.
hashes: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	echo '# Made by `make hashes` from constraints.txt; CONTRIBUTING.md says how to install it.' > requirements-hashed.txt
	echo "torch; sys_platform == 'none'" > $(VENV)/without.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev --constraint constraints.txt --generate-hashes \
	    --overrides $(VENV)/without.txt --python-version 3.11 --no-header --no-annotate --quiet >> requirements-hashed.txt

slow: setup
	$(BIN)/python -m pytest -m slow --timeout 7200

# The documentation as a site, without a network: open site/index.html. With the notebooks that `make notebooks` made.
docs: docs-tools
	$(BIN)/python tools/site/build.py

# The tutorials as notebooks, run from their first cell to the last. It trains: five minutes of one core.
notebooks: docs-tools
	$(BIN)/python tools/site/notebooks.py

# What the pages show: all commands, code, examples and notebooks, and the site. tests/test_guides.py names what is not run, and why.
docs-test: docs-tools
	$(PYTEST) -m 'slow or not slow' --timeout 7200 $(addprefix tests/test_,docs.py guides.py examples.py theory.py site.py notebooks.py)

docs-tools: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[$(EXTRAS),docs]'

bench: setup
	$(BIN)/python benchmarks/run_all.py

# What only a GPU can show: figures and a page under runs/gpu; a second call continues. See benchmarks/gpu/run.py.
# `make gpu GPU="--only solve"` measures solve rates of star graphs alone, GPU="--text stories.txt" also two streams of size XS.
gpu: setup
	$(BIN)/python benchmarks/gpu/run.py $(GPU)

clean:
	rm -rf $(VENV) .venv-newest .venv-oldest site .mypy_cache .pytest_cache .ruff_cache .hypothesis
