"""Who predicts: formula sets and estimators behind one interface, by the names that ``--by`` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nooom.formulas import article
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.shape import ModelShape

PEAK = "peak"
"""The whole case: its largest phase.  Also what a source calls the one figure that it gives of a whole case."""

_UNBUILT = ("derived", "calibrated")
EMULATED = "phantom"
DRYRUN = "dryrun"
RUN = (DRYRUN, EMULATED)
"""No arithmetic, and no :data:`Source`: ``predict`` runs the case, on a GPU that is named."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What one source says of one case."""

    phases: Mapping[str, Mapping[str, int]]
    """Components in bytes by phase, in the order in which phases run; never empty."""

    @property
    def peak_phase(self) -> str:
        """The largest phase: phases that do not overlap are never added."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def components(self) -> Mapping[str, int]:
        """The components of the largest phase, in bytes."""
        return self.phases[self.peak_phase]

    @property
    def allocated_bytes(self) -> int:
        """Its estimate of ``torch.cuda.max_memory_allocated`` over the case."""
        return sum(self.components.values())

    def by_phase(self) -> dict[str, int]:
        """Bytes by phase, and the largest of them under ``peak``."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()} | {PEAK: self.allocated_bytes}


Source = Callable[[Case, ModelShape], Prediction | None]
"""None for a case about which the source says nothing."""


def predict_article(case: Case, shape: ModelShape) -> Prediction:
    """The article's formulas with the article's constants."""
    return Prediction(phases=article.by_phase(case, shape))


_FORMULA_SETS: Mapping[str, Source] = {"article": predict_article}
DEFAULT = ("article",)
"""What is asked when nobody is named: the formula sets."""


def sources(by: str | None = None, estimators: Sequence[str] = ()) -> dict[str, Source]:
    """The sources that a command was asked for, by name, in the order asked for.

    Args:
        by: names with commas, as ``--by`` takes them; ``all`` is every one that is installed; None the default.
        estimators: ``module:function`` or a registered name each, as ``--estimator`` takes them; they come on top.

    Raises:
        UsageError: a name that is no source, or one that is not built or not installed.
    """
    names = _named(by)
    return {name: _source(name) for name in dict.fromkeys([*names, *estimators])}


def split(by: str | None) -> tuple[tuple[str, ...], str | None]:
    """Which of :data:`RUN` are among the names, and the other names; None where there are none.

    ``all`` has the dry run in it, which is there wherever torch is, and no phantom.
    """
    names = [] if by is None else [part.strip() for part in by.split(",")]
    others = [name for name in names if name not in RUN]
    run = tuple(name for name in RUN if name in names or (name == DRYRUN and "all" in names))
    return run, ",".join(others) if others else None


def _named(by: str | None) -> list[str]:
    if by is None:
        return list(DEFAULT)
    names = [part.strip() for part in by.split(",")]
    if "all" not in names:
        return names
    from nooom.benchmarks.estimators.registry import installed

    return [*_FORMULA_SETS, *installed()]


def _source(name: str) -> Source:
    if name in _FORMULA_SETS:
        return _FORMULA_SETS[name]
    if name in RUN:
        raise UsageError(f"--by {name} runs the case, which is for nooom predict; to keep records: run --device {name}")
    if name in _UNBUILT:
        raise UsageError(f"--by {name} is not built yet; built: {', '.join(_FORMULA_SETS)}, and estimators")
    from nooom.benchmarks.estimators import registry

    if ":" not in name and name not in (known := registry.names()):
        valid = ["all", *RUN, *_FORMULA_SETS, *_UNBUILT, *known]
        raise UsageError(f"--by {name!r} is unknown; {nearest(name, valid)}")
    estimator = registry.find(name)

    def predict(case: Case, shape: ModelShape) -> Prediction | None:
        components = registry.estimate(name, estimator, case, shape)
        return None if components is None else Prediction(phases={PEAK: components})

    return predict
