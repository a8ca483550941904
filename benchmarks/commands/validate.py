"""``nooom validate``: predictions beside measurements, the sources' scores, and the article's claims."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nooom.benchmarks import shipped
from nooom.formulas.errors import UsageError

if TYPE_CHECKING:
    from nooom.benchmarks.compare import Row
    from nooom.benchmarks.verdicts import Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asked for."""

    results: Sequence[Path]
    claims: bool
    by: str | None
    estimators: Sequence[str]
    strict: bool
    as_json: bool


def validate(request: Request) -> int:
    """Show the tables; returns the exit code: 1 where ``--strict`` finds a claim broken."""
    if request.strict and not request.claims:
        raise UsageError("--strict judges the article's claims: add --claims")
    if request.claims and not (request.results or request.by or request.estimators):
        return _claims(request)
    rows, names = _compared(request)
    found = _verdicts() if request.claims else []
    if request.as_json:
        _print(comparison_document(rows, names), found)
    else:
        from nooom.benchmarks.reports import claims, validation

        validation.show(rows, names)
        if request.claims:
            claims.show(found)
    return _code(request, found)


def _claims(request: Request) -> int:
    """The claims alone, without reading a table: their evidence is what ships."""
    found = _verdicts()
    if request.as_json:
        _print({"schema_version": SCHEMA_VERSION, "comparisons": [], "summary": {}}, found)
    else:
        from nooom.benchmarks.reports import claims

        claims.show(found)
    return _code(request, found)


def _print(document: Mapping[str, Any], found: Sequence[Verdict]) -> None:
    print(json.dumps({**document, "claims": [verdict.to_json() for verdict in found]}, allow_nan=False))


def _verdicts() -> list[Verdict]:
    from nooom.benchmarks.verdicts import verdicts

    return verdicts()


def _code(request: Request, found: Sequence[Verdict]) -> int:
    return 1 if request.strict and any(verdict.broken for verdict in found) else 0


def _compared(request: Request) -> tuple[list[Row], list[str]]:
    from nooom.benchmarks import recorded
    from nooom.benchmarks.compare import compare
    from nooom.benchmarks.frame import load_all
    from nooom.benchmarks.sources import DRYRUN, EMULATED, sources, split

    run, by = split(request.by)
    nobody = bool(run) and by is None and not request.estimators
    asked = {} if nobody else sources(EMULATED if EMULATED in run else by, request.estimators)
    measured, dry_runs = recorded.apart(load_all(request.results or shipped.MEASUREMENTS))
    if measured.empty:
        raise UsageError("nothing but dry runs, which are predictions: validate holds them against measurements")
    rows = compare(measured, asked)
    if DRYRUN not in run or (dry_runs.empty and not nobody):
        return rows, list(asked)
    if dry_runs.empty:
        raise UsageError("--by dryrun: no dry runs among the results; nooom run --device dryrun --gpu NAME keeps them")
    return recorded.beside(rows, dry_runs), [*asked, DRYRUN]


def comparison_document(rows: Sequence[Row], names: Sequence[str]) -> dict[str, Any]:
    """What ``validate --json`` prints: each comparison, and each source's scores."""
    from nooom.benchmarks.compare import METRIC

    return {
        "schema_version": SCHEMA_VERSION,
        "comparisons": [
            {
                "case_id": row.case_id,
                "case": row.label,
                "evidence": row.evidence,
                "phase": row.phase,
                "status": row.status,
                "source": name,
                "metric": METRIC,
                "predicted_bytes": row.predicted_bytes.get(name),
                "measured_bytes": row.measured_bytes,
                "error": row.error(name),
            }
            for row in rows
            for name in names
        ],
        "summary": {name: _summary(rows, name) for name in names},
    }


def _summary(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """A source's score over everything, and apart by evidence and workload, which are different questions."""
    from nooom.benchmarks.scores import score

    parts = groups(rows)
    apart = [{**dict(key), **score(part, name).to_json()} for key, part in parts.items()]
    return {**score(rows, name).to_json(), "groups": apart}


def groups(rows: Sequence[Row]) -> Mapping[tuple[tuple[str, str], ...], list[Row]]:
    """The rows by evidence and workload, in the order in which they come."""
    found: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        found.setdefault((("evidence", row.evidence), ("workload", row.workload)), []).append(row)
    return found
