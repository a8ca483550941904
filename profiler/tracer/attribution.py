"""What the blocks at a peak are: bytes by category, the largest tensors, and what no tensor owns by operation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nooom.profiler.tracer.hidden import name_of
from nooom.profiler.tracer.journal import Owner
from nooom.profiler.tracer.ledger import Block
from nooom.profiler.tracer.owners import OPTIMIZER, PARAMETERS

CATEGORIES = (
    "parameters", "gradients", "optimizer", "activations", "logits", "kv_cache", "inputs", "workspace", "rounding",
    "other",
)  # fmt: skip
LARGEST = 10
_CACHES = ("cache_utils.py",)
"""Files whose tensors are keys and values kept between tokens: transformers' caches."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What categories are told apart by, of the models that ran."""

    sizes: frozenset[int] = frozenset()
    """Of their vocabularies: a tensor whose last dimension is one of these is logits, or made of logits."""
    shapes: Mapping[str, frozenset[tuple[int, ...]]]
    """Of each module's parameters: what the backward pass makes in such a shape is a gradient of one."""


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """A peak, taken apart."""

    components: dict[str, int]
    """Requested bytes by category, and what the allocator adds as ``rounding``; they sum to the peak."""
    tensors: list[dict[str, Any]]
    """The largest, alike ones counted together."""
    hidden: list[dict[str, Any]]
    """What no tensor owns, by the operation that asked for it."""


def attribute(blocks: Iterable[Block], peak_bytes: int, known: Vocabulary) -> Attribution:
    """Take a peak apart.

    Args:
        blocks: what was alive.
        peak_bytes: as the allocator counts it; what it exceeds the requests by is rounding.
        known: of the models that ran.
    """
    components: Counter[str] = Counter()
    owned: dict[_Kind, list[Block]] = defaultdict(list)
    hidden: dict[_Origin, list[Block]] = defaultdict(list)
    for block in blocks:
        category = categorize(block, known)
        components[category] += block.requested_bytes
        if category == "workspace":
            hidden[_origin(block)].append(block)
        else:
            owned[_kind(block, category)].append(block)
    components["rounding"] = peak_bytes - components.total()
    tensors = [_described(kind, alike) for kind, alike in owned.items()]
    nobodys = [_hidden(origin, alike) for origin, alike in hidden.items()]
    return Attribution(
        components={name: components[name] for name in CATEGORIES},
        tensors=sorted(tensors, key=_total, reverse=True)[:LARGEST],
        hidden=sorted(nobodys, key=_total, reverse=True),
    )


def _total(line: Mapping[str, Any]) -> int:
    return int(line["bytes"] * line["count"])


def categorize(block: Block, known: Vocabulary) -> str:
    """One of :data:`CATEGORIES`; ``workspace`` is what no tensor owns."""
    if block.owner is not None:
        return block.owner.category
    operation, output = block.operation, block.output
    if output is None or operation is None:
        return "workspace"
    if operation.optimizer:
        return OPTIMIZER
    original = _original(block)
    if original is not None and original.category == PARAMETERS:
        return PARAMETERS
    if operation.site is not None and operation.site.partition(":")[0].endswith(_CACHES):
        return "kv_cache"
    if output.shape and output.shape[-1] in known.sizes:
        return "logits"
    if operation.backward:
        return "gradients" if _is_gradient(block, known) else "activations"
    if operation.module is None and (not operation.inputs or not output.dtype.startswith(("float", "bfloat"))):
        return "inputs"
    return "activations" if operation.differentiable or operation.module is not None else "other"


def _is_gradient(block: Block, known: Vocabulary) -> bool:
    assert block.operation is not None
    assert block.output is not None
    shapes = known.shapes.get(block.operation.module or "", frozenset())
    return block.output.shape in shapes or block.output.shape[::-1] in shapes


class _Kind(NamedTuple):
    """Blocks of one kind stand in the table together: the same tensor of every layer."""

    category: str
    what: str | None
    module: str | None
    op: str | None
    site: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    size_bytes: int


def _kind(block: Block, category: str) -> _Kind:
    operation, output = block.operation, block.output
    return _Kind(
        category=category,
        what=_what(block),
        module=_any_layer(operation.module) if operation is not None and block.owner is None else None,
        op=None if operation is None else operation.name,
        site=None if operation is None else operation.site,
        dtype=None if output is None else output.dtype,
        shape=None if output is None else output.shape,
        size_bytes=block.requested_bytes,
    )


def _what(block: Block) -> str | None:
    """The name of what is known by one."""
    if block.owner is not None:
        return _any_layer(block.owner.name)
    original = _original(block)
    return f"copy of {_any_layer(original.name)}" if original is not None else None


def _original(block: Block) -> Owner | None:
    """Whose copy in another type it is."""
    return block.copy_of.owner if block.copy_of is not None else None


def _any_layer(name: str | None) -> str | None:
    """``model.layers.17.mlp`` as ``model.layers.*.mlp``."""
    return None if name is None else re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _described(kind: _Kind, alike: list[Block]) -> dict[str, Any]:
    return {
        "what": kind.what,
        "category": kind.category,
        "shape": None if kind.shape is None else list(kind.shape),
        "dtype": kind.dtype,
        "module": kind.module,
        "op": kind.op,
        "site": kind.site,
        "bytes": kind.size_bytes,
        "count": len(alike),
    }


class _Origin(NamedTuple):
    op: str | None
    backward: bool
    size_bytes: int


def _origin(block: Block) -> _Origin:
    operation = block.operation
    if operation is None:
        return _Origin(None, False, block.requested_bytes)
    return _Origin(operation.name, operation.backward, block.requested_bytes)


def _hidden(origin: _Origin, alike: list[Block]) -> dict[str, Any]:
    modules = Counter(_any_layer(block.operation.module) for block in alike if block.operation is not None)
    return {
        "what": name_of(origin.op, origin.size_bytes),
        "op": origin.op,
        "backward": origin.backward,
        "module": modules.most_common(1)[0][0] if modules else None,
        "bytes": origin.size_bytes,
        "count": len(alike),
    }
