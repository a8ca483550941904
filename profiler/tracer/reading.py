"""A phase's reading, with what its peak is made of."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from nooom.formulas.errors import NooomError
from nooom.profiler.instruments import Reading
from nooom.profiler.tracer.attribution import Vocabulary, attribute
from nooom.profiler.tracer.ledger import Ledger, Scratch
from nooom.profiler.tracer.owners import Owners

_INPUTS, _SIZES = 8, 32
"""Of an operation's shapes and blocks, so many are kept: a step over all parameters has hundreds."""


def explained(reading: Reading, ledger: Ledger, owners: Owners) -> Reading:
    """The reading, attributed.

    Args:
        reading: of the phase that ends.
        ledger: which has followed the same phase.
        owners: who knows the models that ran.

    Raises:
        NooomError: the ledger came to another peak than the allocator, and what it says would be wrong.
    """
    peak = reading.peak_allocated_bytes
    if peak is None:
        return reading
    if peak != ledger.peak_bytes:
        raise NooomError(f"the allocator's events add up to {ledger.peak_bytes} bytes, and its peak is {peak}")
    known = Vocabulary(sizes=owners.vocabularies(), shapes=owners.shapes())
    made_by = ledger.peak_operation
    return dataclasses.replace(
        reading,
        peak_op=None if made_by is None else made_by.name,
        **dataclasses.asdict(attribute(ledger.at_peak, peak, known)),
    )


def scratch(ledger: Ledger) -> list[dict[str, Any]]:
    """For records: what operations took for themselves, the largest first."""
    found = sorted(ledger.scratch.values(), key=lambda item: (-item.total_bytes, item.operation.name))
    return [_as_json(item) for item in found if item.total_bytes]


def _as_json(item: Scratch) -> dict[str, Any]:
    operation = item.operation
    output = operation.outputs[0] if operation.outputs else None
    return {
        "op": operation.name,
        "backward": operation.backward,
        "inputs": [list(shape) for shape in operation.inputs[:_INPUTS]],
        "tensors": len(operation.inputs),
        "largest": max((math.prod(shape) for shape in operation.inputs), default=0),
        "output": None if output is None else list(output.shape),
        "dtype": None if output is None else output.dtype,
        "sizes": list(item.sizes[:_SIZES]),
        "bytes": item.total_bytes,
    }
