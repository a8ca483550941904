"""``nooom calibrate``: fit each source's constants to measurements, a table for each GPU and set of versions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nooom.formulas.errors import UsageError

if TYPE_CHECKING:
    from nooom.benchmarks.calibration import Model
    from nooom.benchmarks.compare import Compared
    from nooom.benchmarks.reports.calibration import Table

SCHEMA_VERSION = 1
OUT = Path("results/calibration")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    results: Sequence[Path]
    by: str | None
    estimators: Sequence[str]
    out: Path
    as_json: bool


def calibrate(request: Request) -> int:
    """Fit, write the tables, and show them; returns the exit code."""
    from nooom.benchmarks.reports import calibration as report

    if not request.results:
        raise UsageError("nothing to fit to: give a folder of measurements, e.g. nooom calibrate nooom-results")
    found = tables(request.results, request.by, request.estimators)
    if not found:
        raise UsageError(f"{request.results[0]}: no finished case of which {_asked(request)} says anything")
    written = [path for table in found for path in report.write(table, request.out)]
    if request.as_json:
        constants = [{**table.label(), **constant.to_json()} for table in found for constant in table.constants]
        files = [str(path) for path in written]
        print(json.dumps({"schema_version": SCHEMA_VERSION, "constants": constants, "coverage": None, "files": files}))
    else:
        report.show(found, written)
    return 0


def _asked(request: Request) -> str:
    return ", ".join([*(request.by or "article").split(","), *request.estimators])


def tables(results: Sequence[Path], by: str | None = None, estimators: Sequence[str] = ()) -> list[Table]:
    """A table for each source, GPU (or CPU) and set of library versions; cases that did not finish are left out.

    Raises:
        UsageError: as :func:`nooom.load` does, an unknown model with its place, or an unknown source.
    """
    from nooom.benchmarks.calibration import fit, untouched
    from nooom.benchmarks.compare import records
    from nooom.benchmarks.frame import load_all
    from nooom.benchmarks.reports.calibration import Table

    finished = [record for record in records(load_all(results)) if record.facts["status"] == "ok"]
    made = []
    for model in _models(by, estimators, finished):
        for (gpu, evidence, versions), part in _alike(finished).items():
            fits = fit(part, model)
            if fits:
                made.append(
                    Table(
                        source=model.name,
                        gpu=gpu,
                        evidence=evidence,
                        versions=dict(versions),
                        fits=tuple(fits),
                        untouched=tuple(untouched(fits, model)),
                        case_ids=tuple(dict.fromkeys(record.facts["case_id"] for record in part)),
                        files=tuple(dict.fromkeys(record.place.rpartition(":")[0] for record in part)),
                    )
                )
    return made


def _models(by: str | None, estimators: Sequence[str], records: Sequence[Compared]) -> Iterator[Model]:
    from nooom.benchmarks.calibration import article_model, scaled_model
    from nooom.benchmarks.sources import sources

    for name, source in sources(by, estimators).items():
        if name == "article":
            yield article_model()
            continue
        said = [source(record.case, record.shape) for record in records]
        parts = [part for one in said if one is not None for phase in one.phases.values() for part in phase]
        yield scaled_model(name, source, dict.fromkeys(parts))


def _alike(records: Sequence[Compared]) -> Mapping[tuple[str, str, tuple[tuple[str, str | None], ...]], list[Compared]]:
    """The records by what one table may hold: one GPU, one kind of evidence, one set of versions."""
    found: dict[tuple[str, str, tuple[tuple[str, str | None], ...]], list[Compared]] = {}
    for record in records:
        found.setdefault((_gpu(record.facts), record.evidence, _versions(record.facts)), []).append(record)
    return found


def _gpu(facts: Mapping[str, Any]) -> str:
    """The GPU by the command's name for it where it has one; evidence that isn't measured is part of the name."""
    from nooom.formulas.gpus import file_name

    total = facts["gpu_total_bytes"]
    known = isinstance(facts["gpu"], str)
    name = file_name(facts["gpu"], total if isinstance(total, int) else None) if known else str(facts["device"])
    return name if facts["source"] == "measured" else f"{name}-{facts['source']}"


def _versions(facts: Mapping[str, Any]) -> tuple[tuple[str, str | None], ...]:
    from nooom.benchmarks.runner import LIBRARIES

    return tuple((name, facts[name] if isinstance(facts[name], str) else None) for name in LIBRARIES)
