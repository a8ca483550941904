"""``nooom.measure()``: a block of anyone's code, and every tensor at its peak by the module and line that made it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import nooom
from nooom.formulas.errors import UsageError

VOCABULARY, WIDTH, ROWS = 5000, 64, 32
LOGITS_BYTES = 4 * ROWS * VOCABULARY


class Config:
    vocab_size = VOCABULARY


class Model(nn.Module):
    """A head on two layers, told by its config how large its vocabulary is, as transformers' models are."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.down(functional.silu(self.up(x))))
        return logits


class Hoarder(Model):
    """Keeps what it should let go."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        self.kept.append(logits * 2)
        return logits


def labels() -> torch.Tensor:
    return torch.zeros(ROWS, dtype=torch.long)


def named(phase: Any, category: str) -> list[dict[str, Any]]:
    return [tensor for tensor in phase.tensors if tensor["category"] == category]


def test_components_sum_to_the_peak_and_each_is_what_it_says() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with nooom.measure("cpu", attribute=True) as measured:
        model(torch.randn(ROWS, WIDTH)).log_softmax(-1).mean().backward()
        measured.phase("optimizer")
        optimizer.step()
    block, step = measured.phases
    assert [block.name, step.name] == ["block", "optimizer"]
    for phase in measured.phases:
        assert phase.components is not None
        assert sum(phase.components.values()) == phase.peak_allocated_bytes
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert step.components is not None
    assert step.components["gradients"] == weights
    assert step.components["optimizer"] >= 2 * weights  # the step's temporaries too
    moments = {tensor["what"] for tensor in named(step, "optimizer")}
    assert {"exp_avg of head.weight", "exp_avg_sq of head.weight"} <= moments
    assert measured.peak_allocated_bytes == max(p.peak_allocated_bytes or 0 for p in measured.phases)


def test_a_tensor_that_is_kept_alive_is_named_by_its_module_and_line() -> None:
    model = Hoarder()
    with torch.no_grad(), nooom.measure("cpu", attribute=True) as measured:
        for _ in range(3):
            model(torch.randn(ROWS, WIDTH))
        measured.phase("afterwards")
    (kept,) = named(measured.phases[-1], "logits")
    assert (kept["count"], kept["bytes"], kept["module"], kept["op"]) == (3, LOGITS_BYTES, "Hoarder", "aten.mul.Tensor")
    assert kept["site"].startswith("profiler/test_block.py:")


def test_a_forgotten_no_grad_keeps_the_layers_activations() -> None:
    def held(context: Any) -> dict[str, int]:
        model = Model()
        with nooom.measure("cpu", attribute=True) as measured, context:
            output = model(torch.randn(ROWS, WIDTH))
            measured.phase("afterwards")
        assert output is not None
        return {tensor["module"]: tensor["bytes"] for tensor in named(measured.phases[-1], "activations")}

    assert held(torch.no_grad()) == {}
    forgotten = held(torch.enable_grad())
    assert {"up", "down", "Model"} <= set(forgotten)
    assert forgotten["up"] == 4 * ROWS * 4 * WIDTH


def test_a_second_copy_of_the_logits_is_named() -> None:
    model = Model()
    with nooom.measure("cpu", attribute=True) as measured:
        logits = model(torch.randn(ROWS, WIDTH))
        functional.cross_entropy(logits.double(), labels())
    copies = named(measured.phases[0], "logits")
    assert [(copy["op"], copy["dtype"]) for copy in copies] == [
        ("aten._to_copy.default", "float64"), ("aten._log_softmax.default", "float64"), ("aten.mm.default", "float32"),
    ]  # fmt: skip
    assert {copy["module"] for copy in copies} == {"head", None}


def test_in_the_backward_pass_a_tensor_belongs_to_the_module_that_is_undone() -> None:
    model = Model()
    with nooom.measure("cpu", attribute=True) as measured:
        loss = functional.cross_entropy(model(torch.randn(ROWS, WIDTH)), labels())
        measured.phase("backward")
        loss.backward()
    backward = measured.phases[1]
    gradients = {tensor["what"] for tensor in named(backward, "gradients")}
    assert "head.weight" in gradients
    assert {tensor["site"] for tensor in named(backward, "gradients")} == {None}


def test_parameters_are_named_when_the_block_builds_the_model() -> None:
    with nooom.measure("cpu", attribute=True) as measured:
        model = Model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    (phase,) = measured.phases
    assert phase.components is not None
    assert phase.components["parameters"] == weights
    assert {"up.weight", "down.weight", "head.weight"} == {tensor["what"] for tensor in named(phase, "parameters")}


def test_without_attribution_there_are_the_peaks_alone() -> None:
    with nooom.measure("cpu") as measured:
        kept = torch.empty(1000)
    (phase,) = measured.phases
    assert (phase.peak_allocated_bytes, phase.components) == (kept.nbytes, None)


def test_an_error_in_the_block_is_raised_and_the_hooks_are_gone() -> None:
    from torch.nn.modules import module

    before = len(module._global_forward_pre_hooks)
    with pytest.raises(ZeroDivisionError), nooom.measure("cpu", attribute=True) as measured:
        torch.empty(10)
        _ = 1 / 0
    assert len(module._global_forward_pre_hooks) == before
    assert measured.phases[0].peak_allocated_bytes == 40


def test_another_device_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, cuda or cpu"):
        nooom.measure("tpu")
