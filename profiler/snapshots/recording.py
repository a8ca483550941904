"""What a snapshot says, checked: one device's events, in order, and the map of its memory at their end.

Two forms are read: PyTorch's own (``torch.cuda.memory._dump_snapshot``), whatever it is written as, and a short one in
which an event is ``[action, size, address, stream]`` and a block ``[size, requested, state, address]``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from nooom.formulas.errors import UsageError
from nooom.profiler.simulator.allocator import SMALL_SEGMENT
from nooom.profiler.simulator.settings import DIVISIONS, Settings
from nooom.profiler.snapshots.reading import read

MOST_EVENTS = 2_000_000
"""Of all devices together; as many blocks."""
HOW_TO_RECORD = (
    "torch.cuda.memory._record_memory_history(max_entries=100000) before, "
    "torch.cuda.memory._dump_snapshot(FILE) at the end"
)

ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM = "alloc", "free_requested", "free_completed", "oom"
GROWS, SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_TOLD = frozenset({ALLOC, FREE_REQUESTED, FREE_COMPLETED, OOM, *GROWS, *SHRINKS})
_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")
_MOST_NUMBER = 1 << 64
_LONGEST_CONF = 1000


class Event(NamedTuple):
    """One entry of the allocator's trace."""

    action: str
    address: int
    """Of an ``oom``: what was free on the device."""
    size: int
    stream: int
    time_us: int | None = None
    frames: Sequence[Any] = ()
    """As the file has them: nothing of them is checked."""


class Block(NamedTuple):
    """One block of the map."""

    address: int
    size: int
    requested: int
    state: str
    frames: Sequence[Any] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What lies together: a segment, or mapped pages of an expandable one."""

    address: int
    total_size: int
    stream: int
    is_small: bool
    is_expandable: bool
    pool: tuple[int, int]
    """Zeros but for the pools of captured graphs and the program's own."""
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One device's part of a snapshot."""

    path: Path
    device: int
    events: Sequence[Event]
    segments: Sequence[Segment]
    """By address."""
    conf: str
    """What stood in PYTORCH_ALLOC_CONF, as far as the file says."""
    settings: Settings
    events_by_device: Mapping[int, int]
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Actions that change no memory, or that nobody knows here, and how often they occur."""
    notes: Sequence[str] = ()
    """What could not be understood."""


def load(path: Path, device: int | None = None) -> Recording:
    """Read one device's part of a file.

    Args:
        path: of a pickle or JSON, in gzip or not.
        device: its index; by default the one of which most is told.

    Raises:
        UsageError: The file is not a snapshot, or says nothing of that device; one line, with its name.
    """
    document = read(path)
    try:
        return _recording(path, document, device)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _recording(path: Path, document: Any, device: int | None) -> Recording:
    if isinstance(document, list):
        raise UsageError(f"it has no events, only the memory's map; record them: {HOW_TO_RECORD}")
    found = _dict(document, "it")
    is_short = "events" in found
    traces = [_list(found["events"], "events")] if is_short else _list(found.get("device_traces"), "device_traces")
    raw_segments = _list(found.get("segments"), "segments")
    counts = {index: len(_list(trace, f"device_traces[{index}]")) for index, trace in enumerate(traces)}
    if sum(counts.values()) > MOST_EVENTS or len(counts) > MOST_EVENTS:
        raise UsageError(f"it has {sum(counts.values()):,} events; {MOST_EVENTS:,} are replayed at most")
    chosen = _device(counts, device)
    read_event = _short_event if is_short else _event
    events, ignored = _events(traces[chosen], read_event)
    if not events:
        raise UsageError(f"it has no events of device {chosen}; record them: {HOW_TO_RECORD}")
    settings = found.get("allocator_settings") or {}
    conf, parsed, notes = _settings(_dict(settings, "allocator_settings"))
    return Recording(
        path=path,
        device=chosen,
        events=events,
        segments=_segments(raw_segments, chosen),
        conf=conf,
        settings=parsed,
        events_by_device={index: count for index, count in counts.items() if count},
        ignored=ignored,
        notes=notes,
    )


def _device(counts: Mapping[int, int], device: int | None) -> int:
    used = [index for index, count in counts.items() if count]
    if not used:
        raise UsageError(f"it has no events; record them: {HOW_TO_RECORD}")
    if device is None:
        return max(used, key=lambda index: counts[index])
    if device not in used:
        raise UsageError(f"it has no events of device {device}; it has some of {', '.join(map(str, used[:16]))}")
    return device


def _events(trace: Sequence[Any], read_event: Any) -> tuple[list[Event], dict[str, int]]:
    events: list[Event] = []
    ignored: Counter[str] = Counter()
    for index, raw in enumerate(trace):
        try:
            event = read_event(raw)
        except (UsageError, KeyError, TypeError, ValueError) as error:
            said = str(error) if isinstance(error, UsageError) else "not an event"
            raise UsageError(f"event {index:,}: {said}") from None
        if event.action in _TOLD:
            events.append(event)
        else:
            ignored[event.action[:40]] += 1
    return events, dict(ignored.most_common(10))


def _event(raw: Any) -> Event:
    found = _dict(raw, "it")
    action = found.get("action")
    if type(action) is not str:
        raise UsageError(f"its action is {_kind(action)}")
    if action not in _TOLD:
        return Event(action, 0, 0, 0)
    time_us, frames = found.get("time_us"), found.get("frames")
    return Event(
        action,
        # Of what did not fit the trace says how much was free, not where.
        _number(found.get("device_free", found.get("addr")) if action == OOM else found.get("addr"), "addr"),
        _number(found.get("size"), "size"),
        _number(found.get("stream", 0), "stream"),
        time_us if type(time_us) is int else None,
        frames if type(frames) is list else (),
    )


def _short_event(raw: Any) -> Event:
    action, size, address, *rest = _list(raw, "it")
    if type(action) is not str:
        raise UsageError(f"its action is {_kind(action)}")
    if action not in _TOLD:
        return Event(action, 0, 0, 0)
    stream = _number(rest[0], "stream") if rest else 0
    return Event(action, _number(address, "addr"), _number(size, "size"), stream)


def _segments(raw: Sequence[Any], device: int) -> list[Segment]:
    found, blocks = [], 0
    for index, one in enumerate(raw):
        if index >= MOST_EVENTS:
            raise UsageError(f"it has more than {MOST_EVENTS:,} segments")
        try:
            segment = _dict(one, "it")
            blocks += len(_list(segment.get("blocks"), "blocks"))
            if blocks > MOST_EVENTS:
                raise UsageError(f"with it there are more than {MOST_EVENTS:,} blocks")
            if _number(segment.get("device", device), "device") == device:
                found.append(_segment(segment))
        except UsageError as error:
            raise UsageError(f"segment {index:,}: {error}") from None
    found.sort(key=lambda segment: segment.address)
    for before, after in itertools.pairwise(found):
        if before.address + before.total_size > after.address:
            raise UsageError(f"two segments lie at {after.address}")
    return found


def _segment(raw: Mapping[str, Any]) -> Segment:
    address, total = _number(raw.get("address"), "address"), _number(raw.get("total_size"), "total_size")
    blocks, at = [], address
    for one in raw["blocks"]:
        block = _block(one, at)
        if block.address != at or not block.size:
            raise UsageError("its blocks leave gaps, or lie upon one another")
        blocks.append(block)
        at += block.size
    if at != address + total:
        raise UsageError(f"its blocks have {at - address:,} bytes, and it has {total:,}")
    pool = raw.get("segment_pool_id", (0, 0))
    if not isinstance(pool, (list, tuple)) or len(pool) != 2:
        raise UsageError("its segment_pool_id is no pair of numbers")
    kind = raw.get("segment_type")
    return Segment(
        address=address,
        total_size=total,
        stream=_number(raw.get("stream", 0), "stream"),
        is_small=kind == "small" if isinstance(kind, str) else total == SMALL_SEGMENT,
        is_expandable=raw.get("is_expandable") is True,
        pool=(_number(pool[0], "segment_pool_id"), _number(pool[1], "segment_pool_id")),
        blocks=tuple(blocks),
    )


def _block(raw: Any, at: int) -> Block:
    """One of a segment; older releases don't say where it lies, which is where the one before ended."""
    if isinstance(raw, (list, tuple)):
        if not 3 <= len(raw) <= 4:
            raise UsageError("one of its blocks is not [size, requested, state, address]")
        raw = dict(zip(("size", "requested_size", "state", "address"), raw, strict=False))
    found = _dict(raw, "one of its blocks")
    size, state, address, frames = (found.get(name) for name in ("size", "state", "address", "frames"))
    requested = found.get("requested_size", size)
    if state not in _STATES:
        said = repr(state[:60]) if type(state) is str else _kind(state)
        raise UsageError(f"the state of one of its blocks is {said}")
    return Block(
        at if address is None else _number(address, "address"),
        _number(size, "size"),
        _number(requested, "requested_size"),
        state,
        frames if type(frames) is list else (),
    )


def _settings(raw: Mapping[str, Any]) -> tuple[str, Settings, list[str]]:
    """The text of the environment, then what the allocator itself says that it went by."""
    text = next((raw[key] for key in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF") if raw.get(key)), "")
    if type(text) is not str or len(text) > _LONGEST_CONF:
        raise UsageError("its allocator_settings are no text that could stand in PYTORCH_ALLOC_CONF")
    settings, notes = Settings(), []
    try:
        settings = Settings.parse(text)
    except UsageError as error:  # another release's
        notes.append(f"{error}; as recorded, it is left out")
    said: dict[str, Any] = {}
    if type(grows := raw.get("expandable_segments")) is bool:
        said["expandable_segments"] = grows
    if type(most := raw.get("max_split_size")) is int:
        said["max_split_size_bytes"] = most if 0 < most < _MOST_NUMBER >> 1 else None
    threshold = raw.get("garbage_collection_threshold")
    if isinstance(threshold, (int, float)) and 0 <= threshold < 1:
        said["garbage_collection_threshold"] = float(threshold)
    if isinstance(table := raw.get("roundup_power2_divisions"), dict) and len(table) == DIVISIONS:
        said["roundup_power2_divisions"] = tuple(_number(one, "roundup_power2_divisions") for one in _by_size(table))
    return text, replace(settings, **said), notes


def _by_size(table: Mapping[Any, Any]) -> Iterable[Any]:
    try:
        return [table[key] for key in sorted(table, key=int)]
    except ValueError:
        raise UsageError("its roundup_power2_divisions are no sizes") from None


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST_NUMBER:
        raise UsageError(f"its {what} is {_kind(value)}, no number of 64 bits")
    return value


def _dict(value: Any, what: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise UsageError(f"{what} is {_kind(value)}, no dictionary; a snapshot is what {HOW_TO_RECORD} leaves")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if type(value) is not list and type(value) is not tuple:
        raise UsageError(f"{what} is {_kind(value)}, no list; a snapshot is what {HOW_TO_RECORD} leaves")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    return f"{value:,}" if type(value) is int and abs(value) < _MOST_NUMBER << 1 else f"a {type(value).__name__}"
