"""The demonstration that is committed: what upgrading transformers costs, by the tensor, and README's part of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nooom.benchmarks.models.zoo import resolve
from nooom.benchmarks.reports.gate.publish import BEGIN, END, excerpt
from nooom.benchmarks.reports.markers import between
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
FOLDER = RESULTS / "library-upgrade"


def test_it_found_one_more_bf16_copy_of_the_logits() -> None:
    report = json.loads((FOLDER / "report.json").read_text())
    (row,) = [row for row in report["rows"] if row["state"] == "regression"]
    assert (row["case"], row["phase"], row["evidence"]) == ("Qwen2.5-0.5B sft 1x1024", "forward", "emulated on phantom")
    vocabulary = resolve("Qwen/Qwen2.5-0.5B").config["vocab_size"]
    copy_bytes = 1 * 1024 * vocabulary * 2
    grew = {(one["kind"], one["name"]): one["change_bytes"] for one in row["grew"]}
    assert grew["component", "logits"] == copy_bytes
    assert grew["tensor", f"logits bfloat16 [1024, {vocabulary}] by aten.mm.default of lm_head"] == copy_bytes
    # What hides most of it: the tables of rotary embeddings, cosines and sines in bf16 for every layer, are gone.
    config = resolve("Qwen/Qwen2.5-0.5B").config
    tables = 2 * config["num_hidden_layers"] * config["max_position_embeddings"] * 64 * 2
    assert -grew["component", "parameters"] == pytest.approx(tables, rel=1e-4)
    assert row["suspects"] == ["transformers 4.44.2 -> 4.48.3"]
    assert sum(size for (kind, _), size in grew.items() if kind == "component") == row["change_bytes"]


def test_readme_shows_what_the_command_printed() -> None:
    readme = (ROOT / "README.md").read_text()
    assert between(readme, BEGIN, END, excerpt((FOLDER / "shown.txt").read_text())) == readme


def test_a_text_without_the_markers_is_refused() -> None:
    with pytest.raises(UsageError, match="no place for the table"):
        between("nothing", BEGIN, END, "")


def test_its_files_name_the_two_versions() -> None:
    folder = ROOT / "examples" / "library-upgrade"
    named = [(folder / name).read_text().strip() for name in ("before.txt", "after.txt")]
    report = json.loads((FOLDER / "report.json").read_text())
    assert report["about"]["baseline"] == "before.txt"
    assert [line.replace("==", " ").split()[1] for line in named] == ["4.44.2", "4.48.3"]
