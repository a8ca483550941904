"""How long a case takes on a GPU: an estimate, made so that a budget holds.  It has nothing to do with memory.

What is assumed of an H100 stands in :data:`H100`, each figure on the slow side: half of what matrix products reach
there, or less; Python that launches a layer's kernels no faster than on a busy core; libraries read from a cold disk.
A faster GPU (an H200) is given the same figures, so that a suite is dealt to its shards alike everywhere.

Not counted: kernels that a GPU compiles when they are first used, a disk slower than :attr:`Assumed.disk_bytes_per_s`,
and memory that the allocator frees and asks for again near the limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from nooom.benchmarks.runner import Planned
from nooom.formulas.case import Case
from nooom.formulas.shape import ModelShape

GPU = "h100-80gb"
"""Whose time is estimated, by the command's name for it."""
_VALUE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What an estimate assumes of the machine."""

    server_s: float = 25.0
    """Importing torch and transformers: once a run, and once more for other settings of the allocator."""
    case_s: float = 3.0
    """Fork, CUDA context, NVML's sampler, the first kernels, and giving the memory back."""
    module_s: float = 0.01
    """Building one layer's modules in Python, and its adapter's."""
    fill_bytes_per_s: float = 20e9
    """Asking the driver for weights and drawing them at random."""
    disk_bytes_per_s: float = 0.5e9
    """A checkpoint, written and read."""
    flops_per_s: float = 150e12
    """16-bit matrix products; the datasheet says 989."""
    fp32_flops_per_s: float = 20e12
    """32-bit ones without TF32, which is PyTorch's default; the datasheet says 67."""
    bytes_per_s: float = 1.5e12
    """Reading and writing the GPU's memory; the datasheet says 3350 GB/s."""
    layer_s: float = 0.0015
    """Launching the kernels of one layer, forward, from Python: in decoding each token waits for it."""
    adapter_factor: float = 2.0
    """How many times as many launches a layer has with an adapter at each of its projections."""


H100 = Assumed()


def seconds(case: Case, shape: ModelShape, assumed: Assumed = H100) -> float:
    """One case, from the fork to its end: loading, a warm-up and the measured repetitions."""
    once = {"inference": _inference, "sft": _training, "lora": _training, "grpo": _grpo}[case.workload]
    repetitions = 1 + case.steps
    return assumed.case_s + _load(case, shape, assumed) + repetitions * once(case, shape, assumed)


def total(planned: Iterable[Planned], assumed: Assumed = H100) -> float:
    """Cases one after another on one GPU, and the processes that start them."""
    cases = list(planned)
    servers = sum(1 for _ in itertools.groupby(cases, key=lambda item: item.case.allocator))
    return servers * assumed.server_s + sum(seconds(item.case, item.shape, assumed) for item in cases)


def said(seconds: float) -> str:
    """``7m 50s``; below a minute ``50s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def _load(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    size = _weight_bytes(case, shape)
    copies = 2 if case.reference == "separate" else 1
    fill = copies * size / (assumed.disk_bytes_per_s / 2 if case.pretrained else assumed.fill_bytes_per_s)
    return shape.num_layers * assumed.module_s * _launches(case, shape, assumed) + fill


def _inference(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    return _forward(case, shape, case.batch, case.seq, assumed) + _decode(case, shape, assumed)


def _training(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    step = _update(case, shape, case.batch, case.seq, assumed)
    return case.grad_accumulation * step + _optimizer(case, shape, assumed)


def _grpo(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    length = case.seq + case.new_tokens
    rollout = _forward(case, shape, case.batch, case.seq, assumed) + _decode(case, shape, assumed)
    asked = -(-case.batch // case.logprob_micro_batch) if case.reference != "none" else 0
    reference = asked * _forward(case, shape, case.logprob_micro_batch, length, assumed)
    trained = -(-case.batch // case.micro_batch) * _update(case, shape, case.micro_batch, length, assumed)
    return rollout + reference + trained + _optimizer(case, shape, assumed)


def _update(case: Case, shape: ModelShape, batch: int, seq: int, assumed: Assumed) -> float:
    """Forward, backward (twice that, or once where the weights are frozen), and forward again with checkpointing."""
    passes = (2 if case.adapter else 3) + bool(case.checkpointing)
    return passes * _forward(case, shape, batch, seq, assumed)


def _forward(case: Case, shape: ModelShape, batch: int, seq: int, assumed: Assumed) -> float:
    """Matrix products, what is read and written around them, and the launches: as if nothing overlapped."""
    tokens, heads = batch * seq, shape.num_heads * shape.head_dim
    products = 2 * shape.parameters * tokens + 4 * tokens * seq * heads * shape.num_layers
    slow = case.dtype == "fp32" and case.autocast in (None, "none")
    values = tokens * (shape.num_layers * (30 * shape.hidden_size + 10 * shape.intermediate_size))
    logits = 32 * tokens * shape.vocab_size if case.workload != "inference" or case.logits == "all" else 0
    moved = values * _VALUE_BYTES[case.dtype] + logits + _scores(case, shape, batch, seq)
    launches = shape.num_layers * assumed.layer_s * _launches(case, shape, assumed)
    return (
        products / (assumed.fp32_flops_per_s if slow else assumed.flops_per_s) + moved / assumed.bytes_per_s + launches
    )


def _scores(case: Case, shape: ModelShape, batch: int, seq: int) -> float:
    """Bytes moved for attention scores where they are written out, a dozen times in 32 bits."""
    if case.attention not in ("eager", "sdpa-math"):
        return 0
    return 48 * batch * shape.num_heads * seq * seq * shape.num_layers


def _decode(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    """Each token reads all weights, reads and copies the cache, and waits for Python to launch every layer."""
    if not case.new_tokens:
        return 0.0
    width = _VALUE_BYTES[case.dtype]
    cache = 3 * case.batch * (case.seq + case.new_tokens) * shape.kv_bytes_per_token(width)
    moved = (_weight_bytes(case, shape) + cache) / assumed.bytes_per_s
    return case.new_tokens * (moved + shape.num_layers * assumed.layer_s * _launches(case, shape, assumed))


def _optimizer(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    """Gradients are clipped and states read and written: some 60 bytes a parameter that trains, as in fp32."""
    trained = 0.02 * shape.parameters if case.adapter else shape.parameters
    return 60 * trained / assumed.bytes_per_s + 3 * shape.num_layers * assumed.layer_s


def _launches(case: Case, shape: ModelShape, assumed: Assumed) -> float:
    experts = 1 + shape.experts.per_token if shape.experts else 1
    return experts * (assumed.adapter_factor if case.trains and case.adapter else 1.0)


def _weight_bytes(case: Case, shape: ModelShape) -> int:
    return shape.parameters * _VALUE_BYTES[case.dtype]
