"""``python -m nooom.benchmarks.reports.accuracy results README.md``: how far dry runs are off what others published.

Made of ``results/dryrun/published.jsonl``, the published records and the phantom's recordings in the versions of their
time; nothing runs.  ``accuracy.csv`` has every figure in bytes, ``accuracy.md`` the scores and why a row is off.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import accuracy, emulated_against_published
from nooom.benchmarks.compare import Row
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.reports.figures import gib
from nooom.benchmarks.reports.markers import between
from nooom.benchmarks.scores import Score, score
from nooom.benchmarks.sources import PEAK, predict_article
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError
from nooom.formulas.gpus import find
from nooom.formulas.shape import ModelShape
from nooom.profiler.measurement import Measurement

PAGE, TABLE = "accuracy.md", "accuracy.csv"
BEGIN, END = "<!-- accuracy: made by make accuracy -->", "<!-- end of accuracy -->"
DRY_RUN, PHANTOM, ARTICLE = "dry run", "phantom of its time", "article"
SOURCES = (DRY_RUN, PHANTOM, ARTICLE)
MEDIAN_GOAL, P95_GOAL, WORST_GOAL = 0.003, 0.01, 0.03
"""Of the error without its sign.  A goal stays where it is missed."""
EXPLAINED_FROM = 0.003
"""A row that is off by more has its cause named."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One published figure, and what each source says of it."""

    record: Measurement
    case: Case
    shape: ModelShape
    predicted_bytes: dict[str, int]
    """By source; a source that says nothing is missing."""
    phantom_versions: str
    """With which versions the phantom ran; empty where there is no recording."""

    @property
    def id(self) -> str:
        return accuracy.id_of(self.record)

    @property
    def published_bytes(self) -> int:
        peak = self.record.peak_allocated_bytes
        assert peak is not None
        return peak

    @property
    def rounding_bytes(self) -> int:
        return int(self.record.fingerprint["rounding_bytes"])

    def error(self, source: str) -> float | None:
        """Signed and relative; None where the source says nothing."""
        size = self.predicted_bytes.get(source)
        return None if size is None else (size - self.published_bytes) / self.published_bytes

    @property
    def version_difference(self) -> float | None:
        """The dry run less the phantom in the run's own versions, as a share of what was published."""
        if DRY_RUN not in self.predicted_bytes or PHANTOM not in self.predicted_bytes:
            return None
        return (self.predicted_bytes[DRY_RUN] - self.predicted_bytes[PHANTOM]) / self.published_bytes

    def row(self) -> Row:
        """As scores take it."""
        return Row(
            case_id=self.record.case_id,
            label=self.case.label(),
            workload=self.case.workload,
            status="ok",
            device="cuda",
            source="measured",
            phase=PEAK,
            measured_bytes=self.published_bytes,
            predicted_bytes=self.predicted_bytes,
            gpu=find(accuracy.GPU).device_name,
        )


def gather(results: Path) -> list[Line]:
    """Every published record with what is known of it, in the manifest's order."""
    dry = accuracy.lines(results / accuracy.FOLDER)
    phantom = _phantom(results / "emulated")
    found = []
    for record in accuracy.published():
        case = Case.from_dict(record.case)
        _, shape = resolve_case(case)
        name = accuracy.id_of(record)
        said = {ARTICLE: predict_article(case, shape).allocated_bytes}
        if name in phantom:
            said[PHANTOM] = phantom[name][0]
        if name in dry:
            said[DRY_RUN] = dry[name]["peak_bytes"]
        versions = phantom[name][1] if name in phantom else ""
        found.append(Line(record=record, case=case, shape=shape, predicted_bytes=said, phantom_versions=versions))
    return found


def _phantom(folder: Path) -> dict[str, tuple[int, str]]:
    """What a phantom took in the versions of a run's time, and with which, by id."""
    own = [(pair, line["versions"]) for pair, line in emulated_against_published.old(folder)
           if emulated_against_published.is_as_published(line)]  # fmt: skip
    own += [(pair, line) for pair, line in emulated_against_published.as_run(folder)]
    own += [(pair, line["versions"]) for pair, line in emulated_against_published.completed(folder)]
    return {pair.id: (pair.peak_bytes, f"{of['torch']}, {of['transformers']}") for pair, of in own}


# --- why ---------------------------------------------------------------------------------------------------------


def cause(line: Line) -> str:
    """Why the dry run is off, by the tensors' names; empty where it is not by more than :data:`EXPLAINED_FROM`."""
    if DRY_RUN not in line.predicted_bytes:
        return f"not dry-run: {line.case.quantization} is not built"
    error = line.error(DRY_RUN)
    assert error is not None
    if abs(error) <= EXPLAINED_FROM:
        return ""
    if line.record.fingerprint["transformers"] == "4.35.2":
        return _completion(line) if line.case.new_tokens else _prompt(line)
    known = emulated_against_published.CAUSES.get(line.id)
    if known is not None:
        return known.replace(", see below", "")
    return f"printed to ±{line.rounding_bytes:,} B; {_beyond(line, DRY_RUN):,} B beyond that were not told apart"


def _tables(line: Line) -> int:
    """Cosines and sines of every position in fp16, as each layer of transformers 4.35 keeps them."""
    return line.shape.num_layers * 2 * (line.shape.max_position or 0) * line.shape.head_dim * 2


def _missing(line: Line) -> int:
    return line.published_bytes - line.predicted_bytes[DRY_RUN]


def _prompt(line: Line) -> str:
    batch, seq, vocabulary = line.case.batch, line.case.seq, line.shape.vocab_size
    single, tables = batch * seq * vocabulary * 4, _tables(line)
    rest = _missing(line) - tables - single - single // 2
    return (
        f"4.35 peaks where it casts all logits to fp32, [{batch}, {seq}, {vocabulary}], {single:,} B beside "
        f"{single // 2:,} B in fp16, and keeps rotary tables in every layer, {tables:,} B; today's casts none, has no "
        f"tables and peaks in a layer's MLP: {rest:+,} B"
    )


def _completion(line: Line) -> str:
    batch, heads, tables = line.case.batch, line.shape.num_kv_heads, _tables(line)
    length = line.case.seq + line.case.new_tokens - 1
    cache = line.shape.num_layers * 2 * batch * heads * length * line.shape.head_dim * 2
    rest = _missing(line) - tables - cache
    return (
        f"4.35 holds the old cache, a tuple, until all layers have made the new one: keys and values [{batch}, "
        f"{heads}, {length}, {line.shape.head_dim}] of {line.shape.num_layers} layers, {cache:,} B, where today's "
        f"gives back layer by layer; rotary tables in every layer, {tables:,} B; the rest, one layer's among it: "
        f"{rest:+,} B"
    )


# --- the files ---------------------------------------------------------------------------------------------------


def as_csv(lines: Sequence[Line]) -> str:
    """A row a published figure; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([
        "id", "gpu", "workload", "case", "published_bytes", "rounding_bytes", "dryrun_bytes", "dryrun_error",
        "phantom_bytes", "phantom_error", "phantom_torch_transformers", "article_bytes", "article_error", "cause",
    ])  # fmt: skip
    for line in lines:
        figures: list[Any] = []
        for source in SOURCES:
            error = line.error(source)
            figures += [line.predicted_bytes.get(source), None if error is None else f"{error:.6f}"]
            if source == PHANTOM:
                figures.append(line.phantom_versions)
        of = [line.id, accuracy.GPU, line.case.workload, line.case.label(), line.published_bytes, line.rounding_bytes]
        writer.writerow([*of, *figures, cause(line)])
    return out.getvalue()


def as_markdown(lines: Sequence[Line], versions: dict[str, str]) -> str:
    """The whole page."""
    dry = [line for line in lines if DRY_RUN in line.predicted_bytes]
    text = _INTRODUCTION.format(
        rows=len(lines),
        dry=len(dry),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        last=accuracy.LAST_TOKENS,
        median=MEDIAN_GOAL,
        p95=P95_GOAL,
        worst=WORST_GOAL,
    )
    return "\n".join(
        [
            text,
            *_scored(lines),
            "",
            *_verdicts(lines),
            "",
            "## Row by row",
            "",
            _ROWS,
            "",
            f"| {' | '.join(_HEAD)} |",
            "|---|---|---|--:|--:|--:|--:|--:|---|",
            *(_as_row(line) for line in lines),
            "",
        ]
    )


_INTRODUCTION = """# How far dry runs are off what others measured

Made by `make accuracy`; change [that](../benchmarks/reports/accuracy.py), not this.
[accuracy.csv](accuracy.csv) has every figure in bytes.

Each of the {rows} figures that [measured/public](measured/public/README.md) counts for accuracy is an A100's
`max_memory_allocated`; {dry} of them can be dry-run.  The dry runs are of {versions};
the published runs had torch 2.1 to 2.4 and transformers 4.35 to 4.48, other code that takes other memory.  How much of
an error that is, is measured and not supposed: *phantom of its time* ran those versions on
[a phantom A100](emulated/published.md), as was published.

No constant was fitted, and no row has a rule of its own.  `flash_attention_2` is dry-run as `sdpa`, which takes flash
attention where there is no mask.  Random weights stand for a checkpoint, and then loading does not count.  Of a
completion of more than {last} tokens the prompt is run, and the last {last} tokens after a prompt as long as all
before them: nothing that comes earlier takes more, and the smallest model's figures are the same to 0.02 %.

## Scores

Errors are (predicted - published) / published, with nothing taken off for how a figure was printed; median and p95
leave the sign away.  *under* is the share predicted too low.  The goal is the dry run's: median at most {median:.1%},
p95 {p95:.0%}, worst {worst:.0%}.
"""

_ROWS = """*versions* is the dry run less the phantom of its time, as a share of what was published: what changed in
the code since, and what the two ran otherwise.  What is left of the dry run's error beside it is the phantom's own.  Of
every row that is off by more than 0.3 % the last column says why."""

_HEAD = ("id", "case", "torch, transformers", "published, GiB", DRY_RUN, PHANTOM, "versions", ARTICLE, "why")


def _groups(lines: Sequence[Line]) -> Iterator[tuple[str, list[Line]]]:
    yield f"{accuracy.GPU}, all", list(lines)
    for workload in dict.fromkeys(line.case.workload for line in lines):
        yield f"{accuracy.GPU}, {workload}", [line for line in lines if line.case.workload == workload]
    for version in dict.fromkeys(line.record.fingerprint["transformers"] for line in lines):
        name = f"{accuracy.GPU}, published with transformers {version}"
        yield name, [line for line in lines if line.record.fingerprint["transformers"] == version]


def _scored(lines: Sequence[Line]) -> Iterator[str]:
    yield "| source | rows | n | median | p95 | worst | under | goal |"
    yield "|---|---|--:|--:|--:|--:|--:|---|"
    for source in SOURCES:
        for name, part in _groups(lines):
            found = score([line.row() for line in part], source)
            goal = _judged(found) if source == DRY_RUN else ""
            yield f"| {source} | {name} | {found.n} of {len(part)} | " + " | ".join([*_cells(found), goal]) + " |"


def _cells(found: Score) -> list[str]:
    if not found.n:
        return ["-"] * 4
    assert found.median_abs_error is not None
    assert found.p95_abs_error is not None
    assert found.under_predicted is not None
    sizes = [f"{found.median_abs_error:.2%}", f"{found.p95_abs_error:.2%}", _percent(found.worst_error)]
    return [*sizes, f"{found.under_predicted:.0%}"]


def _judged(found: Score) -> str:
    """Which of the three goals are missed."""
    figures = (
        ("median", found.median_abs_error, MEDIAN_GOAL),
        ("p95", found.p95_abs_error, P95_GOAL),
        ("worst", found.worst_error, WORST_GOAL),
    )
    missed = [name for name, figure, goal in figures if figure is not None and abs(figure) > goal]
    return f"missed: {', '.join(missed)}" if missed else "met"


def _verdicts(lines: Sequence[Line]) -> Iterator[str]:
    """What the scores say, in words and from the same figures."""
    both = [line for line in lines if line.version_difference is not None]
    worst = max(abs(line.error(PHANTOM) or 0) for line in both)
    printed = sum(_beyond(line, PHANTOM) <= 0 for line in both)
    yield f"Of {len(both)} rows there are both.  The phantom of their time is off by at most {worst:.2%}, and in"
    yield f"{printed} by no more than the figure was rounded: where the dry run misses its goal, it is by what changed"
    yield "since."
    others = [line.id for line in lines if DRY_RUN in line.predicted_bytes and line.version_difference is None]
    if others:
        yield f"Without a recording of their time: {', '.join(others)}."


def _beyond(line: Line, source: str) -> int:
    """How far a source lies outside of what would have been printed so, in bytes."""
    return abs(line.predicted_bytes[source] - line.published_bytes) - line.rounding_bytes


def _as_row(line: Line) -> str:
    versions = f"{line.record.fingerprint['torch']}, {line.record.fingerprint['transformers']}"
    errors = [_percent(line.error(source)) for source in SOURCES]
    errors.insert(2, _percent(line.version_difference))
    cells = [line.id, line.case.label(), versions, gib(line.published_bytes), *errors, cause(line)]
    return "| " + " | ".join(cells) + " |"


def _percent(error: float | None) -> str:
    return "-" if error is None else f"{error:+.2%}"


def summary(lines: Sequence[Line]) -> str:
    """README's table."""
    table = ["| source | rows | median | p95 | worst | too low |", "|---|--:|--:|--:|--:|--:|"]
    table.append(f"| *goal of the dry run* | | {MEDIAN_GOAL:.1%} | {P95_GOAL:.0%} | {WORST_GOAL:.0%} | |")
    dry = [line for line in lines if DRY_RUN in line.predicted_bytes]
    parts = [(DRY_RUN, f"{DRY_RUN}, all", dry)]
    parts += [
        (DRY_RUN, f"{DRY_RUN}, published with transformers {version}",
         [line for line in dry if line.record.fingerprint["transformers"] == version])
        for version in dict.fromkeys(line.record.fingerprint["transformers"] for line in dry)
    ]  # fmt: skip
    parts += [(PHANTOM, f"{PHANTOM}, the published code", dry), (ARTICLE, ARTICLE, dry)]
    for source, name, part in parts:
        found = score([line.row() for line in part], source)
        table.append(f"| {name} | {found.n} | " + " | ".join(_cells(found)) + " |")
    return "\n".join(table) + "\n"


def with_summary(text: str, table: str) -> str:
    """README's text with the table between its markers.  Raises UsageError where it has none."""
    return between(text, BEGIN, END, table)


def write(results: Path, readme: Path) -> None:
    """Write the page, the CSV and README's table."""
    found = gather(results)
    made_with = json.loads((results / accuracy.FOLDER / accuracy.MADE_WITH).read_text(encoding="utf-8"))
    (results / TABLE).write_text(as_csv(found), encoding="utf-8")
    (results / PAGE).write_text(as_markdown(found, made_with["versions"]), encoding="utf-8")
    text = with_summary(readme.read_text(encoding="utf-8"), summary(found))
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        write(*(Path(argument) for argument in sys.argv[1:3]))
    except NooomError as problem:
        sys.exit(f"nooom: {problem}")
