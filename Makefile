# Every target sets up .venv first, by itself, when it is missing or requirements.lock has changed.
.DEFAULT_GOAL := help
.PHONY: help setup demo test image test-cluster lint check bench lock clean
.NOTPARALLEL:

CONFIG ?= apex_cartpole
SELECT ?= not big
RUN := .venv/bin/python

setup: ## make .venv with Python 3.10 and the packages of requirements.lock (PYTHON=... names an interpreter)
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

demo: setup ## launch a program on this machine and watch it learn (CONFIG=apex_cartpole, ARGS="--set field=value")
	@$(RUN) -m launch.local --config=$(CONFIG) $(ARGS)

test: setup ## run the tests (SELECT="not big" is a pytest marker expression; ARGS=tests/replay or more of pytest's)
	@$(RUN) -m pytest -m "$(SELECT)" $(ARGS)

image: ## build the container image `antiphon` with podman (BUILD="..." for its options, e.g. -v of a package mirror)
	@podman build --tag antiphon $(BUILD) .

test-cluster: setup image ## run rendered manifests as containers on a podman network, and hurt them (as root; minutes)
	@$(RUN) -m pytest -m cluster tests/cluster $(ARGS)

lint: setup ## check format, lint, types and which folder imports which
	@$(RUN) -m ruff format --check .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy .
	@$(RUN) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"
	@.venv/bin/hadolint Dockerfile

check: lint ## lint, and the tests that are fast
	@$(RUN) -m pytest -m "not slow and not big" $(ARGS)

bench: setup ## measure throughput (ARGS="--help" lists what can be measured)
	@$(RUN) -m benchmarks.run $(ARGS)

lock: setup ## write requirements.lock anew from pyproject.toml (UPGRADE=1 moves every version that may move)
	@UPGRADE="$(UPGRADE)" sh scripts/lock.sh

clean: ## remove .venv and every cache; runs/ stays
	@rm -rf .venv .venv-tools build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './runs/*' -prune -exec rm -rf {} +

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
	  printf '  make %-12s %s\n' "$$target" "$$text"; done
