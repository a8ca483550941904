"""The record of one case run once: what is written, one JSON line each, to ``measurements.jsonl``."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError, nearest

SCHEMA_VERSION = 1

SOURCES = ("measured", "emulated", "dryrun")
DEVICES = ("cpu", "cuda", "phantom", "dryrun")
STATUSES = ("ok", "oom", "timeout", "crashed", "killed")
WEIGHTS = ("random", "pretrained")
EXPLANATION = ("peak_op", "components", "tensors", "hidden")
"""What an attributed phase says of its peak, and others don't."""
_SLACK, _SLACK_BYTES = 0.01, 1 << 20
"""How far components may sum up to another peak than the measured one: they come from a pass of their own, and the
tracer that names them moves a peak by less than a tenth of this."""
_LONGEST_NAME = 500
_BLOCKS = {
    "tensors": {"what", "category", "shape", "dtype", "module", "op", "site", "bytes", "count"},
    "hidden": {"what", "op", "backward", "module", "bytes", "count"},
}


class RecordError(UsageError):
    """A record from outside that is no measurement; the message says which field and what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Memory over one named phase of a case.  Bytes are integers; unknown is None, never 0."""

    name: str
    peak_allocated_bytes: int | None = None
    """cuda: ``torch.cuda.max_memory_allocated`` over the phase; cpu: the c10 CPU allocator's running sum."""
    peak_reserved_bytes: int | None = None
    """``torch.cuda.max_memory_reserved`` over the phase; None on the CPU, which has no caching allocator."""
    peak_active_bytes: int | None = None
    """Peak of ``active_bytes.all``: allocated, and blocks that wait for another stream."""
    peak_requested_bytes: int | None = None
    """Peak of ``requested_bytes.all``: what was asked for, before the allocator rounded."""
    end_allocated_bytes: int | None = None
    """Allocated when the phase ended."""
    nvml_peak_bytes: int | None = None
    """Largest figure that NVML showed for the process (or the device, see ``sampling``): a lower bound, sampled."""
    rss_peak_bytes: int | None = None
    """Peak resident set size of the process, from a pass of its own without the allocator's events."""
    seconds: float | None = None
    """Wall time of the phase in the pass that was measured."""
    peak_op: str | None = None
    """The operation that made the peak, when attributed; None where the phase began with it, or between operations."""
    components: dict[str, int] | None = None
    """Requested bytes at the peak by category, when attributed."""
    tensors: list[dict[str, Any]] | None = None
    """The largest tensors at the peak, alike ones counted together, when attributed."""
    hidden: list[dict[str, Any]] | None = None
    """What no tensor owned at the peak, by the operation that asked for it, when attributed."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One case under one instrument: the phases' worst over the measured steps, and what it was measured with.

    Of anyone's own code, a test or a block of a script, ``case`` is :func:`own_code`'s.
    """

    case_id: str
    case: dict[str, Any]
    """Every flag of a :class:`Case`; of anyone's own code ``{"name": its name}``."""
    source: str
    device: str
    status: str
    weights: str = "random"
    gpu: dict[str, Any] | None = None
    """``{"name", "total_bytes"}`` as torch reports them; None on the CPU."""
    phases: list[Phase] = field(default_factory=list)
    first: dict[str, Any] | None = None
    """``{"phases": [...]}`` of the warm-up step, whose lazy allocations come on top."""
    retries: int | None = None
    """Times that the allocator freed its cache to satisfy a request; a run with any is not a clean peak."""
    sampling: dict[str, Any] | None = None
    """How NVML was sampled: ``interval_s`` asked for, ``widest_gap_s`` that happened, ``scope``."""
    error: dict[str, Any] | None = None
    """For every status but ok: ``kind``, ``message``, ``phase``, and ``tried_bytes`` where memory ran out."""
    fingerprint: dict[str, Any] = field(default_factory=dict)
    band_bytes: int | None = None
    """In a baseline: growth of a phase's peak that passes, instead of what its evidence would allow."""
    schema_version: int = SCHEMA_VERSION

    @property
    def is_own_code(self) -> bool:
        """Whether anyone's own code was measured, under a name, and no case: formulas have nothing to say of it."""
        return set(self.case) == {"name"}

    @property
    def label(self) -> str:
        """One short line that says what was measured."""
        return str(self.case["name"]) if self.is_own_code else Case.from_dict(self.case).label()

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The largest phase's peak: phases do not overlap and are never added."""
        peaks = [phase.peak_allocated_bytes for phase in self.phases if phase.peak_allocated_bytes is not None]
        return max(peaks, default=None)

    def to_json(self) -> dict[str, Any]:
        record = {"schema_version": self.schema_version, **_shallow(self)}
        record["phases"] = [phase_to_json(phase) for phase in self.phases]
        if self.band_bytes is None:
            del record["band_bytes"]
        return record

    @classmethod
    def from_json(cls, record: Any) -> Measurement:
        """Read a record from outside.

        Raises:
            RecordError: not an object, another schema version, a missing or unknown field, a figure that is not a
                non-negative integer of bytes (or null), an unknown status, or a case that describes no job.
        """
        if not isinstance(record, Mapping):
            raise RecordError(f"a measurement is a JSON object, not {type(record).__name__}")
        version = record.get("schema_version")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise RecordError(f"schema_version is {version!r}; this version of nooom reads {SCHEMA_VERSION}")
        _known_keys(record, cls, "measurement")
        for name in ("case_id", "case", "source", "device", "status", "phases"):
            if record.get(name) is None:
                raise RecordError(f"{name} is missing")
        for name, kind in (("case_id", str), ("device", str), ("case", Mapping), ("phases", list)):
            if not isinstance(record[name], kind):
                raise RecordError(f"{name} is not {kind.__name__.lower()}")
        for name, known in (("source", SOURCES), ("device", DEVICES), ("status", STATUSES), ("weights", WEIGHTS)):
            value = record.get(name, "random")
            if value not in known:
                raise RecordError(f"{name} is {str(value)[:40]!r}; {nearest(str(value)[:40], known)}")
        _check_parts(record)
        rest = {key: value for key, value in record.items() if key != "phases"}
        return cls(**rest, phases=[phase_from_json(item) for item in record["phases"]])


def evidence(source: str, device: str) -> str:
    """The words for what ran: ``measured on cuda``, ``emulated on phantom``, ``dryrun``."""
    return source if source == device else f"{source} on {device}"


def own_code(name: str) -> dict[str, Any]:
    """The ``case_id`` and ``case`` of a measurement of anyone's own code, by the name that tells it from others.

    Raises:
        RecordError: no name, one that does not print, or one that is too long.
    """
    if not name or not name.isprintable() or len(name) > _LONGEST_NAME:
        said = ascii(name)[:60]
        raise RecordError(f"name is {said}, not printable text of 1 to {_LONGEST_NAME} characters")
    return {"case_id": hashlib.sha256(name.encode()).hexdigest()[:16], "case": {"name": name}}


def _check_parts(record: Mapping[str, Any]) -> None:
    """What is nested in a record: the case, the warm-up's phases, and that objects are objects."""
    for name in ("gpu", "first", "sampling", "error"):
        if not isinstance(record.get(name), (Mapping, type(None))):
            raise RecordError(f"{name} is not an object")
    if not isinstance(record.get("fingerprint", {}), Mapping):
        raise RecordError("fingerprint is not an object")
    try:
        if set(record["case"]) == {"name"}:
            own_code(_text(record["case"]["name"]))
        else:
            Case.from_dict(record["case"])
    except UsageError as error:
        raise RecordError(f"case: {error}") from error
    if not isinstance((record.get("error") or {}).get("phase"), (str, type(None))):
        raise RecordError("phase of error is not text")
    _check_bytes(record.get("retries"), "retries")
    _check_bytes(record.get("band_bytes"), "band_bytes")
    _check_explanation(record.get("error") or {}, "error")
    phases = (record.get("first") or {}).get("phases")
    if not isinstance(phases, (list, type(None))):
        raise RecordError("phases of first is not a list")
    for item in phases or ():
        phase_from_json(item)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RecordError(f"name is {type(value).__name__}, not text")
    return value


def phase_to_json(phase: Phase) -> dict[str, Any]:
    """Every figure, nulls too; what a peak is made of only where the run was attributed."""
    record = _shallow(phase)
    return {key: value for key, value in record.items() if value is not None or key not in EXPLANATION}


def phase_from_json(record: Any) -> Phase:
    """Raises RecordError as :meth:`Measurement.from_json` does."""
    if not isinstance(record, Mapping) or not isinstance(record.get("name"), str):
        raise RecordError("a phase is a JSON object with a name")
    _known_keys(record, Phase, f"phase {record['name']}")
    for key, value in record.items():
        if key.endswith("_bytes"):
            _check_bytes(value, f"{key} of phase {record['name']}")
    _check_explanation(record, f"phase {record['name']}")
    _check_sum(record)
    seconds = record.get("seconds")
    if seconds is not None and (type(seconds) not in (int, float) or not math.isfinite(seconds) or seconds < 0):
        raise RecordError(f"seconds of phase {record['name']} is {seconds!r}, not a number of seconds or null")
    return Phase(**record)


def _check_explanation(record: Mapping[str, Any], where: str) -> None:
    """What a peak is made of: bytes by category, and lists of blocks with their bytes and how many there were."""
    if not isinstance(record.get("peak_op"), (str, type(None))):
        raise RecordError(f"peak_op of {where} is not text")
    components = record.get("components")
    if not isinstance(components, (Mapping, type(None))):
        raise RecordError(f"components of {where} is not an object")
    for name, size in (components or {}).items():
        _check_bytes(size, f"{name} among the components of {where}")
    for key, wanted in _BLOCKS.items():
        listed = record.get(key)
        if not isinstance(listed, (list, type(None))):
            raise RecordError(f"{key} of {where} is not a list")
        for block in listed or ():
            if not isinstance(block, Mapping) or not wanted <= set(block):
                raise RecordError(f"{key} of {where}: an item is no object with {', '.join(sorted(wanted))}")
            for figure in ("bytes", "count"):
                if block[figure] is None:
                    raise RecordError(f"{figure} in {key} of {where} is null")
                _check_bytes(block[figure], f"{figure} in {key} of {where}")


def _check_sum(record: Mapping[str, Any]) -> None:
    """Components are the whole of a peak, or they are of another one."""
    components, peak = record.get("components"), record.get("peak_allocated_bytes")
    if components and peak is not None and not sums_up(components, peak):
        total = sum(size or 0 for size in components.values())
        raise RecordError(f"components of phase {record['name']} sum up to {total} bytes; its peak is {peak}")


def sums_up(components: Mapping[str, int | None], peak_bytes: int) -> bool:
    """Whether components are those of a peak: they come from a pass of their own, so to within a hundredth."""
    total = sum(size or 0 for size in components.values())
    return abs(total - peak_bytes) <= max(_SLACK * peak_bytes, _SLACK_BYTES)


def _shallow(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name) for name in _names(item.__class__)}


@functools.cache
def _names(kind: type) -> Mapping[str, None]:
    """A record's fields in their order."""
    return {field.name: None for field in dataclasses.fields(kind)}


def _known_keys(record: Mapping[str, Any], kind: Any, what: str) -> None:
    known = _names(kind)
    for key in record:
        if key not in known:
            raise RecordError(f"unknown key {key!r} in a {what}; {nearest(str(key), known)}")


def _check_bytes(value: Any, what: str) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise RecordError(f"{what} is {str(value)[:40]!r}, not a non-negative integer below 2**63 or null")
