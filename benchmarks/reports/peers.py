"""``python -m nooom.benchmarks.reports.peers MEASUREMENTS FOLDER [README]``: others' estimators beside measurements.

Asks every estimator that is installed and writes FOLDER/peers.csv, what each predicted in exact bytes, and
FOLDER/peers.md, which is made of that file and the measurements alone; so is the table between README's markers.
``make peers`` runs it where all of them are installed.
"""

from __future__ import annotations

import csv
import importlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Self

from nooom.benchmarks.compare import Row, compare, records
from nooom.benchmarks.estimators.registry import ADAPTERS
from nooom.benchmarks.frame import load
from nooom.benchmarks.reports import validation
from nooom.benchmarks.reports.figures import gib, percent
from nooom.benchmarks.reports.markers import between
from nooom.benchmarks.scores import Score, score
from nooom.benchmarks.sources import PEAK, sources
from nooom.formulas.errors import NooomError, UsageError

BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"
ARTICLE = "article"
_ARTICLE_SAYS = (
    "Inference: weights and a KV cache, of two whole hidden states a token and layer, which is several times too much "
    "where heads are grouped; no activations or logits. Training: fp32 moments and an fp32 master copy whatever the "
    "dtype, so 16 bytes a parameter where pure bf16 has 8; activations are Megatron's, with attention scores that "
    "flash attention never keeps, or two hidden states a layer under checkpointing; no logits."
)

_INTRODUCTION = """# Others' estimators beside published measurements

Each of the {cases} cases of [measured/public](measured/public/README.md) beside what the article and estimators that a
`pip install` brings say of it; the figure is `max_memory_allocated`.  Made by `make peers`;
[peers.csv](peers.csv) has every prediction in bytes.  Some of these estimators were made for another question (does the
model load, which GPU would serve it): they are held against this one all the same, since it is asked of them, and say
nothing where a dash stands.

## Scores

Errors are of the peaks, (predicted - measured) / measured; median and p95 leave the sign away.  *under* is the share
predicted too low, *PEF* the share in which trusting the estimate fails, *MCP* the memory that trusting it conserves a
run.
"""

_CAUSES = """## What they count, and where their errors come from

Read in the source of the versions named.  One cause is all estimators' alike: the Llama rows with completions were
measured with transformers 4.35, which holds the whole KV cache twice while a token is appended; weights and two caches
are within half a percent of what was measured there in the largest batches.
"""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What each source predicted for each case, as ``peers.csv`` holds it."""

    versions: Mapping[str, str]
    """Sources by name, in order; a formula set has the version ``""``."""
    figures: Mapping[str, Mapping[str, int]]
    """Bytes by source and case_id; a case about which a source says nothing is missing."""
    labels: Mapping[str, str]
    """Every case by its id."""

    @classmethod
    def ask(cls, measurements: Path, names: Sequence[str]) -> Self:
        """Ask the named sources about every case that was measured.  Raises NooomError where one of them fails."""
        asked = sources(",".join(names))
        found: dict[str, dict[str, int]] = {name: {} for name in asked}
        labels = {}
        for record in records(load(measurements)):
            case_id = str(record.facts["case_id"])
            if case_id in labels:  # measured twice
                continue
            labels[case_id] = record.case.label()
            for name, source in asked.items():
                if (said := source(record.case, record.shape)) is not None:
                    found[name][case_id] = said.allocated_bytes
        versions = {name: version(name) if name in ADAPTERS else "" for name in asked}
        return cls(versions=versions, figures=found, labels=labels)

    def as_csv(self) -> str:
        """A row a case, a column a source; empty where it says nothing."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["case_id", "case", *(f"{name} {number}".strip() for name, number in self.versions.items())])
        for case_id, label in self.labels.items():
            writer.writerow([case_id, label, *(self.figures[name].get(case_id) for name in self.versions)])
        return out.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> Self:
        """Read what :meth:`as_csv` wrote."""
        head, *rows = csv.reader(io.StringIO(text))
        versions = {name: number for name, _, number in (column.partition(" ") for column in head[2:])}
        figures = {
            name: {row[0]: int(row[place]) for row in rows if row[place]}
            for place, name in enumerate(versions, start=2)
        }
        return cls(versions=versions, figures=figures, labels={row[0]: row[1] for row in rows})

    def beside(self, measurements: Path) -> list[Row]:
        """The peaks that were measured, each with what was predicted for it."""
        return [
            replace(row, predicted_bytes=self._of(row.case_id))
            for row in compare(load(measurements), {})
            if row.phase == PEAK
        ]

    def _of(self, case_id: str) -> dict[str, int]:
        return {name: sizes[case_id] for name, sizes in self.figures.items() if case_id in sizes}


def everyone() -> list[str]:
    """The article and every adapter whose estimator must be here.  Raises UsageError where one is missing."""
    from nooom.benchmarks.estimators.registry import installed

    missing = [name for name in ADAPTERS if name not in installed()]
    if missing:
        raise UsageError(f"not installed here: {', '.join(missing)}; make peers installs them beside .venv")
    return [ARTICLE, *ADAPTERS]


def as_markdown(predictions: Predictions, rows: Sequence[Row]) -> str:
    """The whole page: scores, what each source counts, and every row."""
    names = list(predictions.versions)
    return "\n".join(
        [
            _INTRODUCTION.format(cases=len(rows)),
            *_scores(rows, names),
            "",
            _CAUSES,
            *(f"- **{_titled(predictions, name)}**: {_says(name)}" for name in names),
            "",
            "## Case by case",
            "",
            *_cases(rows, names),
            "",
        ]
    )


def _titled(predictions: Predictions, name: str) -> str:
    return f"{name} {predictions.versions[name]}".strip()


def _says(name: str) -> str:
    if name == ARTICLE:
        return _ARTICLE_SAYS
    says: str = importlib.import_module(ADAPTERS[name].module).SAYS
    return says


def _scores(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The scores' table without the lines of workloads about which a source says nothing."""
    return [line for line in validation.as_markdown(rows, names).splitlines() if " | 0 | - |" not in line]


def _cases(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    yield "| case | GPU | measured, GiB | " + " | ".join(names) + " |"
    yield "|---|---|--:|" + "--:|" * len(names)
    for row in rows:
        measured = gib(row.measured_bytes) if row.status == "ok" else row.status
        errors = [percent(row.error(name)) for name in names]
        yield f"| {row.label} | {row.gpu or row.device} | {measured} | " + " | ".join(errors) + " |"


def summary(predictions: Predictions, rows: Sequence[Row]) -> str:
    """README's table: a line a source; a column a workload, with the median error without its sign."""
    names = list(predictions.versions)
    workloads = list(dict.fromkeys(row.workload for row in rows))
    head = [*(f"{workload}, {_count(rows, workload)} cases" for workload in workloads), "worst", "too low"]
    lines = [f"| source | {' | '.join(head)} |", "|---|" + "--:|" * len(head)]
    for name in names:
        apart = [score([row for row in rows if row.workload == workload], name) for workload in workloads]
        whole = score(rows, name)
        low = "-" if whole.under_predicted is None else f"{whole.under_predicted:.0%}"
        cells = [*map(_median, apart), percent(whole.worst_error), low]
        lines.append(f"| {_titled(predictions, name)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _count(rows: Sequence[Row], workload: str) -> int:
    return sum(row.workload == workload for row in rows)


def _median(found: Score) -> str:
    return "-" if found.median_abs_error is None else percent(found.median_abs_error).removeprefix("+")


def with_summary(text: str, table: str) -> str:
    """README's text with the table between its markers.  Raises UsageError where it has none."""
    return between(text, BEGIN, END, table)


def write(measurements: Path, folder: Path, readme: Path | None = None) -> None:
    """Ask everyone, and write the files."""
    predictions = Predictions.ask(measurements, everyone())
    rows = predictions.beside(measurements)
    (folder / "peers.csv").write_text(predictions.as_csv(), encoding="utf-8")
    (folder / "peers.md").write_text(as_markdown(predictions, rows), encoding="utf-8")
    if readme is not None:
        text = with_summary(readme.read_text(encoding="utf-8"), summary(predictions, rows))
        readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        write(*(Path(argument) for argument in sys.argv[1:4]))
    except NooomError as problem:
        sys.exit(f"peers: {problem}")
