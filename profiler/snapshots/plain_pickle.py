"""Pickles of plain data, read without Python's unpickler: nothing in the file can run, import, or take memory at will.

Of the pickle machine there is only what makes dictionaries, lists, tuples, strings, bytes, numbers, booleans and None.
What names a class or a function, builds an object or asks for something outside of the file has no meaning here, so
there is nothing to guard against.  What is left to an ill-meant file is to be large; each thing it makes is counted.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from nooom.formulas.errors import UsageError

MOST_OPERATIONS = 100_000_000
MOST_BYTES = 2 << 30
"""About what all that a file makes may take in memory."""

_LIST, _TUPLE, _DICT, _ENTRY, _STRING, _NUMBER, _PLACE = 72, 56, 232, 50, 60, 32, 8
"""About what Python takes for each, in bytes; a place is one in a list, a tuple, the stack or the memo."""
_LONGEST_NUMBER = 9
"""Addresses and sizes have 64 bits, and a sign."""


class PickleError(UsageError):
    """Not a pickle, not one of plain data, or too large a one."""


def load(data: bytes, most_bytes: int = MOST_BYTES, most_operations: int = MOST_OPERATIONS) -> Any:
    """What a pickle of protocol 2 to 5 holds.

    Shared parts are shared in what is returned, and it may contain itself: whoever walks over it counts the steps.

    Args:
        data: all of it.
        most_bytes: about what it may take in memory.
        most_operations: how many steps it may have.

    Raises:
        PickleError: It holds more than plain data, it is damaged, or it is too large; the message is one line.
    """
    machine = _Machine(data, most_bytes)
    operations, push, memo, number = _OPERATIONS, machine.stack.append, machine.memo, int.from_bytes
    try:
        for _ in range(most_operations):
            at = machine.at
            code = data[at]
            machine.at = at + 1
            # Most of a snapshot: what was there before is there once more.  It takes a place on the stack, no more.
            if code == _LONG_BINGET:
                push(memo[number(data[at + 1 : at + 5], "little")])
                machine.at = at + 5
            elif code == _BINGET:
                push(memo[data[at + 1]])
                machine.at = at + 2
            elif code == _STOP:
                return machine.only()
            else:
                operations[code](machine)
    except KeyError:
        raise PickleError(_unknown(data[machine.at - 1], machine.at - 1)) from None
    except (IndexError, struct.error):
        raise PickleError(f"the pickle is damaged or cut off at byte {machine.at:,} of {len(data):,}") from None
    raise PickleError(f"the pickle has more than {most_operations:,} operations")


def _unknown(code: int, place: int) -> str:
    name = next((name for name in pickle.__all__ if getattr(pickle, name) == bytes([code])), None)
    if name is None:
        return f"not a pickle: byte {place:,} is {code:#04x}"
    return f"the pickle is not plain data: it has {name} at byte {place:,}, which PyTorch's snapshots have not"


class _Machine:
    """The pickle machine's stack and memo."""

    __slots__ = ("at", "data", "left", "marks", "memo", "stack")

    def __init__(self, data: bytes, most_bytes: int) -> None:
        self.data = data
        self.at = 0
        self.left = most_bytes
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: list[Any] = []

    def spend(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            raise PickleError("the pickle would take too much memory")

    def only(self) -> Any:
        """What it all comes to."""
        if len(self.stack) != 1 or self.marks:
            raise IndexError
        return self.stack[0]

    def push(self, value: Any, size_bytes: int) -> None:
        self.spend(size_bytes + _PLACE)
        self.stack.append(value)

    def raw(self, length: int) -> bytes:
        """The next bytes."""
        begin = self.at
        if length > len(self.data) - begin:
            raise IndexError
        self.spend(length)
        self.at = begin + length
        return self.data[begin : begin + length]

    def number(self, length: int) -> int:
        """The next bytes as a number without a sign."""
        begin = self.at
        if length > len(self.data) - begin:
            raise IndexError
        self.at = begin + length
        return int.from_bytes(self.data[begin : begin + length], "little")

    def since_mark(self) -> list[Any]:
        """What lies above the last mark, off the stack."""
        mark = self.marks.pop()
        found = self.stack[mark:]
        del self.stack[mark:]
        return found

    def top(self, kind: type) -> Any:
        """The container that lies on top, above the last mark."""
        found = self.stack[-1]
        if type(found) is not kind or (self.marks and len(self.stack) <= self.marks[-1]):
            raise IndexError
        return found


Operation = Callable[[_Machine], None]


def _protocol(machine: _Machine) -> None:
    if (version := machine.number(1)) > 5:
        raise PickleError(f"not a pickle, or one of a protocol that nobody has: {version}")


def _frame(machine: _Machine) -> None:
    machine.number(8)


def _mark(machine: _Machine) -> None:
    machine.spend(_PLACE)
    machine.marks.append(len(machine.stack))


def _constant(value: Any) -> Operation:
    return lambda machine: machine.push(value, 0)


def _integer(length: int) -> Operation:
    return lambda machine: machine.push(machine.number(length), _NUMBER)


def _signed(machine: _Machine) -> None:
    machine.push(int.from_bytes(machine.raw(4), "little", signed=True), _NUMBER)


def _long(machine: _Machine) -> None:
    if (length := machine.number(1)) > _LONGEST_NUMBER:
        raise PickleError(f"the pickle has a number of {length} bytes; PyTorch's snapshots have 8")
    machine.push(int.from_bytes(machine.raw(length), "little", signed=True), _NUMBER)


def _float(machine: _Machine) -> None:
    machine.push(struct.unpack(">d", machine.raw(8))[0], _NUMBER)


def _text(length_bytes: int) -> Operation:
    def operation(machine: _Machine) -> None:
        raw = machine.raw(machine.number(length_bytes))
        # A character that is not ASCII may take four bytes in memory.
        machine.push(raw.decode("utf-8", "replace"), _STRING + (0 if raw.isascii() else 3 * len(raw)))

    return operation


def _bytes(length_bytes: int) -> Operation:
    return lambda machine: machine.push(machine.raw(machine.number(length_bytes)), _STRING)


def _empty_list(machine: _Machine) -> None:
    machine.push([], _LIST)


def _empty_dict(machine: _Machine) -> None:
    machine.push({}, _DICT)


def _tuple(machine: _Machine) -> None:
    machine.push(tuple(machine.since_mark()), _TUPLE)


def _tuple_of(count: int) -> Operation:
    def operation(machine: _Machine) -> None:
        if machine.marks and len(machine.stack) - count < machine.marks[-1]:
            raise IndexError
        parts = [machine.stack.pop() for _ in range(count)]
        machine.push(tuple(reversed(parts)), _TUPLE + _PLACE * count)

    return operation


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    machine.spend(_PLACE)
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.since_mark()
    machine.spend(_PLACE * len(values))
    machine.top(list).extend(values)


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _put(machine, machine.top(dict), key, value)


def _set_items(machine: _Machine) -> None:
    items = machine.since_mark()
    found = machine.top(dict)
    if len(items) % 2:
        raise IndexError
    for key, value in zip(items[::2], items[1::2], strict=True):
        _put(machine, found, key, value)


def _put(machine: _Machine, found: dict[Any, Any], key: Any, value: Any) -> None:
    # Nothing else is a key in a snapshot; to hash a tuple in a tuple in a tuple ... would overflow the C stack.
    if type(key) is not str and type(key) is not int:
        raise PickleError(f"the pickle has a {type(key).__name__} as a key; PyTorch's snapshots have names and numbers")
    machine.spend(_ENTRY)
    found[key] = value


def _memoize(machine: _Machine) -> None:
    machine.spend(_PLACE)
    machine.memo.append(machine.stack[-1])


def _put_into_memo(length: int) -> Operation:
    def operation(machine: _Machine) -> None:
        place = machine.number(length)
        if place > len(machine.memo):
            raise PickleError("the pickle's memo has holes, which no pickler makes")
        if place == len(machine.memo):
            _memoize(machine)
        else:
            machine.memo[place] = machine.stack[-1]

    return operation


_STOP, _BINGET, _LONG_BINGET = pickle.STOP[0], pickle.BINGET[0], pickle.LONG_BINGET[0]
_OPERATIONS: dict[int, Operation] = {
    code[0]: operation
    for code, operation in {
        pickle.PROTO: _protocol,
        pickle.FRAME: _frame,
        pickle.MARK: _mark,
        pickle.NONE: _constant(None),
        pickle.NEWTRUE: _constant(value=True),
        pickle.NEWFALSE: _constant(value=False),
        pickle.BININT: _signed,
        pickle.BININT1: _integer(1),
        pickle.BININT2: _integer(2),
        pickle.LONG1: _long,
        pickle.BINFLOAT: _float,
        pickle.SHORT_BINUNICODE: _text(1),
        pickle.BINUNICODE: _text(4),
        pickle.BINUNICODE8: _text(8),
        pickle.SHORT_BINBYTES: _bytes(1),
        pickle.BINBYTES: _bytes(4),
        pickle.BINBYTES8: _bytes(8),
        pickle.EMPTY_LIST: _empty_list,
        pickle.EMPTY_DICT: _empty_dict,
        pickle.EMPTY_TUPLE: _constant(()),
        pickle.TUPLE: _tuple,
        pickle.TUPLE1: _tuple_of(1),
        pickle.TUPLE2: _tuple_of(2),
        pickle.TUPLE3: _tuple_of(3),
        pickle.APPEND: _append,
        pickle.APPENDS: _appends,
        pickle.SETITEM: _set_item,
        pickle.SETITEMS: _set_items,
        pickle.MEMOIZE: _memoize,
        pickle.BINPUT: _put_into_memo(1),
        pickle.LONG_BINPUT: _put_into_memo(4),
    }.items()
}
