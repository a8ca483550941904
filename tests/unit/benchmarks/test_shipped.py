"""What ships in results/ is what the commands make of the measurements that ship, and README quotes it rightly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nooom.benchmarks.commands.calibrate import tables
from nooom.benchmarks.reports.calibration import write
from nooom.benchmarks.shipped import MEASUREMENTS
from nooom.benchmarks.verdicts import verdicts

ROOT = Path(__file__).resolve().parents[3]
CALIBRATION = ROOT / "results" / "calibration"


def test_the_calibration_is_what_the_measurements_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for table in tables([Path("results/measured"), Path("results/demo")]):
        write(table, tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("constants.*")}
    kept = {path.relative_to(CALIBRATION): path.read_text() for path in CALIBRATION.rglob("constants.*")}
    assert made == kept, "make calibration-results"
    assert {path.parts[0] for path in kept} >= {"cpu", "a100-80gb"}


def test_what_the_cpu_measured_is_never_called_a_gpus() -> None:
    for path in CALIBRATION.rglob("constants.json"):
        table = json.loads(path.read_text())
        on_cpu = path.relative_to(CALIBRATION).parts[0] == "cpu"
        assert table["evidence"] == ("measured on cpu" if on_cpu else "measured on cuda")


def test_readme_quotes_the_fit_to_a_cache_that_is_held_twice() -> None:
    (path,) = CALIBRATION.glob("a100-80gb/*transformers-4.35.2*/constants.json")
    table = json.loads(path.read_text())
    (cache,) = [one for one in table["constants"] if (one["name"], one["phase"]) == ("kv_values", "peak")]
    (fit,) = [one for one in table["fits"] if one["phase"] == "peak"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    said = (
        f"the cache's factor of {cache['article']:g} becomes {cache['fitted']:.2f} and the median error falls from "
        f"{fit['median_abs_error_before']:.1%} to {fit['median_abs_error_after']:.1%}"
    )
    assert said.replace("%", " %") in readme


def test_readme_counts_the_claims() -> None:
    found = verdicts()
    broken = sum(verdict.broken for verdict in found)
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"are tested one by one: {len(found)}, of which {broken} are broken" in readme


def test_every_measurement_that_ships_is_found() -> None:
    assert all(folder.is_dir() for folder in MEASUREMENTS)
