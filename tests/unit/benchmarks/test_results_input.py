"""``validate`` and ``calibrate`` on folders that are no results: exit 2, one line, the file and the line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.cli import main
from nooom.formulas.case import Case
from nooom.profiler.measurement import Measurement, Phase

CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="inference", batch=2, seq=64)

COMMANDS = (["validate"], ["validate", "--json"], ["validate", "--by", "article"], ["calibrate", "--out", "written"])


def good(**change: Any) -> dict[str, Any]:
    phases = [Phase(name="load", peak_allocated_bytes=5), Phase(name="prefill", peak_allocated_bytes=1 << 28)]
    record = Measurement(
        case_id=CASE.case_id(), case=CASE.to_dict(), source="measured", device="cpu", status="ok", phases=phases
    )
    return record.to_json() | change


def with_figure(value: Any) -> dict[str, Any]:
    record = good()
    record["phases"][1]["peak_allocated_bytes"] = value
    return record


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return call


def write(*lines: Any, name: str = "results") -> Path:
    file = Path(name) / "measurements.jsonl"
    file.parent.mkdir(exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("second", "says"),
    [
        (with_figure(float("nan")), "NaN is not a figure"),
        (with_figure(float("inf")), "Infinity is not a figure"),
        (with_figure(-1), "'-1', not a non-negative integer"),
        (with_figure("1073741824"), "'1073741824', not a non-negative integer"),
        (with_figure(1.5), "'1.5', not a non-negative integer"),
        (with_figure(True), "'True', not a non-negative integer"),
        (with_figure(1 << 70), "not a non-negative integer below 2**63"),
        (good(schema_version=2), "schema_version is 2; this version of nooom reads 1"),
        (good(schema_version=None), "schema_version is None"),
        (good(status="fine"), "status is 'fine'"),
        (good(case={**CASE.to_dict(), "model": "Qwen/Qwen2.5-7"}), "did you mean Qwen/Qwen2.5-7B"),
        (good(case={**CASE.to_dict(), "batch": 0}), "--batch must lie between"),
        (good(phases={}), "phases is not list"),
        (good(phases=None), "phases is missing"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "a measurement is a JSON object, not NoneType"),
        ("\x80\x04\x95", "not JSON"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    run: Callable[..., Any], command: list[str], second: Any, says: str
) -> None:
    file = write(good(), second)
    code, out, err = run(*command, str(file.parent))
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert f"{file}:2: " in err
    assert says in err
    assert not Path("written").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["empty folder", "empty file", "no folder", "only a torn line"])
def test_nothing_to_compare_is_refused(run: Callable[..., Any], command: list[str], kind: str) -> None:
    folder = Path("results")
    if kind != "no folder":
        folder.mkdir()
    if kind == "empty file":
        write()
    if kind == "only a torn line":
        write().write_text(json.dumps(good()))
    code, out, err = run(*command, str(folder))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert "results" in err


def test_a_binary_file_is_refused(run: Callable[..., Any]) -> None:
    write().write_bytes(b"\x80\x04\x95\xff\xfe\n")
    code, _, err = run("validate", "results")
    assert code == 2
    assert "not UTF-8" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["calibrate"], "nothing to fit to"),
        (["validate", "--strict"], "add --claims"),
        (["validate", "--by", "artcle"], "did you mean article"),
        (["validate", "--by", "derived"], "not built yet"),
        (["predict", "--workload", "sft"], "--model is missing"),
        (["predict", "--model", "Qwen/Qwen2.5-7B"], "--workload is missing"),
        (["predict", "--model", "Qwen/Qwen2.5-7B", "--workload", "sft", "--gpu-memory", "9GiB"], "add --gpu NAME"),
        (["predict", "--model", "Qwen/Qwen2.5-7B", "--workload", "sft", "--gpu", "h100"], "h100-80gb"),
        (["predict", "--model", "Qwen/Qwen2.5-7B", "--workload", "sft", "--gpu", "t4-16gb", "--gpu-memory", "x"],
         "a size such as 200GiB"),
        (["predict", "--model", "Qwen/Qwen2.5-7", "--workload", "sft"], "did you mean Qwen/Qwen2.5-7B"),
        (["predict", "--model", "openai-community/gpt2", "--workload", "sft"], "1024 learned positions"),
    ],
)  # fmt: skip
def test_wrong_usage_is_refused_in_one_line(run: Callable[..., Any], arguments: list[str], says: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    assert says in err


def test_where_nothing_can_be_written_it_says_so(run: Callable[..., Any]) -> None:
    write(good())
    Path("taken").write_text("")
    code, _, err = run("calibrate", "results", "--out", "taken")
    assert code == 2
    assert "--out taken: can't write" in err


def test_only_cases_that_ran_out_of_memory_calibrate_nothing(run: Callable[..., Any]) -> None:
    write(good(status="oom"))
    code, _, err = run("calibrate", "results", "--out", "written")
    assert code == 2
    assert "no finished case" in err
