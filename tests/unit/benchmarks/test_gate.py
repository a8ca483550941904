"""The gate: every state, every exit code, what is compared with what, and which sets are refused."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import gate
from nooom.benchmarks.journal import FILE_NAME
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase, own_code

MIB = 1 << 20
GIB = 1 << 30
A100 = {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864}
H200 = {"name": "NVIDIA H200", "total_bytes": 150_000_000_000}


def record(seq: int = 128, size: int | None = GIB, **change: Any) -> Measurement:
    case = Case.from_dict(
        {"model": "HuggingFaceTB/SmolLM2-135M", "workload": "sft", "seq": seq, **change.pop("flags", {})}
    )
    facts: dict[str, Any] = dict(case_id=case.case_id(), case=case.to_dict(), source="measured", device="cuda")
    facts |= dict(status="ok", gpu=A100, fingerprint={"torch": "2.13.0"})
    facts |= dict(
        phases=[Phase(name="load", peak_allocated_bytes=5), Phase(name="backward", peak_allocated_bytes=size)]
    )
    return Measurement(**(facts | change))


def failed(status: str, phase: str = "backward", **change: Any) -> Measurement:
    done = [Phase(name="load", peak_allocated_bytes=5)] if phase == "backward" else []
    error = {"kind": status, "message": "it\nended", "phase": phase}
    return record(status=status, error=error, phases=done, **change)


OK, LARGER, SMALLER = record(), record(size=2 * GIB), record(size=GIB // 2)
OOM, CRASHED = failed("oom"), failed("crashed")


@pytest.mark.parametrize(
    ("before", "after", "states", "code", "strict"),
    [
        ([OK], [OK], {"pass": 2}, 0, 0),
        ([OK], [LARGER], {"pass": 1, "regression": 1}, 1, 1),
        ([OK], [SMALLER], {"pass": 1, "improvement": 1}, 0, 0),
        ([OK], [OK, record(256)], {"pass": 2, "new": 1}, 0, 0),
        ([OK, record(256)], [OK], {"pass": 2, "missing": 1}, 1, 1),
        ([OK], [OOM], {"oom": 1}, 1, 1),
        ([CRASHED], [OOM], {"oom": 1}, 1, 1),
        ([OOM], [OOM], {"pass": 1}, 0, 0),
        ([OOM], [failed("oom", "load")], {"oom": 1}, 1, 1),
        ([failed("oom", "load")], [OOM], {"pass": 1}, 0, 0),
        ([OOM], [OK], {"fixed": 1}, 0, 0),
        ([CRASHED], [OK], {"fixed": 1}, 0, 0),
        ([OK], [CRASHED], {"error": 1}, 1, 1),
        ([OK], [failed("timeout")], {"error": 1}, 1, 1),
        ([OK], [failed("killed")], {"error": 1}, 1, 1),
        ([CRASHED], [CRASHED], {"error": 1}, 1, 1),
        ([OK], [OK, failed("crashed", seq=256)], {"pass": 2, "error": 1}, 1, 1),
        ([OK], [OK, failed("oom", seq=256)], {"pass": 2, "oom": 1}, 1, 1),
        ([OK], [record(gpu=H200)], {"not_comparable": 1}, 3, 1),
        ([OK], [record(fingerprint={"torch": "2.14.0"})], {"not_comparable": 1}, 3, 1),
        ([OK], [record(flags={"allocator": "expandable_segments:True"})], {"not_comparable": 1}, 3, 1),
        ([OK], [dataclasses.replace(OK, case_id="0" * 16)], {"not_comparable": 1}, 3, 1),
        ([OK, record(256)], [OK, record(256, gpu=H200)], {"pass": 2, "not_comparable": 1}, 0, 1),
        ([OK, record(256, gpu=H200)], [OK], {"pass": 2, "skipped": 1}, 0, 1),
        ([record(size=None)], [OK], {"pass": 1, "skipped": 1}, 0, 1),
        ([OK], [record(256, gpu=H200)], {"new": 1, "skipped": 1}, 3, 1),
        ([OK], [], {"skipped": 1}, 3, 1),
        ([], [OK], {"new": 1}, 3, 3),
        ([], [], {}, 3, 3),
    ],
)  # fmt: skip
def test_states_and_exit_codes(
    before: Sequence[Measurement], after: Sequence[Measurement], states: dict[str, int], code: int, strict: int
) -> None:
    report = gate.compare(before, after)
    assert {state: count for state, count in report.counts.items() if count} == states
    assert sum(report.counts.values()) == len(report.rows)
    assert report.exit_code() == code
    assert report.exit_code(strict=True) == strict


def test_every_state_is_counted_even_if_none_has_it() -> None:
    assert list(gate.compare([], []).counts) == list(gate.STATES)


def test_the_same_case_on_two_gpus_is_two() -> None:
    on_h200 = record(gpu=H200, size=3 * GIB)
    report = gate.compare([OK, on_h200], [dataclasses.replace(on_h200), LARGER])
    assert [(row.group.gpu, row.state) for row in report.rows if row.phase == "backward"] == [
        ("NVIDIA A100-SXM4-80GB", "regression"),
        ("NVIDIA H200", "pass"),
    ]


def test_worst_first_and_what_grew_most() -> None:
    before = [record(seq) for seq in (1, 2, 3)]
    after = [record(1), record(2, 2 * GIB), record(3, 3 * GIB)]
    rows = gate.compare(before, after).rows
    assert [(row.state, row.label) for row in rows[:2]] == [
        ("regression", "SmolLM2-135M sft 1x3"),
        ("regression", "SmolLM2-135M sft 1x2"),
    ]


def test_cases_are_counted_by_their_worst_phase() -> None:
    report = gate.compare([OK, record(256)], [LARGER, record(256)])
    assert {state: count for state, count in report.cases.items() if count} == {"regression": 1, "pass": 1}


def test_suspects_and_what_grew_stand_beside_what_moved_only() -> None:
    before = record(fingerprint={"torch": "2.13.0", "transformers": "5.17.0"})
    after = record(size=2 * GIB, fingerprint={"torch": "2.13.0", "transformers": "5.24.0"})
    by_phase = {row.phase: row for row in gate.compare([before], [after]).rows}
    assert by_phase["backward"].suspects == ("transformers 5.17.0 -> 5.24.0",)
    assert by_phase["load"].suspects == ()


def test_what_failed_says_where_and_why_in_one_line() -> None:
    (row,) = gate.compare([OK], [OOM]).rows
    assert row.note == "oom in backward: it ended"


def test_code_of_ones_own_is_compared_like_a_case() -> None:
    block = record(**own_code("tests/test_model.py::test_step"))
    rows = gate.compare([block], [dataclasses.replace(block, phases=LARGER.phases)]).rows
    assert (rows[0].state, rows[0].label) == ("regression", "tests/test_model.py::test_step")


def test_the_order_of_the_sets_changes_nothing() -> None:
    before = [record(seq, seq * MIB) for seq in range(1, 40)]
    after = [record(seq, seq * MIB * (1 + seq % 3)) for seq in range(3, 45)]
    found = gate.compare(before, after).to_json()
    random.Random(0).shuffle(before)
    random.Random(1).shuffle(after)
    assert gate.compare(before, after).to_json() == found


# --- sets from outside ---


def write(file: Path, *records: Measurement | str, end: str = "\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one.to_json()) for one in records]
    file.write_text("\n".join(lines) + end)
    return file


def changed(**fields: Any) -> str:
    return json.dumps({**OK.to_json(), **fields})


def phase_with(**fields: Any) -> str:
    return changed(phases=[{"name": "load", **fields}])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("[]", "a measurement is a JSON object, not list"),
        (changed(schema_version=99), "schema_version is 99; this version of nooom reads 1"),
        (phase_with(peak_allocated_bytes=float("nan")), "NaN is not a figure"),
        (phase_with(peak_allocated_bytes=-1), "'-1', not a non-negative integer"),
        (phase_with(peak_allocated_bytes="5"), "'5', not a non-negative integer"),
        (phase_with(peak_allocated_bytes=1.5), "'1.5', not a non-negative integer"),
        (phase_with(peak_allocated_bytes=1 << 70), "not a non-negative integer"),
        (phase_with(peak_allocated_bytes=GIB, components={"logits": 5}), "sum up to 5 bytes; its peak is 1073741824"),
        (changed(band_bytes="64 MiB"), "band_bytes is '64 MiB'"),
        (changed(case={"name": "a\x1b[2J"}), "not printable text"),
        (changed(case={"name": 5}), "name is int, not text"),
        (changed(phases=[{"name": "load"}, {"name": "load"}]), "phase 'load' stands there twice"),
        (changed(phases=[{"name": "a\nb"}]), "is not printable"),
        (json.dumps(OK.to_json()), "is measured a second time, the first stands at"),
        ("[" * 100_000, "not JSON"),
        (changed(status="oom", error={"phase": {"a": 1}}), "phase of error is not text"),
        (changed(first={"phases": 5}), "phases of first is not a list"),
        (changed(fingerprint={"x": 1}).replace('"x": 1', '"x": 1e999'), "1e999 is not a figure"),
    ],
)
def test_a_bad_line_is_refused_with_file_and_number(tmp_path: Path, line: str, says: str) -> None:
    file = write(tmp_path / FILE_NAME, OK, "", line)
    with pytest.raises(UsageError) as refused:
        gate.read_set(tmp_path)
    assert str(refused.value).startswith(f"{file}:3: ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_torn_line_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / FILE_NAME, OK, '{"schema_ver', end="")
    with pytest.raises(UsageError, match="torn") as refused:
        gate.read_set(tmp_path)
    assert str(refused.value).startswith(f"{file}:2: ")


def test_a_million_lines_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_text("{}\n" * 1_000_000)
    with pytest.raises(UsageError, match="1000000 lines; a file of measurements has at most 100000") as refused:
        gate.read_set(file)
    assert str(refused.value).startswith(f"{file}:100001: ")


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    write(tmp_path / FILE_NAME, OK)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="a link to no file"):
        gate.read_set(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "nowhere", "no such file or folder"), (tmp_path, "no measurements")):
        with pytest.raises(UsageError, match=says):
            gate.read_set(path)
    with pytest.raises(UsageError, match="no measurements in it"):
        gate.read_set(write(tmp_path / FILE_NAME, ""))


def test_a_case_that_failed_first_and_was_run_again_counts_as_it_ended(tmp_path: Path) -> None:
    (entry,) = gate.read_set(write(tmp_path / FILE_NAME, CRASHED, OK))
    assert entry.measurement == OK


def test_a_folder_of_baselines_is_read_where_there_are_no_journals(tmp_path: Path) -> None:
    write(tmp_path / "smoke" / "a100-80gb" / "torch-2.13.jsonl", OK)
    write(tmp_path / "smoke" / "h200-141gb" / "torch-2.13.jsonl", record(gpu=H200))
    assert len(gate.read_set(tmp_path)) == 2
