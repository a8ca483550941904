"""What operations on meta tensors return, remembered by what they were given.

Much of PyTorch computes the shape of a result in Python, again for each of a model's alike layers.  On a meta tensor an
operation is nothing but that shape, so what it once returned for the same shapes it returns again.  Only what is plain
is remembered: results that are new, and in-place operations that leave the shape as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_storage_id: Callable[[torch.Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]
_get_default_dtype = torch.get_default_dtype
_empty = torch.empty_strided
_MOST = 64
"""Arguments of a call that is remembered, those in lists among them: a step over all parameters is not made twice."""
_RESHAPES = frozenset(("resize_", "resize_as_", "set_", "_resize_output_"))
_PLAIN = frozenset((int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format))

_Form = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class Results:
    """Runs operations, or returns what they would have."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._forms: dict[Any, bool | None] = {}

    def of(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operation returns."""
        in_place = self._forms.get(func, self)
        if in_place is self:
            in_place = self._forms[func] = _form(func)
        if in_place is None:
            return func(*args, **kwargs)
        parts: list[Any] = [func, _get_default_dtype()]
        if not _write(args, parts) or (kwargs and not _write(kwargs.items(), parts)) or len(parts) > 4 * _MOST:
            return func(*args, **kwargs)
        key = tuple(parts)
        found = self._known.get(key)
        if found is None:
            out = func(*args, **kwargs)
            self._known[key] = _remembered(args, kwargs, out, in_place=bool(in_place))
            return out
        if found == ():
            return func(*args, **kwargs)
        if in_place:
            return args[0]
        forms, kind = found
        if kind is None:
            shape, stride, dtype = forms
            return _empty(shape, stride, dtype=dtype, device="meta")
        made = [None if one is None else _empty(one[0], one[1], dtype=one[2], device="meta") for one in forms]
        return kind(made)


def _form(func: Any) -> bool | None:
    """Whether an operation works in place; None where it is not remembered."""
    schema = func._schema
    name = schema.name.partition("::")[2]
    if not name.endswith("_"):
        return None if schema.is_mutable or not schema.returns else False
    mutated = [argument for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write]
    plain = len(mutated) == 1 and mutated[0].name == "self" and len(schema.returns) == 1
    return True if plain and name not in _RESHAPES and str(mutated[0].type) == "Tensor" else None


def _write(values: Any, parts: list[Any]) -> bool:
    """Write down what the result's shape can depend on; False where that is more than can be written."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if not value.is_meta or value.is_complex():
                return False
            parts += ("tensor", value.shape, value.stride(), value.dtype)
        elif value is None or kind in _PLAIN:
            parts += (kind, value)
        elif kind is list or kind is tuple or kind is torch.Size:
            parts += (kind, len(value))
            if len(value) > _MOST or not _write(value, parts):
                return False
        else:
            return False
    return True


def _remembered(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, *, in_place: bool) -> Any:
    """The forms of the results, and the kind of their row; empty where it must run each time."""
    if in_place:
        return (None, None) if out is args[0] else ()
    if type(out) is torch.Tensor:
        form = _form_of(out)
        return () if form is None or _storage_id(out) in _storages((args, kwargs)) else (form, None)
    if type(out) not in (list, tuple) or not out:
        return ()
    forms = [None if one is None else _form_of(one) for one in out]
    storages = [_storage_id(one) for one in out if type(one) is torch.Tensor]
    shared = len(set(storages)) < len(storages) or not _storages((args, kwargs)).isdisjoint(storages)
    lost = any(form is None and one is not None for form, one in zip(forms, out, strict=True))
    return () if shared or lost else (forms, type(out))


def _form_of(value: Any) -> _Form | None:
    """Of a tensor that lies in a storage of exactly its size; None of anything else."""
    if type(value) is not torch.Tensor or not value.is_meta or value.storage_offset() or value.is_complex():
        return None
    shape, stride, dtype = tuple(value.shape), value.stride(), value.dtype
    same = _empty(shape, stride, dtype=dtype, device="meta")
    return (shape, stride, dtype) if same.untyped_storage().nbytes() == value.untyped_storage().nbytes() else None


def _storages(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor):
        return {_storage_id(value)}
    if isinstance(value, dict):
        return _storages(tuple(value.values()))
    return {one for item in value for one in _storages(item)} if isinstance(value, (list, tuple)) else set()
