"""What was measured beside what was emulated and what the article says, phase by phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks import oracle
from nooom.benchmarks.campaign.collect import gpu_name, versions
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.sources import PEAK, predict_article
from nooom.formulas.case import Case
from nooom.profiler.measurement import Measurement

SIDES = ("emulated", "article")
"""Whose figures stand beside the measured one."""
LARGE = 0.005
"""From this share of what was measured on, a difference wants a cause."""


@dataclass(frozen=True, kw_only=True)
class Emulation:
    """A case as a phantom had it."""

    versions: str
    status: str
    phases: Mapping[str, int]
    """Peaks of allocated bytes by phase."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One phase of one case, or its peak."""

    gpu: str
    case: Case
    phase: str
    status: str
    emulated_status: str | None
    """None where no phantom has run it."""
    measured_bytes: int | None
    said_bytes: Mapping[str, int]
    """By side; a side that says nothing is left out."""
    same_versions: bool = True
    """Whether the phantom ran the versions that were measured."""

    def error(self, side: str) -> float | None:
        """(said - measured) / measured; None where either is unknown."""
        said = self.said_bytes.get(side)
        return None if said is None or not self.measured_bytes else (said - self.measured_bytes) / self.measured_bytes

    def is_large(self, side: str) -> bool:
        error = self.error(side)
        return error is not None and abs(error) > LARGE


Emulations = Mapping[tuple[str, Case], Sequence[Emulation]]


def recorded(results: Path) -> dict[tuple[str, Case], list[Emulation]]:
    """What phantoms are recorded to have said, by GPU and case: the oracle's grid and the campaign's rehearsals."""
    found: dict[tuple[str, Case], list[Emulation]] = {}
    folders = sorted({file.parent for file in results.glob("**/*torch-*/*.jsonl")})
    for folder in folders:
        for item in oracle.load(folder):
            phases = {name: figures["peak_allocated_bytes"] for name, figures in item.phases.items()}
            said = Emulation(versions=folder.name, status=item.status, phases=phases)
            found.setdefault((item.gpu, item.case), []).append(said)
    return found


def of_run(records: Iterable[Measurement]) -> dict[tuple[str, Case], list[Emulation]]:
    """The same of runs on a phantom that are at hand."""
    found: dict[tuple[str, Case], list[Emulation]] = {}
    for record in records:
        if record.source != "emulated":
            continue
        said = Emulation(versions=_named(record), status=record.status, phases=_peaks(record))
        found.setdefault((gpu_name(record), Case.from_dict(record.case)), []).append(said)
    return found


def differences(records: Iterable[Measurement], emulations: Emulations) -> Iterator[Difference]:
    """A row for each phase and one for the peak; for a case that did not finish, one row."""
    for record in records:
        case, gpu = Case.from_dict(record.case), gpu_name(record)
        said = _nearest(emulations.get((gpu, case), ()), _named(record))
        _, shape = resolve_case(case)
        emulated = _with_peak(said.phases) if said is not None and said.status == "ok" else {}
        sides = {"emulated": emulated, "article": predict_article(case, shape).by_phase()}
        measured: Mapping[str, int | None] = _with_peak(_peaks(record)) if record.status == "ok" else {PEAK: None}
        for phase, figure in measured.items():
            yield Difference(
                gpu=gpu,
                case=case,
                phase=phase,
                status=record.status,
                emulated_status=None if said is None else said.status,
                measured_bytes=figure,
                said_bytes={side: phases[phase] for side, phases in sides.items() if phase in phases},
                same_versions=said is None or _releases(said.versions) == _releases(_named(record)),
            )


def _nearest(said: Sequence[Emulation], named: str) -> Emulation | None:
    """Of these versions where there is one, else of the newest others."""
    same = [item for item in said if _releases(item.versions) == _releases(named)]
    nearest = same or list(said)
    return nearest[-1] if nearest else None


def _named(record: Measurement) -> str:
    return "_".join(f"{name}-{value}" for name, value in versions(record).items())


def _releases(named: str) -> tuple[str, ...]:
    """Torch and transformers, without what a build adds to its release (+cu130): they decide what is allocated."""
    return tuple(part.split("+")[0] for part in named.split("_")[:2])


def _peaks(record: Measurement) -> dict[str, int]:
    return {phase.name: phase.peak_allocated_bytes for phase in record.phases if phase.peak_allocated_bytes is not None}


def _with_peak(phases: Mapping[str, int]) -> dict[str, int]:
    return {**phases, PEAK: max(phases.values())} if phases else {}
