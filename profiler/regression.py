"""Two measurements of one case -> what changed.  Pure: the gate and the pytest plugin both decide by it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nooom.profiler.measurement import EXPLANATION, Measurement, Phase, evidence, sums_up

PASS, IMPROVEMENT, REGRESSION, SKIPPED = "pass", "improvement", "regression", "skipped"
NEW, MISSING = "new", "missing"

_MIB = 1 << 20
_CPU_RATIO = 0.002
"""On the CPU the same build's kernels take the same, but a library's scratch may follow the machine."""
_CUDA_RATIO, _CUDA_BYTES = 0.02, 64 * _MIB
"""On a GPU workspaces, tuning and the order of frees differ from run to run."""
_VOLATILE = {"wall_s", "gpu_uuid", "gpu_index", "scratch", "attribution", "gpu", "allocator", "idle_bytes"}
"""What a fingerprint says of the run and not of what was run, and what is hard identity and judged as such."""
_LISTED = 5
"""Tensors that are named for one phase."""


@dataclass(frozen=True, kw_only=True)
class Grown:
    """One thing that a phase's peak has more of, or less."""

    kind: str
    """``component``, ``tensor``, or ``hidden``: what no tensor owns."""
    name: str
    change_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "change_bytes": self.change_bytes}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One phase of a case, before and after; bytes of ``max_memory_allocated``."""

    phase: str
    state: str
    baseline_bytes: int | None
    current_bytes: int | None
    band_bytes: int | None
    """Growth up to this passes."""
    reserved: tuple[int | None, int | None] = (None, None)
    """``max_memory_reserved``, before and after: reported, never judged."""
    nvml: tuple[int | None, int | None] = (None, None)
    """What NVML showed for the process, before and after: reported, never judged."""
    grew: tuple[Grown, ...] = ()

    @property
    def change_bytes(self) -> int | None:
        if self.baseline_bytes is None or self.current_bytes is None:
            return None
        return self.current_bytes - self.baseline_bytes

    @property
    def change_ratio(self) -> float | None:
        """Of the baseline; None where that is unknown or nothing."""
        return (
            self.change_bytes / self.baseline_bytes if self.change_bytes is not None and self.baseline_bytes else None
        )


def band_bytes(source: str, device: str, baseline_bytes: int, stored: int | None = None) -> int:
    """How much more than the baseline is no growth.

    Nothing for what is ``emulated`` or a ``dryrun``, which are deterministic; 0.2 % of the baseline measured on the
    CPU; on CUDA 2 % or 64 MiB, whichever is more.

    Args:
        source: the evidence of both sides.
        device: where.
        baseline_bytes: the phase's peak.
        stored: the case's own band, which counts instead.
    """
    if stored is not None:
        return stored
    if source != "measured":
        return 0
    if device == "cpu":
        return int(_CPU_RATIO * baseline_bytes)
    return max(_CUDA_BYTES, int(_CUDA_RATIO * baseline_bytes))


def changes(baseline: Measurement, current: Measurement) -> list[Change]:
    """Each phase's change, in the order of the phases; one that only one side has is ``new`` or ``missing``."""
    before = {phase.name: phase for phase in baseline.phases}
    after = {phase.name: phase for phase in current.phases}
    return [_change(name, before.get(name), after.get(name), baseline) for name in {**after, **before}]


def _change(name: str, before: Phase | None, after: Phase | None, baseline: Measurement) -> Change:
    old = before.peak_allocated_bytes if before is not None else None
    new = after.peak_allocated_bytes if after is not None else None
    band = None if old is None else band_bytes(baseline.source, baseline.device, old, baseline.band_bytes)
    return Change(
        phase=name,
        state=MISSING if after is None else NEW if before is None else _state(old, new, band),
        baseline_bytes=old,
        current_bytes=new,
        band_bytes=band,
        reserved=(_figure(before, "peak_reserved_bytes"), _figure(after, "peak_reserved_bytes")),
        nvml=(_figure(before, "nvml_peak_bytes"), _figure(after, "nvml_peak_bytes")),
        grew=tuple(grown(before, after)) if before is not None and after is not None and old != new else (),
    )


def _state(old: int | None, new: int | None, band: int | None) -> str:
    if old is None or new is None or band is None:
        return SKIPPED
    if new > old + band:
        return REGRESSION
    return IMPROVEMENT if new < old - band else PASS


def _figure(phase: Phase | None, name: str) -> int | None:
    return None if phase is None else getattr(phase, name)


def grown(before: Phase, after: Phase) -> Iterator[Grown]:
    """What a peak has more and less of, largest first: components, then the tensors, then what no tensor owns.

    Nothing where either side was not attributed.
    """
    if before.components is None or after.components is None:
        return
    names = dict.fromkeys([*after.components, *before.components])
    deltas = {name: (after.components.get(name) or 0) - (before.components.get(name) or 0) for name in names}
    yield from _largest("component", deltas, len(deltas))
    yield from _largest("tensor", _tensors_grown(before.tensors or (), after.tensors or ()), _LISTED)
    yield from _largest("hidden", _differences(_owned(before.hidden, _block), _owned(after.hidden, _block)), _LISTED)


def _largest(kind: str, deltas: Mapping[str, int], most: int) -> Iterator[Grown]:
    changed = sorted(
        ((name, delta) for name, delta in deltas.items() if delta), key=lambda item: (-abs(item[1]), item[0])
    )
    for name, delta in changed[:most]:
        yield Grown(kind=kind, name=name, change_bytes=delta)


def _tensors_grown(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """By name.  A record lists the largest tensors alone, so what is smaller than all of the other side's is left out:
    it may stand there unlisted.
    """
    old, new = _owned(before, tensor_name), _owned(after, tensor_name)
    least_old, least_new = min(old.values(), default=0), min(new.values(), default=0)
    return {
        name: delta
        for name, delta in _without_renamed(_differences(old, new)).items()
        if (name in old or new[name] > least_old) and (name in new or old[name] > least_new)
    }


def _without_renamed(deltas: Mapping[str, int]) -> dict[str, int]:
    """What is as large as something like it that went is the same thing under another name: modules are renamed."""
    kept = dict(deltas)
    for name, delta in deltas.items():
        kind = name.partition(" by ")[0]
        gone = (other for other in kept if kept[other] == -delta and other.partition(" by ")[0] == kind)
        if delta and name in kept and (other := next(gone, None)) is not None:
            del kept[name], kept[other]
    return kept


def _owned(blocks: Sequence[Mapping[str, Any]] | None, named: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for block in blocks or ():
        total[named(block)] += block["bytes"] * block["count"]
    return total


def _differences(old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    return {name: new.get(name, 0) - old.get(name, 0) for name in {**new, **old}}


def tensor_name(tensor: Mapping[str, Any]) -> str:
    """``logits float32 [4096, 151936] by aten._to_copy.default of lm_head``: what a tensor is called in both versions
    of a library, so without the line of code that made it.
    """
    words = [str(tensor["category"])]
    words += [str(tensor["what"])] if tensor["what"] is not None else []
    words += [f"{tensor['dtype']} {tensor['shape']}"] if tensor["dtype"] is not None else []
    return " ".join(words) + _origin(tensor)


def _block(block: Mapping[str, Any]) -> str:
    return str(block["what"] or "unknown") + _origin(block) + (", backward" if block["backward"] else "")


def _origin(block: Mapping[str, Any]) -> str:
    if block["op"] is None:
        return ""
    return f" by {block['op']}" + (f" of {block['module']}" if block["module"] else "")


def explained_phase(phase: Phase, others: Iterable[Phase]) -> Phase:
    """A phase with what another run says it is made of, where that is of about the same peak."""
    peak = phase.peak_allocated_bytes
    if phase.components is not None or peak is None:
        return phase
    for other in others:
        if other.name == phase.name and other.components is not None and sums_up(other.components, peak):
            return dataclasses.replace(phase, **{name: getattr(other, name) for name in EXPLANATION})
    return phase


def hard_differences(baseline: Measurement, current: Measurement) -> list[str]:
    """Why two measurements can't be compared; empty where they can.

    Other evidence, another GPU model, another minor version of torch, other settings of the allocator, another case or
    another version of it: figures that differ by these say nothing of a change.
    """
    pairs = [
        ("evidence", *(evidence(one.source, one.device) for one in (baseline, current))),
        ("gpu", (baseline.gpu or {}).get("name"), (current.gpu or {}).get("name")),
        ("torch", minor(baseline.fingerprint.get("torch")), minor(current.fingerprint.get("torch"))),
        ("allocator", _allocator(baseline), _allocator(current)),
        ("weights", baseline.weights, current.weights),
    ]
    said = [f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in pairs if old != new]
    if not said and baseline.case_id != current.case_id:
        said.append(f"case version: its id was {baseline.case_id}, it is {current.case_id}")
    return said


def _allocator(record: Measurement) -> str:
    return str(record.fingerprint.get("allocator") or record.case.get("allocator") or "")


def minor(version: Any) -> str | None:
    """``2.13`` of ``2.13.0+cu130``; another text as it is."""
    if not isinstance(version, str):
        return None
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def suspects(baseline: Measurement, current: Measurement) -> list[str]:
    """What else differs between the fingerprints and may explain a change: ``transformers 5.17.0 -> 5.24.0``."""
    old, new = _plain(baseline), _plain(current)
    return [
        f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def _plain(record: Measurement) -> dict[str, Any]:
    return {
        name: value
        for name, value in record.fingerprint.items()
        if name not in _VOLATILE and isinstance(value, (str, int, float, bool, type(None)))
    }


def _shown(value: Any) -> str:
    return "unknown" if value is None else "none" if value == "" else str(value)[:80]
