"""``nooom.load``: a row for each phase, typed columns, unknown as <NA>, and one line for what is no measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nooom
from nooom.benchmarks.frame import FIGURES, VERSIONS, as_frame, case_of
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase

CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="lora", batch=2, seq=64, checkpointing=True)


def measurement(**change: Any) -> Measurement:
    facts: dict[str, Any] = dict(case_id=CASE.case_id(), case=CASE.to_dict(), source="measured", device="cuda")
    facts |= dict(status="ok", gpu={"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864})
    facts |= dict(phases=[Phase(name="load", peak_allocated_bytes=5), Phase(name="backward", seconds=0.5)])
    facts |= dict(fingerprint={"torch": "2.13.0", "peft": None})
    return Measurement(**(facts | change))


def write(path: Path, *records: Measurement) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record.to_json()) + "\n" for record in records))
    return path


def test_every_flag_and_figure_is_a_column_by_its_name(tmp_path: Path) -> None:
    table = nooom.load(write(tmp_path / "measurements.jsonl", measurement()))
    assert {"case_id", "source", "device", "gpu", "status", "phase", *FLAGS, *FIGURES, *VERSIONS} <= set(table)
    assert list(table["phase"]) == ["load", "backward"]
    assert list(table["line"]) == [1, 1]
    first = table.iloc[0]
    assert (first["model"], first["batch"], first["checkpointing"]) == (CASE.model, 2, True)
    assert (first["gpu"], first["gpu_total_bytes"]) == ("NVIDIA A100-SXM4-80GB", 85_100_068_864)


def test_unknown_is_not_available_and_never_zero(tmp_path: Path) -> None:
    table = nooom.load(write(tmp_path / "measurements.jsonl", measurement()))
    assert table["peak_allocated_bytes"].tolist() == [5, pd.NA]
    assert table["peak_reserved_bytes"].isna().all()
    assert pd.isna(table["peft"].iloc[0])
    assert table["torch"].iloc[0] == "2.13.0"


def test_bytes_stay_integers_beyond_what_a_double_holds(tmp_path: Path) -> None:
    size = (1 << 53) + 1
    table = nooom.load(write(tmp_path / "m.jsonl", measurement(phases=[Phase(name="load", peak_allocated_bytes=size)])))
    assert table["peak_allocated_bytes"].iloc[0] == size


def test_a_record_without_phases_has_one_row(tmp_path: Path) -> None:
    table = nooom.load(write(tmp_path / "measurements.jsonl", measurement(status="oom", phases=[])))
    assert len(table) == 1
    assert table["status"].iloc[0] == "oom"
    assert pd.isna(table["phase"].iloc[0])


def test_a_folder_is_every_journal_under_it_and_a_case_measured_twice_is_two_records(tmp_path: Path) -> None:
    write(tmp_path / "a" / "measurements.jsonl", measurement())
    write(tmp_path / "b" / "measurements.jsonl", measurement(), measurement(source="emulated"))
    table = nooom.load(tmp_path)
    assert table.groupby("record").size().tolist() == [2, 2, 2]
    assert set(table["source"]) == {"measured", "emulated"}


def test_a_row_gives_its_case_back() -> None:
    table = as_frame([measurement()])
    first: Any = table.iloc[0]
    assert case_of(dict(first.items())) == CASE
    assert case_of(first.to_dict()) == CASE
    row: Any = next(table.itertuples())
    assert case_of(row._asdict()) == CASE


@pytest.mark.parametrize(
    ("name", "says"), [("nothing", "no such file or folder"), ("folder", "no measurements.jsonl"), ("empty", "no meas")]
)
def test_nothing_to_read_is_an_error_that_says_where(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "measurements.jsonl").write_text("")
    with pytest.raises(UsageError, match=f"{name}: {says}"):
        nooom.load(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"phases": [Phase(name="load"), Phase(name="load")]}, "phase 'load' stands there twice"),
        ({"phases": [Phase(name="\x1b[31m")]}, r"name of a phase is '\\x1b\[31m', which is not printable"),
        ({"gpu": {"name": "a\nb"}}, r"name of the gpu is 'a\\nb', which is not printable"),
        ({"fingerprint": {"torch": "\0"}}, r"version of torch is '\\x00', which is not printable"),
    ],
)
def test_what_no_table_can_show_is_refused_with_its_place(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = write(tmp_path / "measurements.jsonl", measurement(), measurement(**change))
    with pytest.raises(UsageError, match=rf"measurements\.jsonl:2: {says}"):
        nooom.load(path)
