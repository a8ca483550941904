"""GRPO's arithmetic against values worked out by hand, and against TRL's where it is installed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from nooom.benchmarks.workloads.grpo_loss import group_advantages, grpo_loss, rule_reward, token_logprobs


def test_advantages_are_relative_to_their_group() -> None:
    # Group 1: mean 2, std (n - 1) sqrt(2); group 2: no spread at all.
    advantages = group_advantages(torch.tensor([1.0, 3.0, 5.0, 5.0]), group_size=2)
    expected = 1 / (math.sqrt(2) + 1e-4)
    assert advantages.tolist() == pytest.approx([-expected, expected, 0.0, 0.0])


def test_a_group_of_one_has_no_advantage() -> None:
    assert group_advantages(torch.tensor([0.3, 0.9]), group_size=1).tolist() == [0.0, 0.0]


def test_the_rule_counts_tokens_of_the_lower_half() -> None:
    assert rule_reward(torch.tensor([[0, 4, 5, 9], [1, 2, 3, 4]]), vocab_size=10).tolist() == [0.5, 1.0]


def test_logprobs_of_tokens() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [math.log(4.0), 0.0]]])
    picked = token_logprobs(logits, torch.tensor([[1, 1]]))
    assert picked.tolist()[0] == pytest.approx([math.log(0.75), math.log(0.2)])


def test_on_policy_without_reference_the_loss_is_minus_the_mean_advantage() -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
    loss = grpo_loss(logprobs, logprobs, torch.tensor([0.5, 2.0]), None)
    assert loss.item() == pytest.approx(-1.25)


def test_the_ratio_is_clipped_on_the_side_that_would_gain() -> None:
    old = torch.zeros(1, 2)
    new = torch.tensor([[math.log(1.5), math.log(0.5)]])
    # advantage +1: min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5
    assert grpo_loss(new, old, torch.tensor([1.0]), None).item() == pytest.approx(-(1.2 + 0.5) / 2)
    # advantage -1: min(-1.5, -1.2) = -1.5 and min(-0.5, -0.8) = -0.8
    assert grpo_loss(new, old, torch.tensor([-1.0]), None).item() == pytest.approx((1.5 + 0.8) / 2)


def test_the_kl_penalty_by_hand() -> None:
    logprobs, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    kl = math.exp(-0.5) + 0.5 - 1
    loss = grpo_loss(logprobs, logprobs, torch.tensor([0.0]), reference, kl_weight=0.1)
    assert loss.item() == pytest.approx(0.1 * kl)


def test_pieces_weighted_by_their_share_add_up_to_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, reference = (-torch.rand(6, 5, generator=generator) for _ in range(2))
    advantages = torch.randn(6, generator=generator)
    whole = grpo_loss(logprobs, logprobs, advantages, reference)
    pieces = [slice(0, 4), slice(4, 6)]
    summed = sum(
        grpo_loss(logprobs[p], logprobs[p], advantages[p], reference[p]) * (len(logprobs[p]) / 6) for p in pieces
    )
    assert float(summed) == pytest.approx(whole.item())


def test_against_trl() -> None:
    """TRL's own loss on the same numbers (loss_type grpo, beta as here)."""
    pytest.importorskip("trl", reason="trl is not installed")
    from types import SimpleNamespace

    from trl import GRPOTrainer

    generator = torch.Generator().manual_seed(1)
    logprobs, old, reference = (-torch.rand(4, 7, generator=generator) for _ in range(3))
    advantages = torch.randn(4, generator=generator)
    ours = grpo_loss(logprobs, old, advantages, reference)
    theirs = _trl_loss(GRPOTrainer, SimpleNamespace, logprobs, old, advantages, reference)
    assert ours.item() == pytest.approx(theirs, rel=1e-5)


def _trl_loss(trainer, namespace, logprobs, old, advantages, reference):  # type: ignore[no-untyped-def]
    from collections import defaultdict

    tokens = torch.zeros_like(logprobs, dtype=torch.long)
    mask = torch.ones_like(tokens)
    inputs = {
        "prompt_ids": tokens[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": tokens,
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }

    class Stub(trainer):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.beta, self.epsilon_low, self.epsilon_high = 0.04, 0.2, 0.2
            self.loss_type, self.importance_sampling_level = "grpo", "token"
            self.top_entropy_quantile, self.use_vllm, self.use_liger_kernel = 1.0, False, False
            self.off_policy_mask_threshold, self.current_gradient_accumulation_steps = None, 1
            self.use_bias_correction_kl, self.vllm_importance_sampling_correction = False, False
            self._metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
            self.model = namespace(training=True)
            self.args = namespace(delta=None, use_bias_correction_kl=False, epsilon=0.2)
            self.accelerator = namespace(gather=lambda x: x, reduce=lambda x, **_: x, num_processes=1)

        def __getattr__(self, name: str) -> Any:
            return False  # what later versions of TRL can also do, switched off

        def _get_per_token_logps_and_entropies(self, *_, **asked):  # type: ignore[no-untyped-def]
            found = (logprobs, torch.zeros_like(logprobs))
            return (*found, None) if "compute_aux_loss" in asked else found

    return Stub()._compute_loss(namespace(training=True), inputs).item()
