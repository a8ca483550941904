"""Inference: one request after another, each a prefill of the prompt and a decode through ``model.generate``."""

from __future__ import annotations

from typing import Any

import torch

from nooom.benchmarks.workloads.batches import prompts
from nooom.benchmarks.workloads.generation import generate
from nooom.benchmarks.workloads.settings import kept_logits, vocab_size
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder


def run(case: Case, model: Any, device: torch.device, recorder: Recorder) -> None:
    """Phases: prefill, and decode when tokens are generated."""
    model.eval()
    for _ in range(1 + case.steps):
        with recorder.step():
            recorder.enter("prefill")
            inputs = prompts(case, vocab_size(model), device)
            _request(case, model, inputs, recorder)


@torch.no_grad()
def _request(case: Case, model: Any, inputs: dict[str, Any], recorder: Recorder) -> None:
    sampled = case.decoding == "sampled"
    if case.new_tokens and case.logits == "last":
        generate(model, inputs, case.new_tokens, recorder, sampled=sampled, decode_phase="decode")
        return
    # generate never asks for all the logits: scoring a prompt does, and may then go on from the cache it made.
    cache = model(**inputs, use_cache=True, **kept_logits(model, 0 if case.logits == "all" else 1)).past_key_values
    if case.new_tokens:
        recorder.enter("decode")
        generate(model, _continued(inputs, cache), case.new_tokens, recorder, sampled=sampled)


def _continued(inputs: dict[str, Any], cache: Any) -> dict[str, Any]:
    """The prompt with one more token, which is what the cache does not hold yet."""
    return {
        "input_ids": torch.cat([inputs["input_ids"], inputs["input_ids"][:, -1:]], dim=1),
        "attention_mask": torch.cat([inputs["attention_mask"], inputs["attention_mask"][:, -1:]], dim=1),
        "past_key_values": cache,
    }
