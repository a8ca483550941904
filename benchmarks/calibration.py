"""Fits a source's constants to measurements: least squares, workload by workload and phase by phase.

Every formula here is linear in its constants, so a phase's prediction is ``fixed + columns @ constants``: the columns
are read off the formula itself, by setting one constant to 1 and the others to 0.  Rows are divided by what was
measured, which makes residuals relative errors: a large model weighs no more than a small one.

What the rows can't tell is refused and named: a constant that no row depends on, constants whose columns are parallel
(their one combination is fitted in their place), columns that depend on one another, and more constants than rows can
bear (measuring one case twice makes no second row).  Why this, which needs numpy, lies on the top floor:
docs/decisions/0002-calibration-on-the-top-floor.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nooom.benchmarks.compare import Compared
from nooom.benchmarks.least_squares import Array, Column, Solved, merge, solve, total
from nooom.benchmarks.sources import PEAK, Prediction, Source
from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.constants import ARTICLE
from nooom.formulas.errors import NooomError
from nooom.formulas.shape import ModelShape

COLLINEAR = "collinear with "
"""How the reason begins where only a combination can be told."""
_LINEAR = 1e-6
"""How far (relative) a formula may lie from its linear form: the rounding of its parts to whole bytes."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A source whose constants can be fitted."""

    name: str
    start: Mapping[str, float]
    """Each constant and the value that the source gives it."""
    phases: Callable[[Case, ModelShape, Mapping[str, float]], Mapping[str, Mapping[str, int]] | None]
    """Components in bytes by phase, given every constant; None where the source says nothing of a case."""


def article_model() -> Model:
    """The article's formulas and its named constants."""
    return Model(name="article", start=ARTICLE, phases=article.by_phase)


def scaled_model(name: str, source: Source, components: Iterable[str]) -> Model:
    """Anyone's estimator: a factor for each of its components, which it sets to 1."""
    start = {f"{component}_scale": 1.0 for component in components}

    def phases(case: Case, shape: ModelShape, scales: Mapping[str, float]) -> dict[str, dict[str, int]] | None:
        said = source(case, shape)
        if said is None:
            return None
        return {
            phase: {part: round(size * scales[f"{part}_scale"]) for part, size in parts.items()}
            for phase, parts in said.phases.items()
        }

    return Model(name=name, start=start, phases=phases)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """One constant of one workload's phase; or the one combination of several that the rows can tell."""

    workload: str | None
    phase: str | None
    """None for a constant that no row of any phase depends on."""
    name: str
    article: float
    """The value that its source gives it, the article's or the estimator's."""
    fitted: float | None
    standard_error: float | None
    n: int
    """Rows that depend on it."""
    residual: float | None
    """Of the whole phase's fit: root mean square of the relative errors."""
    identified: bool
    why: str
    """Where it is not identified: what the rows lack."""

    def to_json(self) -> dict[str, Any]:
        """As ``calibrate --json`` prints it; no interval is computed yet, which null says."""
        return {**vars(self), "low": None, "high": None}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One workload's phase: its constants, and the errors before and after, in sample."""

    workload: str
    phase: str
    n: int
    constants: tuple[Fitted, ...]
    median_error_before: float
    """Median of the absolute relative errors with the source's own constants."""
    median_error_after: float | None
    """With the fitted ones, on the rows they were fitted to; None where nothing was."""


def fit(records: Sequence[Compared], model: Model) -> list[Fit]:
    """Fit the constants to finished records, workload by workload and phase by phase.

    Raises:
        NooomError: a model that is not linear in its constants.
    """
    rows: dict[tuple[str, str], list[tuple[Compared, int]]] = {}
    for record in records:
        for phase, measured in _figures(record, model).items():
            rows.setdefault((record.case.workload, phase), []).append((record, measured))
    return [_fit_phase(workload, phase, part, model) for (workload, phase), part in rows.items()]


def untouched(fits: Sequence[Fit], model: Model) -> list[Fitted]:
    """The constants that no row of any phase depends on."""
    touched = {part for one in fits for constant in one.constants for part in _parts(constant.name)}
    why = "no row depends on it"
    nothing = {"workload": None, "phase": None, "fitted": None, "standard_error": None, "n": 0, "residual": None}
    return [
        Fitted(name=name, article=start, identified=False, why=why, **nothing)  # type: ignore[arg-type]
        for name, start in model.start.items()
        if name not in touched
    ]


def _parts(name: str) -> list[str]:
    """The constants in a combination's name: ``2*bf16_bytes + adam_moment_bytes``."""
    return [part.split("*")[-1] for part in name.split(" + ")]


def _figures(record: Compared, model: Model) -> dict[str, int]:
    """The measured phases that the model speaks of.

    The peak counts where the model gives one figure of the whole case, or where nothing else was measured: beside
    phases it would count one of them twice.
    """
    said = model.phases(record.case, record.shape, model.start)
    if said is None or record.facts["status"] != "ok" or not record.measured:
        return {}
    found = {phase: size for phase, size in record.measured.items() if phase in said and size}
    if PEAK in said or PEAK in record.measured:
        found[PEAK] = max(record.measured.values())
    return found


def _fit_phase(workload: str, phase: str, rows: Sequence[tuple[Compared, int]], model: Model) -> Fit:
    measured = np.array([size for _, size in rows], dtype=float)
    fixed, columns = _design(phase, rows, model)
    merged = merge(columns)
    predicted = fixed + total(columns)
    solved = solve(merged, measured - fixed, measured)
    constants = [_as_fitted(workload, phase, column, solved) for column in merged]
    constants += [_parallel(workload, phase, column, name, model) for column in merged for name in _several(column)]
    after = None if solved.values is None else fixed + total(merged, solved.values)
    return Fit(
        workload=workload,
        phase=phase,
        n=len(rows),
        constants=tuple(constants),
        median_error_before=float(np.median(np.abs(predicted / measured - 1))),
        median_error_after=None if after is None else float(np.median(np.abs(after / measured - 1))),
    )


def _design(phase: str, rows: Sequence[tuple[Compared, int]], model: Model) -> tuple[Array, list[Column]]:
    """What of each row's prediction no constant changes, and a column for each constant that changes any."""
    where = [_where(record, phase, model) for record, _ in rows]

    def predicted(values: Mapping[str, float]) -> Array:
        sizes = []
        for (record, _), part in zip(rows, where, strict=True):
            said = model.phases(record.case, record.shape, values)
            sizes.append(float(sum(said[part].values())) if said is not None else 0.0)
        return np.array(sizes)

    nothing = dict.fromkeys(model.start, 0.0)
    fixed = predicted(nothing)
    columns = []
    for name, start in model.start.items():
        values = predicted({**nothing, name: 1.0}) - fixed
        if np.any(values):
            columns.append(Column(name=name, members=(name,), start=start, values=values))
    _check_linear(model, predicted(model.start), fixed + total(columns))
    return fixed, columns


def _where(record: Compared, phase: str, model: Model) -> str:
    """The model's phase that stands for a measured one: for the peak the one that is largest at its own constants."""
    said = model.phases(record.case, record.shape, model.start)
    if said is None:
        raise AssertionError("only rows that the model speaks of are fitted")
    return phase if phase in said else Prediction(phases=said).peak_phase


def _check_linear(model: Model, said: Array, linear: Array | float) -> None:
    if np.any(np.abs(said - linear) > _LINEAR * np.maximum(np.abs(said), 1e6)):
        raise NooomError(f"{model.name} is not linear in its constants, so least squares can't fit them")


def _several(column: Column) -> tuple[str, ...]:
    return column.members if len(column.members) > 1 else ()


def _as_fitted(workload: str, phase: str, column: Column, solved: Solved) -> Fitted:
    return Fitted(
        workload=workload,
        phase=phase,
        name=column.name,
        article=column.start,
        fitted=solved.by_name.get(column.name),
        standard_error=solved.errors.get(column.name),
        n=column.n,
        residual=solved.residual,
        identified=column.name in solved.by_name,
        why=solved.refused.get(column.name, ""),
    )


def _parallel(workload: str, phase: str, column: Column, name: str, model: Model) -> Fitted:
    """One member of a combination, which the rows can't tell from the others."""
    others = ", ".join(other for other in column.members if other != name)
    return Fitted(
        workload=workload, phase=phase, name=name, article=model.start[name], fitted=None, standard_error=None,
        n=column.n, residual=None, identified=False, why=f"{COLLINEAR}{others}: only {column.name} can be told",
    )  # fmt: skip
