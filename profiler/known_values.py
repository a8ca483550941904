"""True values of small integer and boolean tensors on a device that computes nothing.

Programs ask the device a few questions whose answers decide what they do next: is this attention mask all ones, how
many rows does it select, has every sequence ended.  On a phantom GPU everything reads as zeros.  :class:`KnownValues`
keeps, beside each small tensor of integers or booleans, what is known of it on the host, computes on both, and answers
from the host.

Kinds of values:

* **exact**: came from the host, or was computed from such values alone.
* **invented**: came from what nobody computed (a sampled token, a comparison of activations).  It reads as zeros, as
  the device would give it.
* **decided**: whether an invented value equals something.  It never does, so that no sampled token ends a sequence or
  is padding; what follows from that is computed.
* not kept: floating point, and tensors above the limit.  They read as zeros.

Reads of what is not exact are counted by the line of code that asked.

It watches calls of torch from Python, not operations: a mode below autograd, even one that does nothing, changes when
temporaries are freed, and with that what the allocator reserves.  What C++ asks by itself is not seen.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LIMIT = 1 << 22
"""Elements of the largest tensor whose values are kept; masks of sixteen rows of 32k tokens stay far below."""

_KEPT = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_EQUAL, _UNEQUAL = frozenset(("eq", "__eq__", "isin")), frozenset(("ne", "__ne__"))
_RANDOM = frozenset(
    ("rand", "randint", "randperm", "randint_like", "random_", "bernoulli", "bernoulli_", "multinomial")
)
_UNWRITTEN = frozenset(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"))
_FORGETS = frozenset(("fill_", "copy_", "zero_"))
"""In-place calls whose result does not depend on what was there before."""
_LIKE = frozenset(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"))
"""Calls that take a shape, a type or a device from a tensor, and nothing of what is in it."""
_IN_PLACE = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
     "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__")
)  # fmt: skip
_SCALARS = frozenset(("item", "__bool__", "__int__", "__float__", "__index__", "tolist", "__complex__"))
_CONSTRUCTORS = frozenset(
    ("tensor", "as_tensor", "asarray", "full", "zeros", "ones", "arange", "linspace", "eye", "scalar_tensor",
     "tril_indices", "triu_indices", "empty", "empty_strided", "randint", "randperm", "rand", "range")
)  # fmt: skip


_EXACT, _DECIDED, _INVENTED = range(3)
"""How much there is to doubt; a result has as much as the worst of what it was computed from."""


@dataclass(eq=False)
class _Shadow:
    """What is known of one storage: its bytes, on the host."""

    data: torch.Tensor
    doubt: int = _INVENTED


class KnownValues(TorchFunctionMode):
    """Keeps true values beside the tensors of one device type while it is entered.

    Args:
        device_type: whose tensors.
    """

    def __init__(self, device_type: str = "cuda") -> None:
        super().__init__()
        self._device_type = device_type
        self._shadows: dict[int, _Shadow] = {}
        self.invented: Counter[str] = Counter()
        """Questions that were answered with what nobody computed, by ``file:line`` of who asked."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":  # an attribute: a view shares its storage, and with it what is known
            return func(*args, **kwargs)
        if name in _SCALARS:
            return self._scalar(func, name, args, kwargs)
        answer = _QUESTIONS.get(name)
        if answer is not None:
            return answer(self, func, args, kwargs)
        out = func(*args, **kwargs)
        in_place = name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
        results = args[:1] if in_place else out
        if any(self._is_kept(result) for result in _tensors(results)):
            self._compute(func, name, args, kwargs, results, in_place)
        self._arrived(name, args, out)
        return out

    # --- what is kept ---------------------------------------------------------------------------------------------

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._device_type

    def _is_kept(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype in _KEPT and self._is_ours(tensor) and tensor.numel() <= LIMIT

    def _shadow(self, tensor: torch.Tensor) -> _Shadow | None:
        return self._shadows.get(tensor.untyped_storage()._cdata) if self._is_kept(tensor) else None

    def _shadow_for(self, tensor: torch.Tensor) -> _Shadow:
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self._shadows.get(key)
        if found is None:
            found = _Shadow(data=torch.zeros(storage.nbytes(), dtype=torch.uint8, device="cpu"))
            self._shadows[key] = found
            weakref.finalize(storage, self._shadows.pop, key, None)
        return found

    def twin(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The host's view of a tensor: the same shape, strides and type; None where nothing is kept of it."""
        if not self._is_ours(tensor):
            return tensor
        shadow = self._shadow(tensor)
        return None if shadow is None else _view(shadow, tensor)

    def is_exact(self, tensor: torch.Tensor) -> bool:
        """Whether nothing of what is known of it was invented."""
        return self._doubt(tensor) == _EXACT

    def _doubt(self, tensor: torch.Tensor) -> int:
        if not self._is_ours(tensor):
            return _EXACT
        shadow = self._shadow(tensor)
        return _INVENTED if shadow is None else shadow.doubt

    # --- computing on both ----------------------------------------------------------------------------------------

    def _compute(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any, in_place: bool
    ) -> None:
        read = args[1:] if name in _FORGETS or name in _LIKE else args
        doubt = max((self._doubt(item) for item in _tensors((read, kwargs))), default=_EXACT)
        if name in _RANDOM or name in _UNWRITTEN:
            doubt = _INVENTED
        before = {id(result): self._shadow(result) is not None for result in _tensors(results)}
        if in_place:
            for result in _tensors(results):
                self._shadow_for(result)  # so that there is a twin to write to
        twins = self._on_the_host(func, name, args, kwargs, doubt)
        if doubt == _INVENTED and name in _EQUAL | _UNEQUAL:
            doubt = _DECIDED
        twins = args[:1] if in_place and twins is not _NOTHING else twins
        for result, twin in zip(_tensors(results), _parts(twins, results), strict=True):
            if not self._is_kept(result):
                continue
            shadow = self._shadow_for(result)
            place = _view(shadow, result)
            if twin is None or (not in_place and twin.shape != place.shape):
                place.zero_()
                shadow.doubt = _INVENTED
                continue
            if not in_place and twin.untyped_storage().data_ptr() != place.untyped_storage().data_ptr():
                place.copy_(twin)
            # One invented part makes a storage invented, unless all of it has just been written.
            whole = name != "__setitem__" and place.numel() * place.element_size() == shadow.data.numel()
            fresh = whole if in_place else whole or not before[id(result)]
            shadow.doubt = doubt if fresh else max(doubt, shadow.doubt)

    def _on_the_host(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], doubt: int) -> Any:
        """The same call on the twins; ``_NOTHING`` where it can't be made there."""
        if name in _RANDOM or name in _UNWRITTEN:
            return _NOTHING
        if doubt == _INVENTED and name in _EQUAL | _UNEQUAL:
            return torch.full(_shape(name, args), name in _UNEQUAL, dtype=torch.bool, device="cpu")
        try:
            if name == "cuda":  # made on the host it would be made on the GPU, which takes memory there
                return self._map(args[0])
            host = {key: self._map(value) for key, value in kwargs.items()}
            if name in _LIKE:
                shape = args[0].shape if name.endswith("_like") else (0,)
                args = (torch.empty(shape, dtype=args[0].dtype, device="cpu"), *args[1:])
            if name in _CONSTRUCTORS:
                host["device"] = "cpu"
            return func(*self._map(args), **host)
        except Exception:  # a float among its inputs, or a call that the CPU lacks: nothing is known
            return _NOTHING

    def _map(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            twin = self.twin(value)
            if twin is None:
                raise LookupError
            return twin
        if isinstance(value, torch.device):
            return torch.device("cpu") if value.type == self._device_type else value
        if isinstance(value, str):
            return "cpu" if value.partition(":")[0] == self._device_type else value
        if type(value) in (list, tuple):
            return type(value)(self._map(item) for item in value)
        return value

    # --- answers --------------------------------------------------------------------------------------------------

    def _asked(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The twin of what is read, counted where it is invented."""
        if not self.is_exact(tensor):
            self.invented[_asker()] += 1
        return self.twin(tensor)

    def _scalar(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        twin = self._asked(tensor) if self._is_ours(tensor) else None
        return func(*args, **kwargs) if twin is None else func(twin, *args[1:], **kwargs)

    def _arrived(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        """What is known arrives with a copy into host memory."""
        source, target = (args[1], args[0]) if name == "copy_" else (args[0] if args else None, out)
        if not isinstance(source, torch.Tensor) or not isinstance(target, torch.Tensor):
            return
        if not self._is_ours(source) or target.device.type != "cpu":
            return
        twin = self._asked(source)
        if twin is not None and twin.shape == target.shape:
            target.copy_(twin)


_NOTHING = object()
_PROFILER = os.path.dirname(os.path.abspath(__file__))
_AUTOGRAD: Any = torch.autograd
_ENGINE = _AUTOGRAD._engine_run_backward
"""What runs every backward pass, below the calls that a mode sees."""


def _view(shadow: _Shadow, tensor: torch.Tensor) -> torch.Tensor:
    whole = shadow.data.view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _shape(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Of a comparison's result."""
    like, other = args[0], args[1] if len(args) > 1 else None
    if name == "isin" or not isinstance(other, torch.Tensor):
        return tuple(like.shape) if isinstance(like, torch.Tensor) else ()
    return tuple(torch.broadcast_shapes(like.shape, other.shape))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _parts(twins: Any, results: Any) -> list[torch.Tensor | None]:
    """A twin for each result; None for each where there are none, or not as many."""
    wanted = len(list(_tensors(results)))
    found = [] if twins is _NOTHING else list(_tensors(twins))
    return list(found) if len(found) == wanted else [None] * wanted


def _asker() -> str:
    """The line of the program that asked, as far outside torch as it takes."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_PROFILER) and "/torch/" not in name:
            break
        frame = frame.f_back
    return f"{'/'.join(frame.f_code.co_filename.split('/')[-3:])}:{frame.f_lineno}"


def _equal(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    twins = [mode._asked(item) for item in args[:2]]
    return func(*args, **kwargs) if any(twin is None for twin in twins) else func(*twins)


def _nonzero(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As many rows as there are; the kernel's own copy of the count is too small to move a peak."""
    tensor = args[0]
    twin = mode._asked(tensor) if mode._is_ours(tensor) else None
    if twin is None:
        return func(*args, **kwargs)
    if kwargs.get("as_tuple"):
        return _places(mode, tensor).unbind(1)
    return _places(mode, tensor)


def _places(mode: KnownValues, mask: torch.Tensor) -> torch.Tensor:
    """``nonzero`` on the device, laid out as the kernel does it: one column for each dimension."""
    twin = mode.twin(mask)
    assert twin is not None
    places = twin.nonzero()
    out = torch.empty((places.shape[1], places.shape[0]), dtype=torch.int64, device=mask.device).t()
    shadow = mode._shadow_for(out)
    _view(shadow, out).copy_(places)
    shadow.doubt = mode._doubt(mask)
    return out


def _where(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) == 1 and not kwargs:
        return _nonzero(mode, torch.nonzero, args, {"as_tuple": True})
    return _plain(mode, func, args, kwargs)


def _get(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Boolean masks become the rows they select, as the kernel does it inside, with the count that is known."""
    if not mode._is_ours(args[0]):
        return func(*args, **kwargs)
    return _plain(mode, func, (args[0], _unmasked(mode, args[1]), *args[2:]), kwargs)


def _masked_select(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensor, mask = args[0], args[1] if len(args) > 1 else kwargs["mask"]
    if not mode._is_ours(tensor) or mode.twin(mask) is None:
        return func(*args, **kwargs)
    return _get(mode, torch.Tensor.__getitem__, (tensor, mask.expand_as(tensor)), {})


def _backward(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """With the mode still there while the engine runs: what checkpointing recomputes asks as the forward pass did."""

    def run(*inner: Any, **rest: Any) -> Any:
        if mode in torch.overrides._get_current_function_mode_stack():  # a backward pass inside another's
            return _ENGINE(*inner, **rest)
        with mode:
            return _ENGINE(*inner, **rest)

    before = _AUTOGRAD._engine_run_backward
    _AUTOGRAD._engine_run_backward = run
    try:
        return func(*args, **kwargs)
    finally:
        _AUTOGRAD._engine_run_backward = before


def _plain(mode: KnownValues, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    out = func(*args, **kwargs)
    if any(mode._is_kept(result) for result in _tensors(out)):
        mode._compute(func, getattr(func, "__name__", ""), args, kwargs, out, in_place=False)
    return out


def _unmasked(mode: KnownValues, index: Any) -> Any:
    if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) and index.dim() > 0:
        if not mode._is_ours(index) or mode._asked(index) is None:
            return index
        return _places(mode, index).unbind(1)
    if isinstance(index, tuple):
        found: list[Any] = []
        for item in index:
            one = _unmasked(mode, item)
            found.extend(one) if one is not item else found.append(item)
        return tuple(found)
    return index


_QUESTIONS: dict[str, Callable[[KnownValues, Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    "equal": _equal,
    "nonzero": _nonzero,
    "where": _where,
    "__getitem__": _get,
    "masked_select": _masked_select,
    "backward": _backward,
}


def summary(invented: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """For records: who asked for what nobody computed, and how often."""
    return [{"asked_by": place, "times": times} for place, times in invented]
