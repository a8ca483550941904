"""Whose memory is whose: parameters, their gradients, and optimizers' state, found where torch itself keeps them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizer_hooks

from nooom.profiler.tracer.addresses import address_of
from nooom.profiler.tracer.journal import Journal

PARAMETERS, GRADIENTS, OPTIMIZER = "parameters", "gradients", "optimizer"


class Owners:
    """Knows the modules and optimizers that the program made, and writes down what they hold when asked.

    Args:
        journal: to write to.
        device_type: whose tensors.
        address: where a tensor's storage lies.
    """

    def __init__(self, journal: Journal, device_type: str, address: Callable[[torch.Tensor], int] = address_of) -> None:
        self._journal = journal
        self._address_of = address
        self._device_type = device_type
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = []
        self.stepping = False
        """Whether an optimizer's step is running."""

    def open(self) -> None:
        self._handles = [
            module_hooks.register_module_parameter_registration_hook(self._holds),
            module_hooks.register_module_module_registration_hook(self._holds),
            module_hooks.register_module_forward_pre_hook(lambda module, _args: self._modules.add(module)),
            optimizer_hooks.register_optimizer_step_pre_hook(self._before_step),
            optimizer_hooks.register_optimizer_step_post_hook(self._after_step),
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def write_down(self) -> None:
        """Everything that is held now."""
        for name, parameter in self._parameters():
            self._write(parameter, PARAMETERS, name)
            if parameter.grad is not None:
                self._write(parameter.grad, GRADIENTS, name)
        for optimizer in list(self._optimizers):
            self._write_state(optimizer)

    def vocabularies(self) -> frozenset[int]:
        """Sizes of the vocabularies of the language models that are there, as their configs say."""
        found = set()
        for root in self._roots():
            config: Any = getattr(root, "config", None)
            text = config.get_text_config() if hasattr(config, "get_text_config") else config
            size = getattr(text, "vocab_size", None)
            if isinstance(size, int):
                found.add(size)
        return frozenset(found)

    def shapes(self) -> dict[str, frozenset[tuple[int, ...]]]:
        """The shapes of each module's own parameters, by the module's path."""
        shapes: dict[str, set[tuple[int, ...]]] = {}
        for name, parameter in self._parameters():
            shapes.setdefault(name.rpartition(".")[0], set()).add(tuple(parameter.shape))
        return {path: frozenset(found) for path, found in shapes.items()}

    def _roots(self) -> list[Any]:
        known = list(self._modules)
        held = {id(child) for module in known for child in module._modules.values()}
        return [module for module in known if id(module) not in held]

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for root in self._roots():
            modules = list(_walk(root, "", set()))
            seen: set[int] = set()
            for kind in ("_parameters", "_buffers"):
                for path, module in modules:
                    for name, tensor in getattr(module, kind).items():
                        if tensor is not None and id(tensor) not in seen:
                            seen.add(id(tensor))
                            yield f"{path}.{name}" if path else name, tensor

    def _holds(self, module: Any, name: str, held: Any) -> None:
        """Also what is let go before anyone looks again is known by this name: the head that tied weights replace."""
        self._modules.add(module)
        if isinstance(held, torch.nn.Parameter):
            self._write(held, PARAMETERS, f"{type(module).__name__}.{name}")

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        self.stepping = True
        self.write_down()

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.stepping = False
        self._write_state(optimizer)

    def _write_state(self, optimizer: Any) -> None:
        names = {id(parameter): name for name, parameter in self._parameters()}
        for parameter, state in list(optimizer.state.items()):
            of = f" of {names[id(parameter)]}" if id(parameter) in names else ""
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    self._write(value, OPTIMIZER, f"{name}{of}")

    def _write(self, tensor: torch.Tensor, category: str, name: str) -> None:
        if tensor.device.type == self._device_type:
            self._journal.owns(self._address_of(tensor), category, name)


def _walk(module: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """As ``named_modules``, in a tenth of its time: it is asked for at every phase's end."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(child, f"{path}.{name}" if path else name, seen)
