# One command for each thing one does here; every command sets up what it needs.
# Needs Python 3.11 or newer and a POSIX shell. `make` alone lists the commands.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
DATA ?= .data
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: audit bench bench-openb check clean docs fix help mutants pictures release-check test test-all test-cluster test-long test-versions up

# Skips of these capabilities are failures (tests/capabilities.py): make test RUNAI_REQUIRE=browser,hub
export RUNAI_REQUIRE
# A cluster is touched by the command that is for it, whatever the environment says.
unexport RUNAI_CLUSTER_CONTEXT

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-14s %s\n' "$$name" "$$what"; done

up: $(VENV)/.installed-hub ## start the platform here; the first start installs it (ARGS="--simulate 8")
	@exec $(BIN)/runai up --data-dir $(DATA) $(ARGS)

# Tiers of the suite (tests/tiers.py); each says at its end what it did not play. Second tries in `test-all` alone, where
# real programs wait for a busy machine: each is printed with its trace back (RERUN) and counted. It is a finding all the same.
PYTEST := $(BIN)/python -m pytest -n $(or $(WORKERS),2) --dist loadgroup
RERUNS := --reruns 1 --max-suite-reruns 10 --rerun-exclude-path tests/scheduler --rerun-show-tracebacks
TIERS ?= check,test,all

check: $(VENV)/.installed-dev ## format, lint, types, import contracts, the fast tests: before each commit (4 minutes)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy $(addprefix -p runai.,elastic embedded ga hpo hub_service lab mp profiler reporter spawner utils widgets)
	$(BIN)/mypy --allow-untyped-defs --allow-untyped-calls --allow-incomplete-defs --allow-any-generics --no-warn-unused-ignores tests
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(PYTEST) --tiers check $(ARGS)

test: $(VENV)/.installed-test ## the fast tests, the service, and one test of each mechanism (8 minutes; ARGS="tests/meta -k wheel")
	$(PYTEST) --tiers check,test $(ARGS)

test-all: $(VENV)/.installed-dev ## every test but the long ones, on whatever this machine has (TIERS=all: what test leaves)
	$(PYTEST) --tiers $(TIERS) $(RERUNS) $(ARGS)

test-long: $(VENV)/.installed-dev ## boundaries of the API, 500 seeds of faults, real crashes, fuzzing (hours)
	$(PYTEST) --tiers long --timeout 3600 $(ARGS)

test-versions: | $(BIN)/python ## the tests of `make test` on the lowest and the newest versions of what we depend on
	.ci/versions $(ARGS)

test-cluster: $(VENV)/.installed-dev ## play Bob and Patty on a cluster of yours (RUNAI_CLUSTER_CONTEXT=…; docs/kubernetes_operate.md)
	@test -n '$(RUNAI_CLUSTER_CONTEXT)' || { echo 'Which cluster? RUNAI_CLUSTER_CONTEXT=NAME (kubectl config get-contexts; docs/kubernetes_operate.md)' >&2; exit 2; }
	RUNAI_CLUSTER_CONTEXT='$(RUNAI_CLUSTER_CONTEXT)' RUNAI_REQUIRE=own_cluster $(BIN)/python -m pytest -n0 tests/own_cluster $(ARGS)

mutants: $(VENV)/.installed-dev ## break the scheduler on purpose: does a test fail? (ARGS="'*.scheduler.shares.*'"; hours for all)
	mkdir -p build/mutation && cd build/mutation && ln -sfn ../../.typing src && ln -sfn ../../tests ../../pyproject.toml . && RUNAI_HYPOTHESIS=mutants $(abspath $(BIN))/mutmut run $(ARGS)

bench: $(VENV)/.installed-dev ## measure what users wait for (an idle machine, please); kept in benchmarks/results
	$(BIN)/python benchmarks/user_waits.py

bench-openb: $(VENV)/.installed-dev ## fill Alibaba's cluster as FGD's paper did (a quarter of an hour; ARGS="--data DIR")
	nice -n 19 $(BIN)/python benchmarks/openb.py $(ARGS)

pictures: $(VENV)/.installed-dev ## take the screenshots of docs/ anew, from the browser test
	RUNAI_PICTURES=docs/pictures $(BIN)/python -m pytest tests/e2e/test_readme.py tests/e2e/test_waiting_page.py --tiers all \
		tests/e2e/test_pages.py tests/e2e/test_lab_extension.py tests/e2e/test_panel_buttons.py tests/e2e/test_elastic_job_buttons.py \
		tests/e2e/test_vscode.py

audit: $(VENV)/.installed-dev ## ask for known vulnerabilities of what is installed; says so where nobody can be asked
	@test -x $(VENV)/audit/bin/pip-audit || { $(BIN)/python -m venv $(VENV)/audit && \
		$(VENV)/audit/bin/pip install --quiet --disable-pip-version-check pip-audit; }
	@.ci/audit $(VENV)/audit/bin/pip-audit "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

release-check: | $(BIN)/python ## build sdist and wheel, install them anew, play a job, uninstall (minutes; the network)
	@PYTHON=$(abspath $(BIN))/python .ci/release-check

fix: $(VENV)/.installed-dev ## let ruff repair what it can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/.installed-docs ## write what docs/ takes from the code, and build the site: docs/_build/html
	$(BIN)/python -m runai.hub_service.cli.framework.reference > docs/cli.md
	$(BIN)/python docs/write_reference.py
	$(BIN)/python docs/write_permissions.py
	$(BIN)/python docs/write_play.py
	$(BIN)/python docs/write_gpujob_schema.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'Open docs/_build/html/index.html'

clean: ## remove what make made; .data (accounts, jobs, history) stays
	rm -rf $(VENV) build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'No Python 3.11 or newer found. Install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@echo 'Making $(VENV) with $(PYTHON)'
	@"$(PYTHON)" -m venv $(VENV) || { echo 'Could not make a virtual environment (on Debian: apt install python3-venv).' >&2; rm -rf $(VENV); exit 1; }

# A stamp for each set of dependencies: pip runs again only when pyproject.toml changed, or the
# root folders did: each has its link in .typing/runai.
INSTALLED_FROM := pyproject.toml setup.py .typing/runai
$(VENV)/.installed-hub: $(INSTALLED_FROM) | $(BIN)/python
	@echo 'Installing the platform into $(VENV) (the first time takes a minute or two)'
	$(PIP) install --editable '.[hub]'
	@touch $@

$(VENV)/.installed-docs: $(INSTALLED_FROM) | $(BIN)/python
	@echo 'Installing the service and Sphinx into $(VENV): 80 MB to download'
	$(PIP) install --editable '.[docs]'
	@touch $@

$(VENV)/.installed-test: $(INSTALLED_FROM) | $(BIN)/python
	@echo 'Installing the platform and what its tests need into $(VENV): 180 MB to download'
	$(PIP) install --editable '.[test]'
	@touch $@ $(VENV)/.installed-hub

$(VENV)/.installed-dev: $(INSTALLED_FROM) | $(BIN)/python
	@echo 'Installing the platform, PyTorch, TensorFlow, JAX and the tools into $(VENV): 8 GB on the disk'
	$(PIP) install --editable '.[dev]'
	@touch $@ $(VENV)/.installed-hub $(VENV)/.installed-test $(VENV)/.installed-docs
