"""What answers at once stays quick, as whole commands."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

LORA = ["--model", "Qwen/Qwen2.5-7B", "--workload", "lora", "--batch", "8", "--checkpointing", "--gpu", "h100-80gb"]

USUAL_START_S = 0.012
"""Of a bare Python, on a machine where the limits below were found to leave room."""
COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
"""As users have it: where Python may keep no compiled files, it compiles all of nooom at every start."""


@pytest.mark.alone
@pytest.mark.parametrize(
    ("arguments", "limit_s"),
    [
        (["predict", *LORA, "--by", "article"], 0.4),
        (["predict", *LORA, "--by", "article", "--json"], 0.4),
        (["validate", "--claims", "--json"], 3.0),
    ],
    ids=["predict", "predict as JSON", "validate --claims"],
)
def test_within_its_time(nooom: Any, patience: Any, arguments: list[str], limit_s: float) -> None:
    def seconds() -> float:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        assert nooom(*arguments, env=COMPILED).returncode == 0
        wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        # On an idle machine the two are alike; on a busy one the time on the processor is what the command takes.
        return min(wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    seconds()
    assert any(seconds() < limit_s * patience() * slowness() for _ in range(12))


def slowness() -> float:
    """How much slower than usual this machine starts a Python at this moment: a shared one may be by a factor."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
    return max(1.0, (time.perf_counter() - began) / USUAL_START_S)


def test_at_least_seventy_claims_each_with_a_verdict(nooom: Callable[..., Any]) -> None:
    claims = json.loads(nooom("validate", "--claims", "--json").stdout)["claims"]
    assert len(claims) >= 70
    assert all(claim["verdict"] and claim["why"] for claim in claims)


def test_strict_says_no_where_a_claim_is_broken(nooom: Callable[..., Any]) -> None:
    assert nooom("validate", "--claims", "--strict", "--json").returncode == 1


@pytest.mark.parametrize("module", ["nooom.formulas.article", "nooom.formulas.claims", "nooom.formulas.gpus"])
def test_formulas_load_neither_torch_nor_pandas(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'torch', 'pandas', 'numpy', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_predict_by_the_article_loads_no_table(nooom: Callable[..., Any]) -> None:
    done = nooom("predict", *LORA, "--json", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line}
    assert "nooom.benchmarks.sources" in loaded
    assert not {"pandas", "numpy", "torch", "transformers", "rich.table"} & loaded
