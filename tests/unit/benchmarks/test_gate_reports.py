"""What one check leaves behind: every form of one fixed report as it was reviewed, and any text kept text in all of them.

``NOOOM_UPDATE_GOLDEN=1 pytest tests/unit/benchmarks/test_gate_reports.py`` writes the golden files anew; review the diff.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import subprocess
import sys
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import xmlschema
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from nooom.benchmarks import gate
from nooom.benchmarks.reports.gate import annotations as github
from nooom.benchmarks.reports.gate import document, files, junit, series, summary, table, terminal, words
from nooom.benchmarks.reports.gate.about import About
from nooom.formulas.errors import UsageError
from nooom.profiler.regression import Grown

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = Path(__file__).parent / "golden" / "gate"
UPDATE = bool(os.environ.get("NOOOM_UPDATE_GOLDEN"))
MIB, GIB = 1 << 20, 1 << 30

PHANTOM = gate.Group("emulated on phantom", "NVIDIA A100-SXM4-80GB", "2.13")
CUDA = gate.Group("measured on cuda", "NVIDIA H200", "2.13")
CPU = gate.Group("measured on cpu", None, None)
HOSTILE = "=SUM(A1)|`x`[link](http://a.example)<script>alert(1)</script></td></table>\n# @somebody ##[error] ::error::\x1b[31m"
LABEL = "Qwen2.5-7B lora 8x2048 dtype=bf16 checkpointing"


def row(label: str, phase: str | None, state: str, group: gate.Group = PHANTOM, **more: Any) -> gate.Row:
    return gate.Row(
        case_id=f"{zlib.crc32(label.encode()):016x}", label=label, phase=phase, state=state, group=group, **more
    )


def figures(before: int, after: int, band: int = 0) -> dict[str, Any]:
    return {
        "baseline_bytes": before,
        "current_bytes": after,
        "change_bytes": after - before,
        "change_ratio": (after - before) / before if before else None,
        "band_bytes": band,
    }


def every_state() -> gate.Report:
    suspects = ("transformers 5.17.0 -> 5.24.0", "python 3.11.7 -> 3.12.1")
    return gate.report(
        [
            row(
                LABEL,
                "backward",
                "regression",
                **figures(15_392_342_016, 20_224_180_224),
                reserved=(16 * GIB, 21 * GIB),
                grew=(
                    Grown(kind="component", name="logits", change_bytes=4_982_833_152),
                    Grown(kind="component", name="activations", change_bytes=-150_994_944),
                    Grown(
                        kind="tensor",
                        name="logits float32 [16384, 152064] by aten._to_copy.default of base_model.model",
                        change_bytes=9_965_666_304,
                    ),
                    Grown(kind="hidden", name="cuBLAS workspace by aten.mm.default, backward", change_bytes=8_519_680),
                ),
                suspects=suspects,
            ),
            row(LABEL, "forward", "regression", **figures(15_392_342_016, 15_392_342_528), suspects=suspects),
            row(LABEL, "load", "pass", **figures(15_392_342_016, 15_392_342_016), reserved=(16 * GIB, 16 * GIB)),
            row("Qwen2.5-7B sft 1x2048", None, "oom", note="oom in backward: tried to allocate 2.32 GiB"),
            row(
                "Qwen2.5-7B grpo 8x512+256",
                None,
                "error",
                note="crashed in rollout: RuntimeError: shape",
                side="new.txt",
            ),
            row("Qwen2.5-7B inference 1x2048+8", "prefill", "missing", baseline_bytes=3 * GIB, side="new.txt"),
            row("Qwen2.5-7B inference 1x64", None, "not_comparable", CUDA, note="allocator none -> backend:native"),
            row("SmolLM2-135M sft 1x64", None, "skipped", CPU, baseline_bytes=GIB, note=f"nothing {CPU}"),
            row("SmolLM2-135M sft 1x128", None, "new", CPU, current_bytes=2_378_266_112),
            row(
                "Qwen2.5-7B sft 2x64",
                None,
                "fixed",
                CUDA,
                current_bytes=90 * GIB,
                note="oom in backward: out of memory",
            ),
            row(
                "Qwen2.5-0.5B sft 1x64",
                "optimizer",
                "improvement",
                CUDA,
                **figures(20 * GIB, 19 * GIB + 1, 429_496_729),
                reserved=(22 * GIB, 20 * GIB),
                nvml=(23 * GIB, 21 * GIB),
                grew=(Grown(kind="component", name="gradients", change_bytes=1 - GIB),),
                suspects=suspects[:1],
            ),
            row("Qwen2.5-0.5B sft 1x64", "forward", "pass", CUDA, **figures(0, 0), nvml=(None, 3 * GIB)),
            row(
                HOSTILE,
                HOSTILE,
                "regression",
                **figures(64 * MIB, 96 * MIB),
                side=HOSTILE,
                grew=(Grown(kind="tensor", name=HOSTILE, change_bytes=32 * MIB),),
                suspects=(HOSTILE,),
                note=HOSTILE,
            ),
        ]
    )


ABOUT = About(baseline="results/baselines/smoke", current=f"out/{HOSTILE}\udcff", strict=False, exit_code=1)


@functools.cache
def golden_report() -> gate.Report:
    return every_state()


def shown(report: gate.Report, about: About, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    terminal.show(report, console, about)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@functools.cache
def forms() -> dict[str, str]:
    found = files.rendered(golden_report(), ABOUT)
    found["annotations.txt"] = "\n".join([*github.annotations(golden_report()), ""])
    found["terminal.txt"] = shown(golden_report(), ABOUT)
    return found


@pytest.mark.parametrize("name", list(forms()))
def test_every_form_is_as_it_was_reviewed(name: str) -> None:
    text = forms()[name]
    if UPDATE:
        (GOLDEN / name).write_bytes(text.encode())
    assert (GOLDEN / name).read_bytes().decode() == text


def test_the_golden_report_has_every_state() -> None:
    assert all(golden_report().counts.values())


# --- JSON --------------------------------------------------------------------------------------------------------


def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_document_is_what_its_schema_says() -> None:
    record = json.loads((GOLDEN / "report.json").read_text(encoding="utf-8"))
    validator().validate(record)
    assert record == {**golden_report().to_json(), "about": ABOUT.to_json()}


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"extra": 1},
        {"rows": [{}]},
        {"counts": {"regression": 1}},
        {"about": {"baseline": "a", "current": "b", "strict": False, "exit_code": 7}},
    ],
)
def test_the_schema_refuses_another_document(change: dict[str, Any]) -> None:
    record = json.loads((GOLDEN / "report.json").read_text(encoding="utf-8"))
    with pytest.raises(jsonschema.ValidationError):
        validator().validate({**record, **change})


def test_the_schema_names_every_state() -> None:
    schema = json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    assert tuple(schema["$defs"]["state"]["enum"]) == gate.STATES
    assert set(schema["$defs"]["by_state"]["required"]) == set(gate.STATES)


def test_nothing_found_is_a_document_too() -> None:
    nothing = gate.Report(rows=())
    about = About(baseline="a", current="b", strict=False, exit_code=3)
    texts = files.rendered(nothing, about)
    validator().validate(json.loads(texts["report.json"]))
    schema().validate(texts["junit.xml"])
    assert json.loads(texts["benchmark.json"]) == []
    assert "nothing was compared, 0 cases" in texts["summary.md"]
    assert github.annotations(nothing) == []
    assert "nothing was compared" in shown(nothing, about)


# --- CSV ---------------------------------------------------------------------------------------------------------


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_the_table_has_what_the_document_has() -> None:
    names = list(golden_report().rows[0].to_json())
    assert sorted(table.COLUMNS) == sorted(names)


@pytest.mark.parametrize("beginning", list("=+-@\t\r\n"))
def test_a_spreadsheet_takes_no_text_for_a_formula(beginning: str) -> None:
    text = table.as_csv(gate.Report(rows=(row(f"{beginning}1+1", None, "improvement", change_bytes=-512),)))
    (found,) = read_csv(text)
    assert found["case"] == f"'{beginning}1+1"
    assert found["change_bytes"] == "-512"


# --- JUnit -------------------------------------------------------------------------------------------------------


@functools.cache
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(ROOT / "tests" / "support" / "junit.xsd")


def outcomes(*, strict: bool) -> dict[str, set[str]]:
    about = About(baseline="a", current="b", strict=strict, exit_code=1)
    text = junit.as_xml(golden_report(), about)
    schema().validate(text)
    found: dict[str, set[str]] = {}
    for test in ElementTree.fromstring(text.encode()).iter("testcase"):
        properties = {one.get("name", ""): one.get("value", "") for one in test.iter("property")}
        ends = {child.tag for child in test} & {"failure", "error", "skipped"}
        found.setdefault(properties["state"], set()).update(ends or {"passed"})
    return found


PASSED = {state: {"passed"} for state in ("new", "fixed", "improvement", "pass")}
FAILED = {**{state: {"failure"} for state in ("regression", "oom", "missing")}, "error": {"error"}}


def test_a_test_ends_as_its_phase_did() -> None:
    undecided = {state: {"skipped"} for state in gate.UNDECIDED}
    assert outcomes(strict=False) == {**FAILED, **undecided, **PASSED}


def test_strict_fails_what_is_undecided() -> None:
    undecided = {state: {"failure"} for state in gate.UNDECIDED}
    assert outcomes(strict=True) == {**FAILED, **undecided, **PASSED}


def test_suites_count_their_tests() -> None:
    root = ElementTree.fromstring(forms()["junit.xml"].encode())
    for suite in [root, *root.iter("testsuite")]:
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert suite.get(name) == str(len(list(suite.iter(tag)))), (suite.get("name"), name)


# --- the summary -------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags, and the text and width of each table row."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.widths: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "tr":
            self.widths.append(0)
        if tag in ("td", "th"):
            self.widths[-1] += int(dict(attrs).get("colspan") or 1)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {"p", "strong", "code", "table", "tr", "th", "td", "br", "b", "details", "summary"}


def page(text: str) -> Page:
    """What a reader of Markdown makes of it."""
    found = Page()
    found.feed(MarkdownIt("gfm-like", {"linkify": False}).render(text))
    found.close()
    assert found.open == []
    assert found.tags <= OURS
    assert found.attributes <= {"colspan", "align"}
    assert len(set(found.widths)) <= 1
    return found


def test_hostile_text_stays_text_in_the_summary() -> None:
    found = page(forms()["summary.md"])
    assert words.plain(HOSTILE) in found.text
    assert "@somebody" not in re.sub(r"<code>.*?</code>", "", forms()["summary.md"])


def test_the_summary_folds_what_asks_nothing_of_anybody() -> None:
    opened, _, folded = forms()["summary.md"].partition("<details>")
    assert "improvement" in opened
    assert "SmolLM2-135M sft 1x64" not in opened
    assert "SmolLM2-135M sft 1x64" in folded
    strict = About(baseline="a", current="b", strict=True, exit_code=1)
    assert "SmolLM2-135M sft 1x64" in summary.as_markdown(golden_report(), strict).partition("<details>")[0]


def test_what_has_no_figure_anywhere_has_no_column() -> None:
    rows = [row("a", "load", "pass", CPU, **figures(GIB, GIB))]
    text = summary.as_markdown(gate.Report(rows=tuple(rows)), ABOUT)
    assert "reserved" not in text
    assert "NVML" not in text
    assert "<th>reserved</th><th>NVML</th>" in forms()["summary.md"]


def many(count: int, states: tuple[str, ...] = gate.STATES, label: str = "a case of some length") -> gate.Report:
    grew = tuple(Grown(kind=kind, name=f"some tensor {kind}", change_bytes=MIB) for kind in ("component", "tensor"))
    return gate.report(
        row(
            f"{label} {number // 4}",
            f"phase {number % 4}",
            states[number % len(states)],
            **figures(GIB, GIB),
            grew=grew,
        )
        for number in range(count)
    )


@pytest.mark.parametrize(
    ("states", "label"), [(gate.STATES, HOSTILE), (("pass",), "a case"), (("regression",), "é" * 1000)]
)
def test_a_summary_is_never_larger_than_is_taken(states: tuple[str, ...], label: str) -> None:
    text = summary.as_markdown(many(10_000, states, label), ABOUT)
    assert len(text.encode()) < 1 << 20
    assert len(text.encode()) > (1 << 20) - 40_000
    left = [int(count) for count in re.findall(r"(\d+) rows left out", text)]
    kept = page(text).text.count("phase ")
    assert sum(left) + kept == 10_000


def test_passing_rows_are_left_out_first() -> None:
    text = summary.as_markdown(many(8_000, ("pass", "pass", "pass", "regression")), ABOUT)
    opened, _, folded = text.partition("<details>")
    assert opened.count("❌ regression") == 2_000
    assert "left out" not in opened
    assert "rows left out, there is no room: " in folded


def test_a_large_report_takes_no_time() -> None:
    # The processor's time, whatever else runs; several times what a slow core takes.
    report = many(100_000)
    begun = time.process_time()
    text = summary.as_markdown(report, ABOUT)
    assert len(text.encode()) < 1 << 20
    assert time.process_time() - begun < 4
    begun = time.process_time()
    files.rendered(many(4_000), ABOUT)
    assert time.process_time() - begun < 2


# --- annotations -------------------------------------------------------------------------------------------------


def unescaped(text: str) -> str:
    for escape, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(escape, character)
    return text


def test_a_case_is_annotated_once_with_its_worst_phase() -> None:
    lines = [line for line in github.annotations(golden_report()) if LABEL in line]
    assert len(lines) == 1
    assert "backward" in lines[0]


def test_more_cases_than_are_shown_are_counted() -> None:
    report = gate.report(row(f"case {number}", "load", "regression") for number in range(25))
    lines = github.annotations(report)
    assert len(lines) == 10
    assert lines[-1].startswith("::error title=nooom check::16 more cases")
    ten = gate.report(row(f"case {number}", "load", "regression") for number in range(10))
    assert len(github.annotations(ten)) == 10
    assert not any("more cases" in line for line in github.annotations(ten))


def test_undecided_is_a_warning_and_under_strict_an_error() -> None:
    report = gate.report([row("a", None, "skipped"), row("b", None, "improvement"), row("c", None, "improvement")])
    kinds = [line.split()[0] for line in github.annotations(report)]
    assert kinds == ["::warning", "::notice"]
    assert [line.split()[0] for line in github.annotations(report, strict=True)] == ["::error", "::notice"]


# --- the terminal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 200])
def test_no_figure_is_cut(width: int) -> None:
    text = shown(golden_report(), ABOUT, width)
    for one in golden_report().rows:
        if one.state != "pass" and one.baseline_bytes is not None:
            assert words.size(one.baseline_bytes) in text
        if one.change_bytes:
            assert words.change(one.change_bytes) in text


def test_the_widest_figures_have_room() -> None:
    widest = row("a", "load", "regression", **figures(1023 * MIB + 1023, 2046 * MIB, 1023 * MIB))
    assert max(map(len, shown(gate.Report(rows=(widest,)), ABOUT).splitlines()[2:])) <= 80


def test_a_terminal_is_told_of_forty_rows() -> None:
    report = gate.report(row(f"case {number}", "load", "regression") for number in range(100))
    text = shown(report, ABOUT)
    assert text.count("regression: ") == 40
    assert "and 60 more; report.csv has every row" in text


def test_nothing_from_outside_is_a_command_to_a_terminal_or_a_runner() -> None:
    text = shown(golden_report(), ABOUT)
    assert "\x1b" not in text
    assert "##[" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_what_does_not_print_is_written_out() -> None:
    assert words.plain("a\n\x00\u202e\udcff b\\é") == "a\\n\\x00\\u202e\\udcff b\\é"
    assert words.plain("a" * 301) == "a" * 297 + "..."


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "+0.000 MiB"),
        (1, "+0.000001 MiB"),
        (-512, "-0.000488 MiB"),
        (GIB - 1, "+1.000 GiB"),
        (GIB - 1024, "+1023.999 MiB"),
        (GIB, "+1.000 GiB"),
        (-3 * GIB, "-3.000 GiB"),
    ],
)
def test_a_change_has_its_sign_and_unit(size_bytes: int | None, text: str) -> None:
    assert words.change(size_bytes) == text


@pytest.mark.parametrize(
    ("states", "exit_code", "text"),
    [
        (["regression", "regression", "pass"], 1, "2 regressions in 1 of 1 case"),
        (["pass"], 0, "no regression in 1 case"),
        (["new"], 3, "nothing was compared, 1 case"),
        (["pass"], 3, "no regression in 1 case, none of which ran on the GPU that was required"),
        (["pass", "skipped"], 1, "undecided in 1 of 1 case, which fails this check"),
        (["oom", "error", "missing"], 1, "1 out of memory, 1 error, 1 missing in 1 of 1 case"),
    ],
)
def test_the_headline_is_the_verdict(states: list[str], exit_code: int, text: str) -> None:
    report = gate.report(row("a", f"phase {number}", state) for number, state in enumerate(states))
    assert words.headline(report, About(baseline="a", current="b", strict=True, exit_code=exit_code)) == text


# --- the series --------------------------------------------------------------------------------------------------


def test_each_figure_is_a_point_of_its_own() -> None:
    points = json.loads(forms()["benchmark.json"])
    assert len(points) == sum(one.current_bytes is not None for one in golden_report().rows)
    assert len({point["name"] for point in points}) == len(points)
    assert {point["unit"] for point in points} == {"bytes"}
    assert all(type(point["value"]) is int for point in points)


# --- files -------------------------------------------------------------------------------------------------------


def test_the_files_are_written_whole_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    for _ in range(2):
        paths = files.written(golden_report(), out, ABOUT)
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in paths)
    assert {path.name: path.read_bytes().decode() for path in paths} == files.rendered(golden_report(), ABOUT)


@pytest.mark.parametrize("obstacle", ["", "out", "out/report.csv"])
def test_what_cannot_be_written_is_one_line(tmp_path: Path, obstacle: str) -> None:
    out = tmp_path / "out"
    if obstacle == "out":
        out.write_text("a file")
    elif obstacle:
        (tmp_path / obstacle).mkdir(parents=True)
    else:
        out = Path("/dev/null/out")
    with pytest.raises(UsageError, match=f"^--out {re.escape(str(out))}: can't write [^\n]+$"):
        files.written(golden_report(), out, ABOUT)
    assert not list(tmp_path.rglob(".*"))


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from nooom.benchmarks.reports.gate import annotations, files, terminal; "
        "sys.exit(', '.join({'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# --- any text ----------------------------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=40) | st.text("|`<>&\"'[]()\n\r\t,;%:@=+-#*_\\\x00\x1b\ud800 a", max_size=40)


@settings(max_examples=150, deadline=None)
@given(label=texts, phase=texts, note=texts, name=texts, side=texts, state=st.sampled_from(gate.STATES))
def test_any_text_stays_what_it_is(label: str, phase: str, note: str, name: str, side: str, state: str) -> None:
    group = gate.Group(name, note, None)
    one = row(
        label if label.isascii() else label.encode(errors="replace").decode(),
        phase,
        state,
        group,
        **figures(GIB, 2 * GIB),
        side=side,
        note=note,
        suspects=(name,),
        grew=(Grown(kind="tensor", name=name, change_bytes=GIB),),
    )
    report = gate.Report(rows=(one,))
    about = About(baseline=label, current=note, strict=False, exit_code=1)

    record = json.loads(document.as_json(report, about))
    validator().validate(record)
    assert record == {**report.to_json(), "about": about.to_json()}

    (found,) = read_csv(table.as_csv(report))
    assert {column: found[column].removeprefix("'") for column in ("phase", "note", "side")} == {
        "phase": phase.removeprefix("'"),
        "note": note.removeprefix("'"),
        "side": side.removeprefix("'"),
    }
    assert found["current_bytes"] == str(2 * GIB)

    xml = junit.as_xml(report, about)
    schema().validate(xml)
    (test,) = ElementTree.fromstring(xml.encode()).iter("testcase")
    assert test.get("name") == (re.sub(junit.FORBIDDEN, "\ufffd", phase) or "the case")

    assert words.plain(label) in page(summary.as_markdown(report, about)).text
    assert all(len(line.splitlines()) == 1 for line in github.annotations(report))
    assert all(line.startswith("::") for line in github.annotations(report))
    assert json.loads(series.as_json(report))[0]["value"] == 2 * GIB
    assert "##[" not in shown(report, about)
