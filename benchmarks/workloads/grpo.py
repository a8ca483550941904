"""GRPO: one minimal but complete step, each of its stages a phase with its own peak.

Rollout (completions, rewards, advantages), reference log-probabilities, update in micro-batches.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch

from nooom.benchmarks.workloads.batches import prompts
from nooom.benchmarks.workloads.generation import generate
from nooom.benchmarks.workloads.grpo_loss import group_advantages, grpo_loss, rule_reward, token_logprobs
from nooom.benchmarks.workloads.lora import with_adapter
from nooom.benchmarks.workloads.optimizers import build_optimizer
from nooom.benchmarks.workloads.settings import enable_checkpointing, kept_logits, vocab_size
from nooom.benchmarks.workloads.training import MAX_GRAD_NORM, accelerator_for
from nooom.formulas.case import Case
from nooom.profiler.recorder import Recorder


def run(case: Case, model: Any, device: torch.device, recorder: Recorder) -> None:
    """Phases: rollout, reference (unless the case has none), update (optimizer included)."""
    reference = copy.deepcopy(model).eval().requires_grad_(False) if case.reference == "separate" else None
    policy = model if case.full else with_adapter(case, model)
    if case.checkpointing:
        enable_checkpointing(policy)
    accelerator = accelerator_for(case, device)
    policy, optimizer = accelerator.prepare(policy, build_optimizer(case.optimizer, policy.parameters()))
    for _ in range(1 + case.steps):
        with recorder.step():
            _step(case, policy, reference, optimizer, accelerator, recorder)


def _step(case: Case, policy: Any, reference: Any, optimizer: Any, accelerator: Any, recorder: Recorder) -> None:
    recorder.enter("rollout")
    vocabulary = vocab_size(policy)
    inputs = prompts(case, vocabulary, accelerator.device)
    policy.eval()
    with accelerator.autocast():
        sequences = generate(accelerator.unwrap_model(policy), inputs, case.new_tokens, recorder, sampled=True)
    rewards = rule_reward(sequences[:, case.seq :], vocabulary)
    advantages = group_advantages(rewards, case.group_size)
    completed = torch.ones_like(sequences[:, case.seq :])
    mask = torch.cat([inputs["attention_mask"], completed], dim=1)

    reference_logprobs = None
    if case.reference != "none":
        recorder.enter("reference")
        with accelerator.autocast():
            reference_logprobs = _reference_logprobs(case, policy, reference, sequences, mask)

    recorder.enter("update")
    policy.train()
    for rows in _pieces(case.batch, case.micro_batch):
        logprobs = _logprobs(policy, sequences[rows], mask[rows], case.new_tokens)
        old = logprobs.detach()  # one update per rollout: the policy that generated is the policy that trains
        known = None if reference_logprobs is None else reference_logprobs[rows]
        loss = grpo_loss(logprobs, old, advantages[rows], known) * (len(logprobs) / case.batch)
        accelerator.backward(loss)
        del logprobs, old, known, loss  # a trainer's step does when it returns: their graph holds what it came from
    accelerator.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def _reference_logprobs(case: Case, policy: Any, reference: Any, sequences: Any, mask: Any) -> torch.Tensor:
    """Of the reference: the separate copy, or the policy's own weights with the adapter switched off."""
    model = policy if reference is None else reference
    with policy.disable_adapter() if reference is None else nullcontext():
        pieces = [
            _logprobs(model, sequences[rows], mask[rows], case.new_tokens)
            for rows in _pieces(case.batch, case.logprob_micro_batch)
        ]
    return torch.cat(pieces)


def _logprobs(model: Any, sequences: torch.Tensor, mask: torch.Tensor, new_tokens: int) -> torch.Tensor:
    """Log-probabilities of the completion, shape (rows, new_tokens); logits of the completion only are computed."""
    kept = kept_logits(model, new_tokens + 1)
    logits = model(input_ids=sequences, attention_mask=mask, use_cache=False, **kept).logits
    return token_logprobs(logits[:, :-1], sequences[:, -new_tokens:])


def _pieces(rows: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
