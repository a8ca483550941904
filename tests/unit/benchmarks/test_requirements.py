"""What is missing is said in one line, before anything is imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from nooom.benchmarks.requirements import MODULES, missing

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_missing_is_named_as_pip_knows_it() -> None:
    assert missing(lambda module: None if module in ("pynvml", "peft") else object()) == (
        "this Python lacks nvidia-ml-py, peft: install them, or carry them as wheels and put their folder on PYTHONPATH "
        "(docs/campaign.md)"
    )
    assert missing() is None


def test_every_dependency_is_looked_for_but_what_only_plots() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {line.partition(">")[0].strip() for line in listed}
    assert set(MODULES.values()) == names - {"matplotlib"}


def test_the_campaign_says_what_is_missing_before_anything_is_imported() -> None:
    """With no site-packages: as on a machine whose Python has none of it."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "benchmarks", "run", "h100"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.startswith("nooom: this Python lacks typer, rich, ")
    assert "docs/campaign.md" in done.stderr
    assert done.stderr.count("\n") == 1
