"""What the oracle's peaks are made of: files beside its recordings, one line for each case that was taken apart.

``{"case": {flags that were given}, "phases": {name: {"components": [bytes in the order of CATEGORIES], "measured":
peak of the pass without the tracer, "hidden": [blocks that no tensor owns]}}, "scratch": [what operations took for
themselves]}``.  :func:`chosen` says which cases; the tensors themselves are not kept, they are a
``nooom run --attribute`` away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement
from nooom.profiler.tracer.attribution import CATEGORIES
from nooom.profiler.tracer.hidden import name_of

FOLDER = "components"
"""Beside the recordings of one set of versions."""
_EVERY = 4


@dataclass(frozen=True, kw_only=True)
class Apart:
    """One phase's peak, taken apart."""

    gpu: str
    case: Case
    phase: str
    measured_bytes: int
    """The peak without the tracer."""
    components: dict[str, int]
    hidden: list[dict[str, Any]]

    @property
    def peak_bytes(self) -> int:
        """The peak that was taken apart."""
        return sum(self.components.values())

    @property
    def unknown_bytes(self) -> int:
        """Of blocks that no tensor owns and no kernel is known for."""
        return sum(block["bytes"] * block["count"] for block in self.hidden if block["what"] is None)


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """What one call of an operation took for itself: in a case, the call of it that took most."""

    gpu: str
    case: Case
    op: str
    backward: bool
    inputs: tuple[tuple[int, ...], ...]
    """Shapes, the first eight."""
    tensors: int
    """How many it was given."""
    largest: int
    """Elements of the largest of them."""
    output: tuple[int, ...] | None
    dtype: str | None
    sizes: tuple[int, ...]
    bytes: int


def chosen(cases: Sequence[Case]) -> set[int]:
    """The numbers of a suite's cases that are taken apart: one in four, and of each workload one of every model."""
    taken = set(range(0, len(cases), _EVERY))
    seen = {(cases[number].workload, cases[number].model) for number in taken}
    for number, case in enumerate(cases):
        if (case.workload, case.model) not in seen:
            seen.add((case.workload, case.model))
            taken.add(number)
    return taken


def written(case: Mapping[str, Any], record: Measurement) -> str:
    """The line of a record that was attributed; ``case`` are its flags, as the recording's line has them."""
    phases = {
        phase.name: {
            "components": [phase.components[name] for name in CATEGORIES],
            "measured": phase.peak_allocated_bytes,
            "hidden": phase.hidden,
        }
        for phase in record.phases
        if phase.components is not None
    }
    line = {"case": case, "phases": phases, "scratch": record.fingerprint.get("scratch", [])}
    return json.dumps(line, separators=(",", ":"))


def load(folder: Path) -> tuple[list[Apart], list[Scratch]]:
    """What was taken apart under one set of versions.

    Raises:
        UsageError: a line that is none of these, with its file and number.
    """
    apart: list[Apart] = []
    scratch: list[Scratch] = []
    for file in sorted((folder / FOLDER).glob("*.jsonl")):
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                case = Case.from_dict(line["case"])
                apart += _phases(file.stem, case, line["phases"])
                scratch += _scratch(file.stem, case, line["scratch"])
            except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
                raise UsageError(f"{file}:{number}: no case that was taken apart: {error}") from error
    return apart, scratch


def _phases(gpu: str, case: Case, phases: Mapping[str, Any]) -> Iterator[Apart]:
    for name, found in phases.items():
        yield Apart(
            gpu=gpu,
            case=case,
            phase=name,
            measured_bytes=int(found["measured"]),
            components=dict(zip(CATEGORIES, map(int, found["components"]), strict=True)),
            # By the names that are known today.
            hidden=[{**block, "what": name_of(block["op"], block["bytes"])} for block in found["hidden"]],
        )


def _scratch(gpu: str, case: Case, found: Sequence[Mapping[str, Any]]) -> Iterator[Scratch]:
    for item in found:
        shapes: dict[str, Any] = {"inputs": tuple(map(tuple, item["inputs"])), "sizes": tuple(item["sizes"])}
        shapes["output"] = None if item["output"] is None else tuple(item["output"])
        yield Scratch(gpu=gpu, case=case, **{**item, **shapes})
