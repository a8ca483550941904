"""Measurements beside predictions, one row a case and phase.  Errors are signed: (predicted - measured) / measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nooom.benchmarks.models.zoo import resolve
from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.shape import ModelShape
from nooom.profiler.measurement import Measurement

PEAK = "peak"
"""The row of the whole case: its largest phase."""


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

    def error(self, source: str) -> float | None:
        """Signed relative error of a source; None where either side is unknown."""
        predicted = self.predicted_bytes.get(source)
        if predicted is None or not self.measured_bytes:
            return None
        return (predicted - self.measured_bytes) / self.measured_bytes


def predict_article(case: Case, shape: ModelShape) -> dict[str, int]:
    """The article's bytes by phase; ``peak`` is the largest of what it speaks of."""
    phases = {name: sum(parts.values()) for name, parts in article.by_phase(case, shape).items()}
    phases[PEAK] = max(phases.values())
    return phases


def _predicted(case: Case, shape: ModelShape | None) -> dict[str, int]:
    """Nothing for a model that is not here: somebody else's folder, or one that has moved since."""
    try:
        return predict_article(case, shape or ModelShape.from_config(resolve(case.model).config, where=case.model))
    except UsageError:
        return {}


def compare(measurements: Iterable[Measurement], shapes: Mapping[str, ModelShape] | None = None) -> list[Row]:
    """A row for each phase, then one for the peak.  A case that did not finish has a single row with its status.

    Args:
        measurements: records, in the order in which they are shown.
        shapes: of models that are already resolved, by case_id.
    """
    rows: list[Row] = []
    for measurement in measurements:
        case = Case.from_dict(measurement.case)
        predicted = _predicted(case, (shapes or {}).get(measurement.case_id))
        figures = {phase.name: phase.peak_allocated_bytes for phase in measurement.phases}
        if measurement.status != "ok":
            figures = {}
        figures[PEAK] = measurement.peak_allocated_bytes if measurement.status == "ok" else None
        for phase, measured in figures.items():
            said = {"article": predicted[phase]} if phase in predicted else {}
            rows.append(
                Row(
                    case_id=measurement.case_id,
                    label=case.label(),
                    workload=case.workload,
                    status=measurement.status,
                    device=measurement.device,
                    source=measurement.source,
                    phase=phase,
                    measured_bytes=measured,
                    predicted_bytes=said,
                )
            )
    return rows
