"""Pickles of plain data are read as Python reads them; what could do more than be data is refused, and nothing of it is done."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from nooom.profiler.snapshots.plain_pickle import PickleError, load

NUMBERS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False) | st.text(max_size=300) | st.binary(max_size=300),
    lambda parts: st.lists(parts) | st.tuples(parts, parts) | st.dictionaries(st.text() | NUMBERS, parts),
    max_leaves=30,
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(data=PLAIN, protocol=st.sampled_from([3, 4, 5]))
def test_plain_data_comes_back(data: Any, protocol: int) -> None:
    assert load(pickle.dumps(data, protocol=protocol)) == data


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_shared_parts_stay_shared(protocol: int) -> None:
    part = {"name": "step", "line": 7}
    found = load(pickle.dumps([[part] * 40, (part, 1, 2, 3, 4), part, ()], protocol=protocol))
    assert found[0][0] is found[0][39] is found[1][0] is found[2]


def test_a_list_may_hold_itself() -> None:
    itself: list[Any] = []
    itself.append(itself)
    found = load(pickle.dumps(itself))
    assert found[0] is found


class _Runs:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("protocol", range(6))
def test_what_would_run_does_not(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(PickleError, match=r"not plain data: it has [A-Z_]+ at byte"):
        load(pickle.dumps({"segments": [_Runs(marker)]}, protocol=protocol))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "damaged or cut off"),
        (b"cos\nsystem\n(S'touch /tmp/x'\ntR.", "it has GLOBAL at byte 0"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "it has STACK_GLOBAL"),
        (b"\x80\x02\x82\x01.", "it has EXT1"),
        (b"\x80\x02U\x01xQ.", "it has SHORT_BINSTRING"),
        (b"\x80\x04K\x01Q.", "it has BINPERSID"),
        (b"\x80\x04)R.", "it has REDUCE"),
        (b"\x80\x04}b.", "it has BUILD"),
        (b"\x80\x04]\x81.", "it has NEWOBJ"),
        (b"\x80\x05\x97.", "it has NEXT_BUFFER"),
        (b"\x80\x04\x8f.", "it has EMPTY_SET"),
        (b"\x80\x05\x96" + (2**60).to_bytes(8, "little"), "it has BYTEARRAY8"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f", "it has LONG4"),
        (b"\x80\x09N.", "a protocol that nobody has"),
        (b"\x00" * 64, "not a pickle: byte 0 is 0x00"),
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "memo has holes"),
        (b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"x", "damaged or cut off"),
        (b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b"x", "damaged or cut off"),
        (b"\x80\x04X\xff\xff\xff\xffx", "damaged or cut off"),
        (b"\x80\x04\x8a\x20" + b"\x01" * 32 + b".", "a number of 32 bytes"),
        (b"\x80\x04h\x00.", "damaged or cut off"),
        (b"\x80\x04j\xff\xff\xff\x7f.", "damaged or cut off"),
        (b"\x80\x04(.", "damaged or cut off"),
        (b"\x80\x04NN.", "damaged or cut off"),
        (b"\x80\x04.", "damaged or cut off"),
        (b"\x80\x04Na.", "damaged or cut off"),
        (b"\x80\x04N(Na.", "damaged or cut off"),
        (b"\x80\x04](a.", "damaged or cut off"),
        (b"\x80\x04}(Nu.", "damaged or cut off"),
        (b"\x80\x04(N\x86.", "damaged or cut off"),
        (b"\x80\x04}N]s.", "has a NoneType as a key"),
        (b"\x80\x04}))s.", "has a tuple as a key"),
        (b"\x80\x04}" + b")" + b"\x85" * 1_000_000 + b"Ns.", "has a tuple as a key"),
    ],
)  # fmt: skip
def test_it_is_refused_in_one_line(data: bytes, says: str) -> None:
    with pytest.raises(PickleError) as refused:
        load(data)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_beginning_of_a_pickle_is_cut_off() -> None:
    whole = pickle.dumps({"a": [1, 2.0, "three", (4, None)], "b": 2**40})
    for length in range(len(whole)):
        with pytest.raises(PickleError):
            load(whole[:length])


def test_a_million_lists_in_one_another_are_no_recursion() -> None:
    depth = 1_000_000
    found = load(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(5):
        (found,) = found


def test_laughs_by_the_billion_are_shared_and_cheap() -> None:
    data = b"\x80\x04]\x94"
    for _ in range(200):  # each list holds the one before ten times
        data += b"]\x94(" + b"h\x00" * 10 + b"e"
    with pytest.raises(PickleError, match="damaged"):  # all but one are left on the stack
        load(data + b".")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"]" * 1_000_000, "too much memory"),
        (b"}" * 1_000_000, "too much memory"),
        (b"(" * 10_000_000, "too much memory"),
        (b"N" * 10_000_000, "too much memory"),
        (b"\x94N" * 10_000_000, "damaged"),
        (b"N" + b"\x94" * 10_000_000, "too much memory"),
        (b"X\x00\x00\x10\x00" + b"x" * (1 << 20), "too much memory"),
        (b"N\x94" + b"h\x00" * 5_000_000, "more than 3,000,000 operations"),
    ],
)
def test_what_it_would_take_is_counted(data: bytes, says: str) -> None:
    with pytest.raises(PickleError, match=says):
        load(b"\x80\x04" + data, most_bytes=1 << 20 if "memory" in says else 1 << 40, most_operations=3_000_000)
