"""Measurements beside predictions, one row a case and phase.  Errors are signed: (predicted - measured) / measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nooom.benchmarks.models.zoo import resolve
from nooom.benchmarks.sources import PEAK, Prediction, Source, predict_article
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.shape import ModelShape
from nooom.profiler.measurement import evidence

if TYPE_CHECKING:
    import pandas as pd

METRIC = "max_memory_allocated"
"""What is compared; reserved and NVML's figures are reported, not predicted."""

_ARTICLE: Mapping[str, Source] = {"article": predict_article}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One phase of one measurement, and what each source predicted for it (missing where it says nothing)."""

    case_id: str
    label: str
    workload: str
    status: str
    device: str
    source: str
    phase: str
    measured_bytes: int | None
    predicted_bytes: Mapping[str, int]
    gpu: str | None = None
    gpu_total_bytes: int | None = None
    record: int = 0
    """The number of its record in the table: a case may have been measured twice."""

    @property
    def evidence(self) -> str:
        """The words for what ran: ``measured on cuda``."""
        return evidence(self.source, self.device)

    def error(self, source: str) -> float | None:
        """Signed relative error of a source; None where either side is unknown."""
        predicted = self.predicted_bytes.get(source)
        if predicted is None or not self.measured_bytes:
            return None
        return (predicted - self.measured_bytes) / self.measured_bytes


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One record of the table, with its case and its model's sizes."""

    case: Case
    shape: ModelShape
    place: str
    """``file:line``; empty for a record that comes from no file."""
    facts: Mapping[str, Any]
    """The columns that all its phases share."""
    measured: Mapping[str, int]
    """max_memory_allocated by phase, in bytes; unknown phases are left out."""

    @property
    def evidence(self) -> str:
        """As :attr:`Row.evidence`."""
        return evidence(self.facts["source"], self.facts["device"])


def compare(
    table: pd.DataFrame,
    sources: Mapping[str, Source] = _ARTICLE,
    shapes: Mapping[str, ModelShape] | None = None,
) -> list[Row]:
    """A row for each phase, then one for the peak.  A case that did not finish has a single row with its status.

    Args:
        table: as :func:`nooom.load` gives it; records are shown in its order.
        sources: who predicts, by name.
        shapes: of models that are already resolved, by case_id.

    Raises:
        UsageError: a model that is not known here, with file and line of its record.
    """
    return [row for record in records(table, shapes) for row in _rows(record, sources)]


def records(table: pd.DataFrame, shapes: Mapping[str, ModelShape] | None = None) -> Iterator[Compared]:
    """The records of a table, whole again; raises as :func:`compare` does."""
    from nooom.benchmarks.frame import case_of

    known, by_model = shapes or {}, dict[str, ModelShape]()
    # Lists: pandas takes milliseconds for each row that it is asked for.
    columns = {str(name): table[name].tolist() for name in table}
    rows_of: dict[int, list[int]] = {}
    for row, record in enumerate(columns["record"]):
        rows_of.setdefault(record, []).append(row)
    phases, peaks = columns["phase"], columns["peak_allocated_bytes"]
    for rows in rows_of.values():
        first = {name: values[rows[0]] for name, values in columns.items()}
        if not _missing(first["name"]):
            continue  # anyone's own code, of which no formula says anything
        case = case_of(first)
        place = "" if _missing(first["file"]) else f"{first['file']}:{first['line']}"
        shape = known.get(first["case_id"]) or by_model.get(case.model)
        if shape is None:
            shape = by_model[case.model] = _shape(case, place)
        measured = {phases[row]: peaks[row] for row in rows if isinstance(peaks[row], int)}
        yield Compared(case=case, shape=shape, place=place, facts=first, measured=measured)


def _missing(value: Any) -> bool:
    return not isinstance(value, str)


def _shape(case: Case, place: str) -> ModelShape:
    try:
        return ModelShape.from_config(resolve(case.model).config, where=case.model)
    except UsageError as error:
        raise UsageError(f"{place}: {error}" if place else str(error)) from error


def _rows(record: Compared, sources: Mapping[str, Source]) -> Iterator[Row]:
    said = {name: source(record.case, record.shape) for name, source in sources.items()}
    finished = record.facts["status"] == "ok"
    figures: dict[str, int | None] = {**record.measured} if finished else {}
    figures[PEAK] = max(record.measured.values(), default=None) if finished else None
    total = record.facts["gpu_total_bytes"]
    for phase, measured in figures.items():
        yield Row(
            label=record.case.label(),
            phase=phase,
            measured_bytes=measured,
            predicted_bytes=_predicted(said, phase),
            gpu=None if _missing(record.facts["gpu"]) else record.facts["gpu"],
            gpu_total_bytes=int(total) if isinstance(total, int) else None,
            record=int(record.facts["record"]),
            **{name: record.facts[name] for name in ("case_id", "workload", "status", "device", "source")},
        )


def _predicted(said: Mapping[str, Prediction | None], phase: str) -> dict[str, int]:
    by_phase = {name: prediction.by_phase() for name, prediction in said.items() if prediction is not None}
    return {name: phases[phase] for name, phases in by_phase.items() if phase in phases}
