# nooom's own chores.  `make` lists them; each that needs the environment makes or mends it first.

SHELL := /bin/bash

# The Python to make .venv with; empty: the first on the path that is new enough.
PYTHON ?=
# More for pytest, such as "-k case", or "-n 4" where there are four cores.  Two processes are the fastest on two: most
# tests start a command and wait for it, and it imports on one core.  A file's tests share runs, so it goes to one process.
PYTEST_ARGS ?=

export PYTHON

# The environment is .venv, whatever the shell has active and wherever else pip is told to install.
unexport VIRTUAL_ENV PYTHONHOME PIP_TARGET PIP_PREFIX
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV_PYTHON := .venv/bin/python
UPGRADE := examples/library-upgrade

# What `make wheels` takes along: pure Python but for psutil, and without torch and transformers, which are measured.
CARRIED ?= typer rich psutil nvidia-ml-py peft accelerate shellingham click markdown-it-py mdurl pygments

.DEFAULT_GOAL := help
.PHONY: help setup setup-cuda baselines library-upgrade library-upgrade-dry oracle oracle-old oracle-older rehearsal gpu-results wheels demo test test-slow lint format bench wheel demo-results public-results calibration-results accuracy dryrun-results peers claims claims-evidence clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv with everything pinned; mends a half-made or outdated one (PYTHON=... to choose)
	@bash -euo pipefail -c "$$SETUP"

setup-cuda: setup ## Make .venv-cuda: the same with torch's CUDA build (3 GB), which the phantom GPU runs
	@bash -euo pipefail -c "$$SETUP_CUDA"

demo: setup ## Measure the four workloads, on the GPU if there is one, else on the CPU: build/demo
	$(VENV_PYTHON) -m benchmarks run demo --out build/demo
	$(VENV_PYTHON) -m benchmarks validate build/demo
	$(VENV_PYTHON) -m benchmarks calibrate build/demo --out build/demo/calibration

test: setup ## Run the tests (PYTEST_ARGS="-k case")
	$(VENV_PYTHON) -m pytest -m "not slow" -n 2 --dist loadfile $(PYTEST_ARGS)

test-slow: setup ## Run the few tests that take long, one at a time
	$(VENV_PYTHON) -m pytest -m slow $(PYTEST_ARGS)

lint: setup typed-tree ## Check style, format and types; changes nothing
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	cd build/typed && ../../$(VENV_PYTHON) -m mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache nooom tests

format: setup ## Format the code and mend what ruff can
	$(VENV_PYTHON) -m ruff check --fix
	$(VENV_PYTHON) -m ruff format

bench: setup ## How long the command's own work takes, as ratios: results/bench.md
	$(VENV_PYTHON) tests/bench.py

wheel: setup ## Build the wheel: dist/
	$(VENV_PYTHON) -m build --wheel --no-isolation --outdir dist

demo-results: setup ## Measure results/demo, which README shows, anew
	rm -rf build/demo-results
	$(VENV_PYTHON) -m benchmarks run demo --device cpu --out build/demo-results
	$(VENV_PYTHON) -m nooom.benchmarks.reports.publish build/demo-results results/demo README.md

public-results: setup ## Make results/measured/public anew from its manifest of published figures
	$(VENV_PYTHON) -m nooom.benchmarks.published results/measured/public

calibration-results: setup ## Fit results/calibration to the measurements that ship
	rm -rf results/calibration
	$(VENV_PYTHON) -m benchmarks calibrate results/measured results/demo

dryrun-results: setup ## Dry-run what the oracle recorded, beside it: results/dryrun (half an hour; goes on where it was stopped)
	$(VENV_PYTHON) -m nooom.benchmarks.dry_run_against_emulated results

accuracy: setup ## Dry-run what others published: results/accuracy.md (three minutes; goes on where it was stopped)
	$(VENV_PYTHON) -m nooom.benchmarks.accuracy results README.md

# Others' estimators lie beside .venv, not in it: some want versions of what .venv pins that nooom can't use.
peers: setup build/peers/.complete ## Hold others' estimators against the published measurements: results/peers.md
	PYTHONPATH=$(CURDIR)/build/peers $(VENV_PYTHON) -m nooom.benchmarks.reports.peers results/measured/public results README.md

build/peers/.complete: benchmarks/estimators/peers.txt | setup
	rm -rf build/peers
	$(VENV_PYTHON) -m pip install --no-deps --no-build-isolation --target build/peers -r $<
	touch $@

claims: setup ## Judge the article's claims by the committed evidence: docs/claims.md
	$(VENV_PYTHON) -m nooom.benchmarks.verdicts docs/claims.md

claims-evidence: setup ## Count operations and ask for defaults, for the claims: results/claims
	$(VENV_PYTHON) -m nooom.benchmarks.flops results/claims/flops.json
	$(VENV_PYTHON) -m nooom.benchmarks.defaults results/claims/defaults.json

oracle: setup-cuda ## Record the oracle's grid on phantom GPUs: results/emulated (half an hour; goes on where it was stopped)
	.venv-cuda/bin/python -m nooom.benchmarks.oracle results/emulated
	$(VENV_PYTHON) -m nooom.benchmarks.emulated_against_published results/emulated
	$(VENV_PYTHON) -m nooom.benchmarks.hidden_allocations results

rehearsal: setup-cuda ## Play the GPU campaign through on phantom GPUs: results/rehearsal.md (half an hour)
	rm -rf build/rehearsal
	$(VENV_PYTHON) -m nooom.benchmarks.campaign.rehearsal results

# What upgrading transformers costs, on a phantom: the first check makes two environments, a minute each.
library-upgrade: setup-cuda ## Check a library's upgrade on a phantom GPU: results/library-upgrade
	rm -rf build/library-upgrade && mkdir -p build/library-upgrade
	.venv-cuda/bin/python -m nooom check $(UPGRADE)/suite.toml --device phantom --gpu a100-80gb --out build/library-upgrade/check \
	    --env $(UPGRADE)/before.txt --env $(UPGRADE)/after.txt > build/library-upgrade/shown.txt || [ $$? -eq 1 ]
	$(VENV_PYTHON) -m nooom.benchmarks.reports.gate.publish build/library-upgrade/check build/library-upgrade/shown.txt results/library-upgrade README.md

library-upgrade-dry: setup ## The same check as a dry run, which needs no CUDA build of torch: build/library-upgrade-dry
	rm -rf build/library-upgrade-dry
	$(VENV_PYTHON) -m nooom check $(UPGRADE)/suite.toml --device dryrun --gpu a100-80gb --out build/library-upgrade-dry \
	    --env $(UPGRADE)/before.txt --env $(UPGRADE)/after.txt || [ $$? -eq 1 ]

# This project's own gate: tests/phantom/test_check.py holds the workloads against it.
baselines: setup-cuda ## Measure results/baselines, on a phantom GPU, anew: from a clean tree alone
	rm -rf build/baselines
	.venv-cuda/bin/python -m nooom run smoke --device phantom --gpu a100-80gb --attribute --out build/baselines
	.venv-cuda/bin/python -m nooom baseline update build/baselines --suite smoke --to results/baselines

# DIR: outputs of runs on a GPU.  EMULATED: outputs of the same runs on phantoms.  REHEARSAL=1: DIR's are of phantoms too.
gpu-results: setup ## Turn a campaign's outputs into committed results (DIR="a b", EMULATED="c", REHEARSAL=1)
	$(VENV_PYTHON) -m nooom.benchmarks.campaign.results $(DIR) $(addprefix --emulated ,$(EMULATED)) $(if $(REHEARSAL),--rehearsal)

wheels: setup ## Download what a machine with a GPU and no network may lack, to carry there: build/wheels
	$(VENV_PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --dest build/wheels -c constraints.txt $(CARRIED)

oracle-old: setup .venv-old/.complete build/transformers-4.46/.complete ## Play published runs in the versions of their time: results/emulated/published.jsonl, as_run.jsonl
	PYTHONPATH=$(CURDIR) .venv-old/bin/python -m nooom.benchmarks.old results/emulated/published.jsonl
	PYTHONPATH=$(CURDIR)/build/transformers-4.46:$(CURDIR) .venv-old/bin/python -m nooom.benchmarks.old.speed results/emulated/as_run.jsonl
	$(VENV_PYTHON) -m nooom.benchmarks.emulated_against_published results/emulated

# Its own environment: nooom's workloads need newer versions than these.  Python 3.11 or 3.12: torch 2.4 knows no later one.
.venv-old/.complete: benchmarks/old/requirements.txt | setup
	rm -rf .venv-old
	.venv/bin/python -m venv .venv-old
	@echo "installing torch 2.4's CUDA build in .venv-old (about 5 GB, once)"
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= .venv-old/bin/python -m pip install --quiet -r $<
	touch $@

oracle-older: setup .venv-older/.complete ## Play Llama 2's published runs in the versions of their time: results/emulated/completions.jsonl (ten minutes)
	NOOOM_PHANTOM_ANY_TORCH=1 PYTHONPATH=$(CURDIR) .venv-older/bin/python -m nooom.benchmarks.old.completions results/emulated/completions.jsonl
	$(VENV_PYTHON) -m nooom.benchmarks.emulated_against_published results/emulated

# Python 3.11: torch 2.1 knows no later one.
.venv-older/.complete: benchmarks/old/completions.txt | setup
	rm -rf .venv-older
	.venv/bin/python -m venv .venv-older
	@echo "installing torch 2.1's CUDA build in .venv-older (about 5 GB, once)"
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= .venv-older/bin/python -m pip install --quiet -r $<
	touch $@

# What the published prefills ran on, beside .venv-old: it has the version that the fine-tunings ran on.
build/transformers-4.46/.complete: benchmarks/old/speed.txt .venv-old/.complete
	rm -rf build/transformers-4.46
	PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= .venv-old/bin/python -m pip install --quiet --no-deps --target build/transformers-4.46 -r $<
	touch $@

clean: ## Remove what these commands made, but for .venv, .venv-cuda, .venv-old, .venv-older and measurements
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The tree as a wheel has it, in links, for mypy: docs/decisions/0001-one-import-name.md.
.PHONY: typed-tree
typed-tree:
	@rm -rf build/typed && mkdir -p build/typed/nooom
	@cd build/typed/nooom && ln -s ../../../nooom/* ../../../formulas ../../../profiler ../../../benchmarks .
	@cd build/typed && ln -s ../../tests .

# --- the environment ---------------------------------------------------------------------------------------------
# .venv/.complete holds what .venv was made from; it is removed before anything is installed and written last.  When it
# says what it should and no file is missing, setup has nothing to do.  Otherwise pip brings .venv up to date,
# which leaves a torch that is right alone; only one that doesn't run, or has lost files, is made from nothing.

define SETUP
stamp=.venv/.complete
wanted() { # what .venv is made from: the two files, the Python, and the place (an editable install knows it)
    .venv/bin/python -c "$$IDENTITY"
}
suits() { "$$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; }
choose() { # an interpreter that can make .venv; never .venv's own, which may be what is broken
    local name found names=(python3 python3.13 python3.12 python3.11 python)
    [ -z "$$PYTHON" ] || names=("$$PYTHON")
    for name in "$${names[@]}"; do
        while read -r found; do
            case "$$found" in "$$PWD"/.venv/*) continue ;; esac
            if suits "$$found"; then echo "$$found"; return; fi
        done < <(type -aP -- "$$name" || true)
    done
    name="$${PYTHON:-python3}"
    if ! command -v "$$name" >/dev/null; then
        echo "make: no $$name found; nooom needs Python 3.11, 3.12 or 3.13: make setup PYTHON=/path/to/python3.12" >&2
    elif "$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null; then
        echo "make: $$name has no working venv module; on Debian and Ubuntu: apt install python3-venv" >&2
    else
        echo "make: nooom needs Python 3.11, 3.12 or 3.13, and $$name is $$("$$name" --version 2>&1 | head -1); make setup PYTHON=/path/to/python3.12" >&2
    fi
    return 1
}
create() {
    local python
    python="$$(choose)"
    echo "making .venv with $$("$$python" --version) ($$python)"
    rm -rf .venv
    "$$python" -m venv .venv
}
mend_pip() {
    .venv/bin/python -m pip --version >/dev/null 2>&1 && return
    rm -rf .venv/lib/python*/site-packages/pip .venv/lib/python*/site-packages/pip-*.dist-info
    .venv/bin/python -m ensurepip --upgrade >/dev/null 2>&1
}
check() { .venv/bin/python -c "$$CHECK" "$$@"; }

if ! suits .venv/bin/python; then
    [ ! -e .venv ] || echo ".venv does not run, or has a Python that nooom does not: making it anew"
    create
elif [ "$$(cat "$$stamp" 2>/dev/null)" = "$$(wanted)" ] && check complete; then
    exit 0
elif mend_pip && check undamaged; then
    echo ".venv is unfinished or out of date: bringing it up to date"
else
    echo ".venv is damaged: making it anew"
    create
fi
rm -f "$$stamp"
echo "installing (torch is most of it: up to 3 GB and some minutes, once)"
.venv/bin/python -m pip install -c constraints.txt -e '.[dev]'
check complete
check undamaged
wanted > "$$stamp.new"
mv "$$stamp.new" "$$stamp"
echo ".venv is ready"
endef
export SETUP

# The CUDA build of the torch that .venv has, whatever build this machine's pip prefers, and all else as in .venv.
define SETUP_CUDA
python=.venv-cuda/bin/python
stamp=.venv-cuda/.complete
wanted="$$(.venv/bin/python -c "$$IDENTITY")"
if [ "$$(cat "$$stamp" 2>/dev/null)" = "$$wanted" ] && "$$python" -c 'import torch, sys; sys.exit(not torch.version.cuda)' 2>/dev/null; then
    exit 0
fi
"$$python" -c 'import sys, venv, ensurepip' 2>/dev/null || { rm -rf .venv-cuda; .venv/bin/python -m venv .venv-cuda; }
rm -f "$$stamp"
echo "installing torch's CUDA build in .venv-cuda (about 3 GB, once)"
export PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS=
release="$$(sed -n 's/^torch==//p' constraints.txt)"
"$$python" -m pip install --quiet "torch===$$release"
"$$python" -m pip install --quiet -c constraints.txt -e '.[dev]'
"$$python" -c 'import torch, sys; sys.exit(None if torch.version.cuda else f"torch {torch.__version__} is no CUDA build: there may be none for this system")'
echo "$$wanted" > "$$stamp.new"
mv "$$stamp.new" "$$stamp"
echo ".venv-cuda is ready"
endef
export SETUP_CUDA

define IDENTITY
import hashlib, os, sys
digest = hashlib.sha256(f"{sys.version} {os.getcwd()}".encode())
for name in ("pyproject.toml", "constraints.txt"):
    digest.update(open(name, "rb").read())
print(digest.hexdigest())
endef
export IDENTITY

# complete: all that pyproject.toml names is there, and pip, and no file is missing.
# undamaged: what is there, be it little, is whole; what is not was cut short.
define CHECK
import importlib.metadata, re, sys, tomllib
def lacks(what):
    sys.exit(f".venv lacks {what}")
complete = sys.argv[1] == "complete"
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
for line in ["nooom", "pip", *project["dependencies"], *project["optional-dependencies"]["dev"]] if complete else []:
    name = re.match(r"[\w.-]+", line)[0]
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        lacks(name)
for distribution in importlib.metadata.distributions(path=[path for path in sys.path if path.endswith("site-packages")]):
    if not distribution.metadata["Name"] or distribution.files is None:
        lacks(f"the list of files of {distribution._path.name}")
    for file in distribution.files:
        path = file.locate()
        if file.size is not None and (not path.exists() or not complete and path.stat().st_size != file.size):
            lacks(f"{path}, or has only part of it")
endef
export CHECK
