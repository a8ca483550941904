"""The state of autocast on a GPU that is not there, for who asks for it by the name "meta", or asks for a GPU first.

Whether it is on, its type, how deep it nests and whether it keeps weights is PyTorch's own state for CUDA, which every
build of it has.  "meta" becomes another name for that, so that checkpoints save it and restore it where they recompute.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.amp import autocast_mode
from torch.utils.checkpoint import DefaultDeviceType

_C: Any = torch._C
_ALIASES = frozenset(("meta", "cuda"))


@contextmanager
def patched(follow: Callable[[bool], None], clear: Callable[[], None]) -> Iterator[None]:
    """Patch what asks, for as long as this lasts.

    Args:
        follow: called with whether autocast is on, whenever that is set.
        clear: called when the cache of weights is to be cleared.
    """
    with ExitStack() as stack:
        for one in (_state(follow, clear), _torch_amp(), _accelerate(), _transformers()):
            stack.enter_context(one)
        yield


def _named(device_type: Any) -> Any:
    return "cuda" if device_type == "meta" else device_type


@contextmanager
def _state(follow: Callable[[bool], None], clear: Callable[[], None]) -> Iterator[None]:
    enable, clear_cache, is_available = (
        torch.set_autocast_enabled,
        torch.clear_autocast_cache,
        _C._is_autocast_available,
    )

    def renamed(function: Any) -> Any:
        return lambda *args, **kwargs: function(*map(_named, args), **kwargs)

    def set_autocast_enabled(*args: Any) -> None:
        args = tuple(map(_named, args))
        enable(*args)
        if len(args) == 1 or args[0] == "cuda":  # without a device it is CUDA's
            follow(args[-1])

    def clear_autocast_cache() -> None:
        clear()
        clear_cache()

    with (
        patch.object(torch, "set_autocast_enabled", set_autocast_enabled),
        patch.object(torch, "clear_autocast_cache", clear_autocast_cache),
        patch.object(torch, "is_autocast_enabled", renamed(torch.is_autocast_enabled)),
        patch.object(torch, "get_autocast_dtype", renamed(torch.get_autocast_dtype)),
        patch.object(torch, "set_autocast_dtype", renamed(torch.set_autocast_dtype)),
        patch.object(_C, "_is_autocast_available", lambda device_type: is_available(_named(device_type))),
        patch.object(DefaultDeviceType, "_default_device_type", "meta"),  # of checkpoints without a tensor to ask
    ):
        yield


@contextmanager
def _torch_amp() -> Iterator[None]:
    """Neither autocast nor gradient scalers look for a GPU."""
    begin = autocast_mode.autocast.__init__

    def start(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if device_type not in _ALIASES:
            begin(self, device_type, dtype, enabled, cache_enabled)
            return
        begin(self, "cuda", dtype, False, cache_enabled)  # on, it would switch itself off again
        self._enabled = enabled

    common: Any = torch.cuda.amp.common
    with (
        patch.object(autocast_mode.autocast, "__init__", start),
        patch.object(common, "amp_definitely_not_available", lambda: False),
    ):
        yield


@contextmanager
def _accelerate() -> Iterator[None]:
    """With fp16 an ``Accelerator`` wants a device that it knows, while it is made."""
    if importlib.util.find_spec("accelerate") is None:
        yield
        return
    from accelerate import Accelerator

    make = Accelerator.__init__

    def device(self: Any) -> torch.device:
        return torch.device(_named(self.state.device.type))

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        with patch.object(Accelerator, "device", property(device)):
            make(self, *args, **kwargs)

    with patch.object(Accelerator, "__init__", start):
        yield


@contextmanager
def _transformers() -> Iterator[None]:
    """``maybe_autocast`` has nothing to do for "meta".  Each model has it by name: what changes is its code."""
    found = None
    if importlib.util.find_spec("transformers") is not None:
        from transformers.utils import generic

        found = getattr(generic, "maybe_autocast", None)
    if found is None:  # what has no such function calls torch.autocast
        yield
        return
    before = found.__code__
    found.__code__ = _maybe_autocast.__code__
    try:
        yield
    finally:
        found.__code__ = before


def _maybe_autocast(
    device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Any:  # runs in the other module, whose names are nullcontext and whatever it imports
    import torch

    if torch.is_autocast_enabled(device_type) or enabled:
        return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    return nullcontext()
