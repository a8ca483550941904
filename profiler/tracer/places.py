"""Where in the model an operation runs: a stack of modules in each thread, and whose forward pass autograd undoes."""

from __future__ import annotations

import bisect
import functools
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooks

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent.parent)


class Place(NamedTuple):
    """Where an operation runs."""

    module: str | None
    """The path of the module, or of the one whose forward pass is being differentiated."""
    site: str | None
    """The line of the program that asked; None where autograd did."""
    backward: bool
    """In a backward pass."""


class Places:
    """Follows modules as they are called, through hooks that torch calls for every module.

    In a backward pass no module is called; autograd's node says which number in the forward pass's sequence it has, and
    which module ran at that number was noted then.  What checkpointing recomputes calls its modules again, in the
    thread of the backward pass.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._forward_thread = threading.get_ident()
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._sequence: list[int] = []
        self._paths: list[str | None] = []
        self._handles: list[Any] = []

    def open(self) -> None:
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enters),
            hooks.register_module_forward_hook(self._leaves, always_call=True),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def now(self) -> Place:
        """Where this thread is."""
        stack = self._stack()
        node: Any = torch._C._current_autograd_node()
        if node is None or stack:
            return Place(stack[-1] if stack else None, _site(), node is not None)
        at = bisect.bisect_right(self._sequence, node._sequence_nr()) - 1
        return Place(self._paths[at] if at >= 0 else None, None, True)

    def _stack(self) -> list[str]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[str] = self._local.stack
        return stack

    def _enters(self, module: Any, _args: Any) -> None:
        stack = self._stack()
        if module not in self._names:
            self._name(module, parent=stack[-1] if stack else None)
        stack.append(self._names[module])
        self._note(stack)

    def _leaves(self, _module: Any, _args: Any, _output: Any) -> None:
        stack = self._stack()
        if stack:
            stack.pop()
        self._note(stack)

    def _name(self, module: Any, parent: str | None) -> None:
        """Of a module that none of the known ones holds, and of all that it holds itself."""
        root = "" if parent is None else f"{parent}.{type(module).__name__}"
        for path, child in module.named_modules():
            self._names.setdefault(child, ".".join(part for part in (root, path) if part) or type(module).__name__)

    def _note(self, stack: list[str]) -> None:
        """From this number on, the forward pass is here."""
        if threading.get_ident() != self._forward_thread or not torch.is_grad_enabled():
            return
        number, path = torch._C._autograd._get_sequence_nr(), stack[-1] if stack else None
        if self._sequence and self._sequence[-1] == number:
            self._paths[-1] = path
        else:
            self._sequence.append(number)
            self._paths.append(path)


def _site() -> str | None:
    """The line of the program that asked for what runs now, as far outside torch as it takes; None if C++ asked."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = _file(frame.f_code.co_filename)
        if file is not None:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return None


@functools.cache
def _file(path: str) -> str | None:
    """The end of a source file's path; None of a part of torch, or of what watches it."""
    if path.startswith((_TORCH, _HERE, "<")):
        return None
    return "/".join(path.split("/")[-2:])
