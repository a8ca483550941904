"""The journal: nothing finished is lost, whatever happens to the disk or the run that wrote it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.journal import FILE_NAME, Journal, JournalError, read
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement, Phase

CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="sft", batch=2, seq=64)


def record(seq: int = 64) -> Measurement:
    case = Case(model=CASE.model, workload="sft", seq=seq)
    return Measurement(
        case_id=case.case_id(),
        case=case.to_dict(),
        source="measured",
        device="cpu",
        status="ok",
        phases=[Phase(name="load", peak_allocated_bytes=seq)],
    )


def test_records_are_appended_one_a_line(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "folder") as journal:
        journal.append(record(1))
    with Journal(tmp_path / "new" / "folder") as journal:
        journal.append(record(2))
    assert [json.loads(line)["case"]["seq"] for line in journal.path.read_text().splitlines()] == [1, 2]
    assert list(read(tmp_path)) == [record(1), record(2)]


def test_a_torn_last_line_is_passed_over_and_put_aside(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(record(1))
    with journal.path.open("a") as file:
        file.write('{"schema_version": 1, "case_id": "abc", "ca')
    assert list(read(tmp_path)) == [record(1)]
    with Journal(tmp_path) as journal:
        assert journal.torn is not None
        assert journal.torn.read_text().startswith('{"schema_version"')
        journal.append(record(2))
    assert list(read(tmp_path)) == [record(1), record(2)]


@pytest.mark.parametrize("fails", ["short", "error"])
def test_a_full_disk_keeps_what_was_finished_and_the_last_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    real = os.write

    def full(fd: int, data: bytes) -> int:
        if fails == "short":
            return real(fd, data[:20])
        raise OSError(28, "No space left on device")

    with Journal(tmp_path) as journal:
        journal.append(record(1))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(JournalError, match="run again with --resume") as caught:
            journal.append(record(2))
        monkeypatch.undo()
    assert list(read(tmp_path)) == [record(1)]
    rescued = Path(str(caught.value).partition("the last record is in ")[2].partition(";")[0])
    assert Measurement.from_json(json.loads(rescued.read_text())) == record(2)
    rescued.unlink()


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(UsageError, match="another run is writing"):
        Journal(tmp_path)


def test_where_nothing_can_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't write"):
        Journal(tmp_path / "file")
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / FILE_NAME).symlink_to("/dev/full")
    with pytest.raises(UsageError, match="not a regular file"):
        Journal(tmp_path / "device")


def _line(**changes: Any) -> str:
    return json.dumps({**record(1).to_json(), **changes}) + "\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (_line() + "nonsense\n" + _line(), f"{FILE_NAME}:2: not JSON"),
        (_line() + _line(status="fine"), f"{FILE_NAME}:2: status is 'fine'"),
        (_line().replace('"seconds": null', '"seconds": NaN'), f"{FILE_NAME}:1: not JSON: NaN is not a figure"),
        ("[" * 100_000 + "\n", f"{FILE_NAME}:1: not JSON"),
        ("\n\n" + _line(device=7), f"{FILE_NAME}:3: device is not str"),
    ],
)
def test_a_line_that_is_no_record_is_named_by_file_and_number(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(UsageError) as caught:
        list(read(tmp_path))
    assert says in str(caught.value)


def test_what_is_not_text_is_said(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\x80\x04\x95 a pickle\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        list(read(tmp_path))
    with pytest.raises(UsageError, match="no such file or folder"):
        list(read(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"no {FILE_NAME}"):
        list(read(tmp_path / "empty"))
