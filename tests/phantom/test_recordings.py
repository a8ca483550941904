"""Plain transformers on a phantom do what they did on hardware: event by event, block by block.

The recordings are PyTorch memory snapshots of other people's training scripts on real GPUs, under torch 2.6.
``plain_transformer.py`` is written after what they show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import recordings
from tests.support.recordings import recorded

PROGRAM = Path(__file__).with_name("plain_transformer.py")

pytestmark = recordings.needed


@dataclass(frozen=True)
class Run:
    """One process: what it runs, and by which recording each of its windows goes."""

    gpu: str
    kind: str
    options: Mapping[str, Any]
    windows: Sequence[str]
    as_in_2_6: bool = False
    """Whether the two expressions of which later releases make other operations are spelled out."""


FORWARD = {"training": False, "autocast": False}
FORWARD_IN_BF16 = {"training": False, "autocast": True}
TRAINING = {"training": True, "autocast": False}
TRAINING_IN_BF16 = {"training": True, "autocast": True}

H100, A100 = "h100-80gb", "a100-80gb"
"""The large model's recordings are an H100's; the small one's tell of theirs that it is older than Hopper."""
RUNS = (
    Run(H100, "large", {"contexts": [128, 256, 512], **FORWARD}, ("rec05", "rec10", "rec13")),
    Run(H100, "large", {"contexts": [128, 256], **FORWARD_IN_BF16}, ("rec07", "rec11")),
    Run(H100, "large", {"contexts": [128, 256, 512], **TRAINING}, ("rec08", "rec12", "rec15"), as_in_2_6=True),
    Run(A100, "small", {"context": 100, **FORWARD}, ("rec32",)),
    Run(A100, "small", {"context": 150, **FORWARD}, ("rec33",)),
    Run(A100, "small", {"context": 200, **FORWARD_IN_BF16}, ("rec35",)),
    Run(A100, "small", {"context": 100, **TRAINING}, ("rec28",), as_in_2_6=True),
    Run(A100, "small", {"context": 200, **TRAINING}, ("rec30",), as_in_2_6=True),
    Run(A100, "small", {"context": 200, **TRAINING_IN_BF16}, ("rec31",), as_in_2_6=True),
)
AS_WRITTEN = (
    Run(H100, "large", {"contexts": [128], **TRAINING}, ("rec08, as written",)),
    Run(A100, "small", {"context": 100, **TRAINING}, ("rec28, as written",)),
)
SAME_AGAIN = {"rec06": "rec05"}
"""The same script once more."""
WINDOWS = [*(name for run in RUNS for name in run.windows), *SAME_AGAIN]

FALLING_ADDRESSES = {"rec05", "rec06", "rec07", "rec08", "rec10"}
"""There the driver gave out segments from high addresses to low ones, and a phantom's rise.  Of blocks that suit it equally
the allocator takes the lowest, so that some lie in another segment of the same size."""

CASTS = Counter({512 * 512 * 2: 16, 512 * 1344 * 2: 12, 512 * 10_000 * 2: 1})
"""The small model's weights in bf16, of four blocks and the head, by size: autocast keeps them until it ends."""
CACHES_FREED = {"rec35": 3, "rec31": 1}
"""How often autocast ends.  Its cache is a hash table by address: no two runs free it in the same order."""

Played = Mapping[str, dict[str, Any]]


@pytest.fixture(scope="module")
def played(cuda_python: str, phantom_nooom_in: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What each window has: its events, its map, and what ``nooom measure`` says of its process."""

    def on(gpu: str) -> dict[str, dict[str, Any]]:
        runs = [run for run in (*RUNS, *AS_WRITTEN) if run.gpu == gpu]
        out = tmp_path_factory.mktemp(gpu)
        asked = json.dumps([{"kind": one.kind, "as_in_2_6": one.as_in_2_6, "options": one.options} for one in runs])
        done = phantom_nooom_in(out, "measure", "--gpu", gpu, "--json", "--", cuda_python, PROGRAM, asked, out)
        assert done.returncode == 0, done.stderr[-2000:]
        processes = json.loads(done.stdout)["processes"]
        return {
            name: {**json.loads((out / f"{number}-{window}.json").read_text()), "process": process}
            for number, (run, process) in enumerate(zip(runs, processes, strict=True))
            for window, name in enumerate(run.windows)
        }

    with ThreadPoolExecutor() as both:
        return {name: found for part in both.map(on, (H100, A100)) for name, found in part.items()}


Event = tuple[str, int, int]
BEFORE = -1
"""In the place of an allocation's number: it was made before the window."""


def stream(events: Sequence[Sequence[Any]]) -> list[Event]:
    """Action, size and which allocation it is about, counted from the window's first: everything but the addresses."""
    alive: dict[int, int] = {}
    told = []
    for count, (action, size, address, *_) in enumerate(events):
        if action == "alloc":
            alive[address] = count
        about = alive.get(address, BEFORE) if action in ("alloc", "free_requested", "free_completed") else BEFORE
        if action == "free_completed":
            alive.pop(address, None)
        told.append((action, size, about))
    return told


def caches_in_order(events: list[Event]) -> tuple[list[Event], int]:
    """With each run of frees that is autocast's cache put in the order of its allocations, and how many there are."""
    length = 2 * CASTS.total()  # a free is requested and completed
    found, at = 0, 0
    while at + length <= len(events):
        run = events[at : at + length]
        if run[0][0] == "free_requested" and Counter(size for _, size, _ in run[::2]) == CASTS:
            assert {action for action, _, _ in run} == {"free_requested", "free_completed"}
            events = [*events[:at], *sorted(run, key=lambda event: event[2]), *events[at + length :]]
            found, at = found + 1, at + length
        else:
            at += 1
    return events, found


Block = tuple[int, bool]
"""Its size, and whether it is in use."""


def blocks(found: Mapping[str, Any]) -> list[tuple[int, list[Block]]]:
    """The memory's map without its addresses: each segment's size, and what lies in it."""
    segments = found["segments"]
    if isinstance(segments[0], dict):
        segments = [(one["total_size"], [(size, state) for size, _, state, _ in one["blocks"]]) for one in segments]
    return sorted((total, [(size, state != "inactive") for size, state, *_ in inside]) for total, inside in segments)


def reserved_peak(found: Mapping[str, Any]) -> int:
    """The most that was reserved in the window, counted back from its end."""
    most = reserved = sum(total for total, _ in blocks(found))
    for action, size, *_ in reversed(found["events"]):
        reserved += size * ((action == "segment_free") - (action == "segment_alloc"))
        most = max(most, reserved)
    return most


def requested_peak(found: Mapping[str, Any]) -> int:
    """The most that was asked for and not yet freed, from the window's beginning on."""
    most = requested = 0
    for action, size, *_ in found["events"]:
        requested += size * ((action == "alloc") - (action == "free_completed"))
        most = max(most, requested)
    return most


@pytest.mark.parametrize("name", WINDOWS)
def test_every_event_is_the_recordings(played: Played, name: str) -> None:
    """Blocks given out and freed, segments taken and given back: in order, with sizes, each free with its allocation."""
    ours, caches = caches_in_order(stream(played[SAME_AGAIN.get(name, name)]["events"]))
    theirs, _ = caches_in_order(stream(recorded(name)["events"]))
    assert caches == CACHES_FREED.get(name, 0)
    assert next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), None) is None
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", WINDOWS)
def test_the_memorys_map_and_the_peaks_are_the_recordings(played: Played, name: str) -> None:
    ours, theirs = played[SAME_AGAIN.get(name, name)], recorded(name)
    assert reserved_peak(ours) == reserved_peak(theirs)
    assert requested_peak(ours) == requested_peak(theirs)
    assert (blocks(ours) == blocks(theirs)) == (name not in FALLING_ADDRESSES)
    assert _sizes(ours) == _sizes(theirs)


def _sizes(found: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """Of the segments, and of the blocks in use, wherever they lie."""
    told = blocks(found)
    return [total for total, _ in told], sorted(size for _, inside in told for size, used in inside if used)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(run.windows))
def test_what_measure_says_was_reserved_is_the_recordings(played: Played, run: Run) -> None:
    process = played[run.windows[0]]["process"]
    assert process["max_reserved_bytes"] == max(reserved_peak(recorded(name)) for name in run.windows)


def _asked(found: Mapping[str, Any]) -> Counter[int]:
    return Counter(size for action, size, *_ in found["events"] if action == "alloc")


def test_as_written_torch_now_copies_gradients_where_it_reduced_in_pieces(played: Played) -> None:
    """einsum's result is contiguous now: sums over its features need no buffer for their parts, weights' gradients a copy.

    Until 2.6 the features were outermost: the largest logit (pairs of a value and a place) and the sum of the
    exponentials for each of 512 tokens, the 65 norms' gradients, and the gradient that reaches the embedding.
    """
    now, then = _asked(played["rec08, as written"]), _asked(recorded("rec08"))
    tokens, parts_of_logits, parts_of_features = 4 * 128, 157 * 128, 20 * 256
    assert then - now == {
        tokens * parts_of_logits * 16: 1,
        tokens * parts_of_logits * 4: 1,
        tokens * parts_of_features * 4: 65,
        4 * 4: 67,  # which of the parts are done
        tokens * 2560 * 4: 1,
    }
    assert now - then == {10_000 * 2560 * 4: 1, 2560 * 2560 * 4: 4 * 32, 2560 * 10240 * 4: 3 * 32}


def test_as_written_torch_now_makes_no_slice_of_a_colon(played: Played) -> None:
    """``logits[:, -1, :]`` had three gradients in each of three steps, of which one was needed."""
    now, then = _asked(played["rec28, as written"]), _asked(recorded("rec28"))
    assert then - now == {10 * 100 * 10_000 * 4: 3, 10 * 10_000 * 4: 3}
    assert not now - then
