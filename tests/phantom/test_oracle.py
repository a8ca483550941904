"""The oracle's recordings again: cheap cases run anew are what the committed files say, byte for byte."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from nooom.benchmarks.oracle import MADE_WITH
from nooom.benchmarks.shipped import RESULTS
from nooom.benchmarks.suites.suite import as_toml
from nooom.formulas.case import Case

GPU = "a100-80gb"
WANTED = (
    {"workload": "inference", "model": "HuggingFaceTB/SmolLM2-135M", "batch": 4, "seq": 512, "new_tokens": 4},
    {"workload": "inference", "model": "openai-community/gpt2", "batch": 2, "attention": "sdpa-efficient"},
    {"workload": "sft", "model": "HuggingFaceTB/SmolLM2-135M", "batch": 2, "checkpointing": True, "allocator": ""},
    {"workload": "lora", "model": "facebook/opt-125m", "batch": 2, "checkpointing": False},
    {"workload": "grpo", "model": "HuggingFaceTB/SmolLM2-135M", "batch": 8, "reference": "none", "full": False},
)
"""Of the committed cases, the first that has these flags."""


def test_cases_run_anew_are_as_recorded(cuda_python: str, environment: Mapping[str, str], tmp_path: Path) -> None:
    recorded = _recorded(cuda_python)
    chosen = [next(line for line in recorded if _has(line, flags)) for flags in WANTED]
    suites = tmp_path / "suites"
    suites.mkdir()
    (suites / f"{GPU}.toml").write_text(as_toml(Case.from_dict(json.loads(line)["case"]) for line in chosen))
    command = [cuda_python, "-m", "nooom.benchmarks.oracle", str(tmp_path / "out"), "--suites", str(suites)]
    subprocess.run(
        [*command, "--work", str(tmp_path / "work")], cwd=tmp_path, env=dict(environment), check=True, timeout=400
    )
    (written,) = (tmp_path / "out").glob(f"*/{GPU}.jsonl")
    assert written.read_text(encoding="utf-8").splitlines() == sorted(chosen)


def _recorded(python: str) -> list[str]:
    """The committed lines of the torch and transformers that this Python has; skips where there are none."""
    said = "import importlib.metadata as m, torch; print(torch.__version__, m.version('transformers'))"
    found = subprocess.run([python, "-c", said], capture_output=True, text=True, check=True, timeout=120).stdout.split()
    for file in (RESULTS / "emulated").glob(f"*/{MADE_WITH}"):
        versions = json.loads(file.read_text(encoding="utf-8"))["versions"]
        if [versions["torch"], versions["transformers"]] == found:
            return (file.parent / f"{GPU}.jsonl").read_text(encoding="utf-8").splitlines()
    pytest.skip(f"no recordings of torch {found[0]} with transformers {found[1]}: make oracle")


def _has(line: str, flags: Mapping[str, object]) -> bool:
    case = Case.from_dict(json.loads(line)["case"])
    return all((getattr(case, name) or "") == (value or "") for name, value in flags.items())
