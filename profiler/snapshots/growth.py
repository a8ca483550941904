"""What grew from one recording to another: what lived at each one's peak, by the line that asked, or by its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nooom.profiler.snapshots.beginning import Beginning
from nooom.profiler.snapshots.recording import ALLOC, FREE_REQUESTED, Event, Recording

MOST_FRAMES = 100
"""Of a stack, that are looked at."""
_LONGEST = 200
_NOT_PYTHON = (".cpp", ".cc", ".cu", ".h", ".hpp", ".c", ".so", "??")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "/lib/python3", "<")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What had been asked for and not freed, when that was most."""

    requested_bytes: int
    event: int | None
    """The allocation that led to it; None where it was most before the first event."""
    groups: Mapping[str, tuple[int, int]]
    """Number and bytes of the blocks, by what they have in common."""


@dataclass(frozen=True, kw_only=True)
class Grown:
    """One group, in both."""

    what: str
    count: tuple[int, int]
    """Before and now."""
    size_bytes: tuple[int, int]

    @property
    def change_bytes(self) -> int:
        return self.size_bytes[1] - self.size_bytes[0]


def grown(before: Peak, now: Peak) -> list[Grown]:
    """Every group that is not the same in both, what grew most first."""
    found = [
        Grown(
            what=what,
            count=(before.groups.get(what, (0, 0))[0], now.groups.get(what, (0, 0))[0]),
            size_bytes=(before.groups.get(what, (0, 0))[1], now.groups.get(what, (0, 0))[1]),
        )
        for what in {**before.groups, **now.groups}
    ]
    changed = [one for one in found if one.change_bytes or one.count[0] != one.count[1]]
    return sorted(changed, key=lambda one: (-one.change_bytes, one.what))


def has_frames(recording: Recording) -> bool:
    """Whether it tells of any allocation who asked for it."""
    return any(event.frames for event in recording.events if event.action == ALLOC)


def peak_of(recording: Recording, beginning: Beginning, *, by_site: bool) -> Peak:
    """What lived at a recording's peak.

    Args:
        recording: one device's.
        beginning: what lived before its first event.
        by_site: grouped by the program's line that asked; otherwise by size.
    """
    live = {address: one.requested for address, one in beginning.live.items() if not one.is_pending}
    total = most = sum(live.values())
    at: int | None = None
    for index, (address, size) in enumerate(_changes(recording.events)):
        if size:
            total += size
            live[address] = size
        else:
            total -= live.pop(address, 0)
        if total > most:
            most, at = total, index
    return Peak(requested_bytes=most, event=at, groups=_groups(recording, beginning, at, by_site=by_site))


def _changes(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    """Of each event, address and size of what it allocates; no size where it frees; no block's address otherwise."""
    for event in events:
        if event.action == ALLOC:
            yield event.address, event.size
        else:
            yield event.address if event.action == FREE_REQUESTED else -1, 0


def _groups(
    recording: Recording, beginning: Beginning, last: int | None, *, by_site: bool
) -> dict[str, tuple[int, int]]:
    alive: dict[int, tuple[int, Sequence[Any] | None]] = {
        address: (one.requested, None) for address, one in beginning.live.items() if not one.is_pending
    }
    events = recording.events[: last + 1] if last is not None else ()
    for event in events:
        if event.action == ALLOC:
            alive[event.address] = (event.size, event.frames)
        elif event.action == FREE_REQUESTED:
            alive.pop(event.address, None)
    known = _known_at_end(recording) if by_site else {}
    sites: dict[int, str] = {}
    found: dict[str, tuple[int, int]] = {}
    for address, (size, frames) in alive.items():
        what = _size(size)
        if by_site:
            told = known.get(address) if frames is None else frames
            what = _site_of(told, sites) if told else f"{what}, of before the recording"
        count, total = found.get(what, (0, 0))
        found[what] = (count + 1, total + size)
    return found


def _known_at_end(recording: Recording) -> dict[int, Sequence[Any]]:
    """Who asked for what lives at the end, also where no event tells of it; not where another block was before."""
    asked = {event.address for event in recording.events if event.action == ALLOC}
    return {
        block.address: block.frames
        for segment in recording.segments
        for block in segment.blocks
        if block.frames and block.address not in asked
    }


def _site_of(frames: Sequence[Any], sites: dict[int, str]) -> str:
    """Stacks are shared between events: each is looked at once."""
    found = sites.get(id(frames))
    if found is None:
        found = sites[id(frames)] = site(frames)
    return found


def site(frames: Sequence[Any]) -> str:
    """The innermost line that is the program's own; of a library where there is none such."""
    seen = [frame for frame in frames[:MOST_FRAMES] if isinstance(frame, dict) and isinstance(frame.get("name"), str)]
    python = [frame for frame in seen if _filename(frame) and not _filename(frame).endswith(_NOT_PYTHON)]
    own = [frame for frame in python if not any(part in _filename(frame) for part in _LIBRARIES)]
    for part in (own, python, seen):
        if part:
            return _named(part[0])
    return "an unknown line"


def _filename(frame: Mapping[str, Any]) -> str:
    found = frame.get("filename")
    return found if isinstance(found, str) else ""


def _named(frame: Mapping[str, Any]) -> str:
    line, name = frame.get("line"), str(frame["name"])[:_LONGEST]
    where = _filename(frame).rpartition("/")[2][-_LONGEST:]
    if not (type(line) is int and 0 < line < 1 << 31):
        return " ".join(part for part in (where, name) if part)
    return f"{where}:{line} {name}"


def _size(size: int) -> str:
    return f"{size:,} bytes"
