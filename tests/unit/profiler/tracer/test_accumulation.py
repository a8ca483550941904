"""Where two gradients meet, the tracer adds them as autograd does without it: in place only where nobody else looks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

import nooom
from nooom.profiler.tracer import accumulation
from nooom.profiler.tracer.journal import Journal, Operation
from nooom.profiler.tracer.mode import Tracer

Graph = Callable[[list[torch.Tensor]], tuple[torch.Tensor, list[torch.Tensor]]]


def tied(kept: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    weight = torch.linspace(-1, 1, 500 * 8).view(500, 8).requires_grad_()
    hidden = functional.embedding(torch.arange(20), weight)
    return functional.linear(hidden, weight).logsumexp(-1).sum(), [weight]


def residual(kept: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    y = x * 2
    z = y + torch.tanh(y)
    return (z + torch.relu(z) * 3).sum(), [x]


def watched(kept: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hooks keep the very gradients that meet others."""
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    y = x * 2
    parts = [torch.tanh(y), torch.exp(y), y * y]
    for tensor in (y, *parts):
        tensor.register_hook(kept.append)
    z = y + parts[0] + parts[1] + parts[2]
    z.register_hook(kept.append)
    return (z * z).sum(), [x]


def retained(kept: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    x = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    y, other = x * 2, x * 3
    z = y * other + torch.sin(y)
    for tensor in (y, other, z):
        tensor.retain_grad()
        kept.append(tensor)
    return (z * z + y).sum(), [x, y, other, z]


def gradients(graph: Graph, *, traced: bool) -> list[torch.Tensor]:
    kept: list[torch.Tensor] = []
    if traced:
        with nooom.measure("cpu", attribute=True):
            loss, wanted = graph(kept)
            loss.backward()
    else:
        loss, wanted = graph(kept)
        loss.backward()
    found = [tensor.grad for tensor in wanted] + [tensor.detach() for tensor in kept]
    return [tensor for tensor in found if tensor is not None]


@pytest.mark.parametrize("graph", [tied, residual, watched, retained])
def test_gradients_and_whatever_keeps_them_are_what_they_were(graph: Graph) -> None:
    plain, traced = gradients(graph, traced=False), gradients(graph, traced=True)
    assert len(plain) == len(traced) >= 1
    for mine, other in zip(plain, traced, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("graph", [tied, residual, watched, retained])
def test_the_peak_is_the_one_without_the_tracer(graph: Graph) -> None:
    peaks = []
    for attribute in (False, True):
        with nooom.measure("cpu", attribute=attribute) as measured:
            graph([])[0].backward()
        peaks.append(measured.peak_allocated_bytes)
    assert peaks[0] == peaks[1]


def test_a_gradient_that_nobody_holds_can_be_told_from_one_that_is_held() -> None:
    assert accumulation._alone() is not None


def additions(graph: Graph, *, traced: bool) -> list[str]:
    """How the backward pass adds, in order."""
    kept: list[torch.Tensor] = []
    loss, _ = graph(kept)
    if not traced:
        with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
            loss.backward()
        return [event.name.split("::")[1] for event in seen.events() if event.name.startswith("aten::add")]
    journal = Journal()
    with Tracer(journal, "cpu", lambda number: nullcontext(), lambda: None):
        loss.backward()
    operations = [entry.name for entry in journal.take() if isinstance(entry, Operation)]
    return [name.split(".")[1] for name in operations if name.startswith("aten.add")]


@pytest.mark.parametrize("graph", [tied, residual, watched, retained])
def test_it_adds_as_autograd_does_where_nobody_watches(graph: Graph) -> None:
    assert additions(graph, traced=True) == additions(graph, traced=False) != []


def test_autograd_adds_both_in_place_and_not() -> None:
    """What is imitated; a torch that stopped doing one of them would leave the test above without force."""
    assert "add_" in additions(residual, traced=False)
    assert "add" in additions(watched, traced=False)
