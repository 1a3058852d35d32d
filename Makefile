# Two entrances need nothing set up before: `make demo` and `make test`.
PY      ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
SLIM    := $(VENV)/.replay
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help venv system demo test releases pythons check docs paper bench soak packages clean

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

venv: $(STAMP)   ## build .venv with everything
$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install --quiet -e '.[dev]'
	@touch $@

# What a replay needs and no more: no torch, no test tools, and modules compiled as they are first used. Kernels need
# numba alone: they are compiled while pip installs the rest, and `replay` goes on with what is left (ahead.py).
$(SLIM): pyproject.toml
	@test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile numba
	@PYTHONPATH=$(CURDIR):$(CURDIR)/sim $(BIN)/python -m slurm_rl_sim.ahead & \
	echo "$(BIN)/pip install --quiet --no-compile -e ."; $(BIN)/pip install --quiet --no-compile -e .
	@touch $@

system: venv     ## what the integration tests need: Debian packages, and roots with other releases of Slurm
	@./.ci/system-packages
	@./.ci/roots

demo: $(SLIM)       ## replay the bundled trace under the shipped model and the usual policies, and write a report
	$(BIN)/slurm-rl replay traces/hetero.csv.gz --cluster traces/hetero.cluster.json --report out/demo.html
	$(BIN)/slurm-rl replay traces/hetero.csv.gz --policy auto,multifactor,rl:default,sjf-age@user --window 0.3:1

# Three at a time on two processors: tests of real daemons mostly wait.
test: venv system ## all tests (integration included where its parts are present)
	$(BIN)/python -m pytest -n 3 --dist loadfile -q tests

releases: venv system ## all integration tests on all releases of Slurm (make test: all on one, a core on the others)
	$(BIN)/python -m pytest -n 3 --dist loadfile -q --releases all tests/integration/lab tests/integration/live tests/integration/traces tests/lua

pythons: venv system ## unit tests on the Pythons of Debian 13 and testing
	@./.ci/pythons

check: venv      ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy packaging
	$(BIN)/lint-imports

docs: venv       ## the documentation site, in out/site; a broken link fails
	$(BIN)/pip install --quiet -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

paper:           ## the tables of the guides from public traces: make paper TRACES=DIR (docs/studies.md)
paper: $(STAMP)
	$(BIN)/slurm-rl study all $(if $(TRACES),--traces $(TRACES)) --out out/paper

bench: venv      ## speed, as ratios against peers in one run
	$(BIN)/python -m pytest -q -s -m perf tests/perf

soak: venv system ## long integration runs
	$(BIN)/python -m pytest -q -m soak tests/integration tests/unit/telemetry

packages: venv   ## .deb and .rpm in dist/, with compiled kernels; as root, on Debian 12
	@./.ci/system-packages
	$(BIN)/python packaging/build.py --out dist

clean:
	rm -rf $(VENV) out dist .mypy_cache .ruff_cache .pytest_cache
