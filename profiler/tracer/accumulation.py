"""Gradients that meet are added in place, as autograd does where nobody watches.

Where two gradients of one tensor meet, autograd adds the second to the first in place if nobody else holds the first;
but under any dispatch mode it makes a new tensor, in case the mode's tensors are special
(``autograd/input_buffer.cpp``, ``can_accumulate_inplace``).  With a tied embedding that is one tensor of its size more
at the peak.  The tracer therefore does what autograd would have done: it adds in place where the counts of owners are
those of a tensor that nobody else holds.  What these counts are is found out once, by a gradient that certainly has no
other owner; where they can't be told from those of one that has, nothing is added in place.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_ENGINE = "_engine_run_backward"
_WRAPPERS = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")


def in_place(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The call that autograd would have made without a mode: the same, or one that adds in place.

    To be called by ``__torch_dispatch__`` itself, with its own arguments.
    """
    if func is not _ADD or torch.is_grad_enabled() or len(args) != 2 or not _is_autograds(sys._getframe(2)):
        return func, args
    if _fits(*args) and _owners(args[:1]) == _alone():
        return _ADD_IN_PLACE, args
    return func, args


def learn() -> None:
    """Find out the counts; to be called where gradients can be taken, which is not inside a mode."""
    _alone()


def _is_autograds(frame: Any) -> bool:
    """Whether the engine made the call, and not a line of Python: only wrappers of the mode itself lie between."""
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return torch._C._current_autograd_node() is not None and (frame is None or frame.f_code.co_name == _ENGINE)


def _fits(mine: Any, other: Any) -> bool:
    if not (type(mine) is type(other) is torch.Tensor) or mine.dtype != other.dtype or mine.shape != other.shape:
        return False
    # A view holds what it is a view of, and with it a second owner of the storage.
    return not mine._is_view() and bool(mine.is_contiguous() or (mine.dim() == 2 and mine.t().is_contiguous()))


def _owners(args: tuple[Any, ...]) -> tuple[int, int, int]:
    """Who holds the first gradient, its object in Python, and its storage: three counts."""
    storage = args[0].untyped_storage()._cdata
    return args[0]._use_count(), sys.getrefcount(args[0]), torch._C._storage_Use_Count(storage)


@functools.cache
def _alone() -> tuple[int, int, int] | None:
    """The counts of a gradient without another owner; None where one that has another can have the same."""
    alone = _counts(keep=None)
    held = [_counts(keep=keep) for keep in ("tensor", "storage", "grad")]
    return None if alone in held else alone


def _counts(keep: str | None) -> tuple[int, int, int] | None:
    """Of the first gradient at the one place of a graph where two of them meet."""
    probe = _Probe(keep)
    with torch.enable_grad(), probe:
        x = torch.ones(2, 2, requires_grad=True) * 2
        loss = (x.exp() + x.tanh()).sum()
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()
    return probe.counts


class _Probe(TorchDispatchMode):
    """Counts owners where autograd adds two gradients; keeps each gradient in one more place where it is told to."""

    def __init__(self, keep: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: tuple[int, int, int] | None = None
        self._keep = keep
        self._kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ADD and not torch.is_grad_enabled() and self.counts is None:
            self.counts = _owners(args[:1])
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self._hold(out)
        return out

    def _hold(self, tensor: torch.Tensor) -> None:
        if self._keep == "tensor":
            self._kept.append(tensor)
        elif self._keep == "storage":
            self._kept.append(tensor.view(tensor.shape))
        elif self._keep == "grad" and tensor.is_floating_point():
            self._kept.append(torch.empty_like(tensor))
            self._kept[-1].grad = tensor  # held by C++ alone
