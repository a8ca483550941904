"""The allocator's events and the tracer's journal, joined by address and by the operation's number."""

from __future__ import annotations

from typing import Any

from nooom.profiler.tracer.journal import Operation, Output, Owner
from nooom.profiler.tracer.ledger import Change, Ledger


def operation(number: int, name: str = "aten.mm.default", *outputs: int, **more: Any) -> Operation:
    facts = {"module": None, "site": None, "backward": False, "differentiable": True, "optimizer": False, **more}
    made = tuple(Output(address, (4,), "float32") for address in outputs)
    return Operation(number=number, name=name, outputs=made, **facts)


def born(address: int, size: int, number: int | None) -> Change:
    return Change(address, size, size, number)


def died(address: int, size: int, number: int | None = None) -> Change:
    return Change(address, -size, size, number)


def test_what_an_operation_returns_is_its_tensor_and_the_rest_is_nobodys() -> None:
    ledger = Ledger()
    ledger.follow([born(100, 16, 1), born(200, 800, 1)], [operation(1, "aten.mm.default", 100)])
    tensor, workspace = ledger.at_peak
    assert tensor.output is not None
    assert (workspace.output, workspace.operation and workspace.operation.name) == (None, "aten.mm.default")
    assert ledger.scratch["aten.mm.default", False].sizes == (800,)


def test_the_peak_is_what_was_alive_then_and_learns_later_what_it_was() -> None:
    ledger = Ledger()
    ledger.follow([born(100, 10, 1), born(200, 20, 2), died(200, 20), born(300, 5, 3)], [
        operation(1, "aten.mm.default", 100), operation(2, "aten.add.Tensor", 200), operation(3, "aten.mul.Tensor", 300),
    ])  # fmt: skip
    assert (ledger.peak_bytes, [block.address for block in ledger.at_peak]) == (30, [100, 200])
    assert all(block.output is not None for block in ledger.at_peak)  # the freed one too
    ledger.follow([], [Owner(4, 100, "gradients", "a.weight")])
    assert ledger.at_peak[0].owner == Owner(4, 100, "gradients", "a.weight")


def test_an_address_that_comes_again_is_another_block() -> None:
    ledger = Ledger()
    ledger.follow(
        [born(100, 10, 1), died(100, 10), born(100, 10, 3)],
        [
            operation(1, "aten.mm.default", 100),
            Owner(2, 100, "parameters", "old"),
            operation(3, "aten.add.Tensor", 100),
        ],
    )
    (block,) = ledger.live.values()
    assert block.operation is not None
    assert (block.operation.number, block.owner) == (3, None)


def test_a_phase_begins_with_what_is_alive() -> None:
    ledger = Ledger()
    ledger.follow([born(100, 10, 1), born(200, 20, 1), died(200, 20)], [operation(1, "aten.mm.default", 100, 200)])
    ledger.begin_phase()
    assert (ledger.peak_bytes, len(ledger.at_peak)) == (10, 1)
    ledger.follow([born(300, 1, None)], [])
    assert ledger.peak_bytes == 11


def test_a_block_of_before_is_named_by_the_first_operation_that_returns_it() -> None:
    ledger = Ledger()
    ledger.follow([born(100, 16, None)], [])
    ledger.follow([], [operation(1, "aten.add_.Tensor", 100)])
    assert ledger.live[100].operation is not None


def test_a_copy_knows_what_it_is_a_copy_of() -> None:
    ledger = Ledger()
    cast = operation(3, "aten._to_copy.default", 200, casts=100)
    ledger.follow(
        [born(100, 16, 1), born(200, 8, 3)],
        [operation(1, "aten.empty.memory_format", 100), Owner(2, 100, "parameters", "a.weight"), cast],
    )
    assert ledger.live[200].copy_of is ledger.live[100]
    assert ledger.live[100].owner == Owner(2, 100, "parameters", "a.weight")


def test_what_is_let_go_between_two_operations_is_known_by_what_was_written_until_then() -> None:
    ledger = Ledger()
    ledger.follow(
        [born(100, 16, 1), died(100, 16), born(100, 16, 3)],
        [operation(1, "aten.empty.memory_format", 100), Owner(2, 100, "parameters", "head.weight"), operation(3)],
    )
    (dropped,) = ledger.at_peak
    assert dropped.owner == Owner(2, 100, "parameters", "head.weight")
    assert ledger.live[100].owner is None
