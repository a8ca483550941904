"""results/peers.md is what the committed measurements and the estimators give; README shows the same."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from nooom.benchmarks.estimators.registry import ADAPTERS, installed
from nooom.benchmarks.reports import peers
from nooom.benchmarks.reports.peers import ARTICLE, Predictions
from nooom.formulas.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
MEASUREMENTS = RESULTS / "measured" / "public"


@functools.cache
def committed() -> Predictions:
    return Predictions.from_csv((RESULTS / "peers.csv").read_text(encoding="utf-8"))


def test_the_page_is_what_the_predictions_and_the_measurements_give() -> None:
    page = (RESULTS / "peers.md").read_text(encoding="utf-8")
    assert page == peers.as_markdown(committed(), committed().beside(MEASUREMENTS)), "make peers"


def test_readme_shows_the_same_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == peers.with_summary(readme, peers.summary(committed(), committed().beside(MEASUREMENTS)))


@pytest.mark.parametrize("name", [ARTICLE, *ADAPTERS])
def test_the_predictions_are_what_the_source_says_now(name: str) -> None:
    if name != ARTICLE and name not in installed():
        pytest.skip(f"{name} is not installed; make peers puts it into build/peers, for PYTHONPATH")
    now = Predictions.ask(MEASUREMENTS, [name])
    assert now.labels == committed().labels
    assert now.figures[name] == committed().figures[name]


def test_the_file_holds_every_prediction() -> None:
    predictions = Predictions(
        versions={"article": "", "hf-mem": "0.5.6"},
        figures={"article": {"a1": 5, "b2": 7}, "hf-mem": {"b2": 1 << 40}},
        labels={"a1": "one, with a comma", "b2": "two"},
    )
    assert Predictions.from_csv(predictions.as_csv()) == predictions


def test_a_page_without_a_place_is_refused() -> None:
    with pytest.raises(UsageError, match="no place for the table"):
        peers.with_summary("# nooom\n", "|a|\n")
    before, after = f"a\n{peers.BEGIN}\n", f"{peers.END}\nb\n"
    assert peers.with_summary(f"{before}old\n{after}", "|new|\n") == f"{before}|new|\n{after}"


def test_a_page_made_without_all_of_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nooom.benchmarks.estimators.registry.installed", lambda: ("accelerate",))
    with pytest.raises(UsageError, match="not installed here: alloc, deepspeed, hf-mem, hf-vram-calc"):
        peers.everyone()


def test_what_make_peers_installs_is_pinned() -> None:
    lines = (ROOT / "benchmarks" / "estimators" / "peers.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    theirs = {name: number for name, number in committed().versions.items() if name not in (ARTICLE, "accelerate")}
    assert theirs.items() <= pinned.items()
