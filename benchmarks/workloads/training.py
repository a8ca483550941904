"""The training loop that full fine-tuning and LoRA share, in the order in which the HF Trainer does things."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from nooom.benchmarks.workloads.batches import training_batch
from nooom.benchmarks.workloads.optimizers import build_optimizer
from nooom.benchmarks.workloads.settings import enable_checkpointing, vocab_size
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder

MAX_GRAD_NORM = 1.0
_MIXED_PRECISION = {"none": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerator_for(case: Case, device: torch.device) -> Accelerator:
    return Accelerator(
        cpu=device.type == "cpu",
        mixed_precision=_MIXED_PRECISION[case.autocast],
        gradient_accumulation_steps=case.grad_accumulation or 1,
    )


def train(case: Case, model: Any, device: torch.device, recorder: Recorder) -> None:
    """A warm-up step and the measured ones.  Phases: forward, backward, optimizer.

    The loss comes from the model and the model's output is let go before the backward pass, as the Trainer does: kept,
    it would hold one more copy of the logits.  The loss itself is let go after it: kept, its graph would hold the
    embeddings and their gradient, where a frozen base is checkpointed.  Gradients are clipped, and set to None after
    the step.
    """
    vocabulary = vocab_size(model)
    model.train()
    if case.checkpointing:
        enable_checkpointing(model)
    accelerator = accelerator_for(case, device)
    model, optimizer = accelerator.prepare(model, build_optimizer(case.optimizer, model.parameters()))
    for _ in range(1 + case.steps):
        with recorder.step():
            for _ in range(case.grad_accumulation):
                recorder.enter("forward")
                inputs = training_batch(case, vocabulary, device)
                with accelerator.accumulate(model):
                    loss = model(**inputs, use_cache=False).loss
                    recorder.enter("backward")
                    accelerator.backward(loss)
                    del loss
                    if accelerator.sync_gradients:
                        recorder.enter("optimizer")
                        accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
