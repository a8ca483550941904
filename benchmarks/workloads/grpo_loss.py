"""GRPO's arithmetic: group-relative advantages, log-probabilities of tokens, and the clipped objective with its KL.

Shao et al., "DeepSeekMath" (2024), equations 3 and 4; one update per rollout, so the old policy is the current one.
"""

from __future__ import annotations

import torch
from torch.nn import functional

CLIP_RANGE = 0.2
KL_WEIGHT = 0.04
_EPSILON = 1e-4
"""Keeps a group whose rewards are all equal from dividing by zero."""


def rule_reward(completions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """A rule instead of a reward model: the share of a completion's tokens in the lower half of the vocabulary.

    Args:
        completions: int64 of shape (completions, tokens).
        vocab_size: the lower half of it counts.

    Returns:
        fp32 of shape (completions,), in 0..1.
    """
    return (completions < vocab_size // 2).float().mean(dim=1)


def group_advantages(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """(reward - its group's mean) / (its group's standard deviation): equation 3's advantage, one per completion.

    Args:
        rewards: shape (completions,), the completions of a group side by side.
        group_size: completions of one prompt.
    """
    groups = rewards.view(-1, group_size)
    spread = groups.std(dim=1, keepdim=True) if group_size > 1 else torch.zeros_like(groups)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (spread + _EPSILON)).view(-1)


def token_logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log p(token) under the logits, one row of the batch at a time.

    Without gradients one row's log-softmax lives at once; with them autograd keeps every row's.

    Args:
        logits: shape (completions, tokens, vocabulary).
        tokens: int64 of shape (completions, tokens).

    Returns:
        shape (completions, tokens), in the logits' dtype.
    """
    rows = [
        functional.log_softmax(row, dim=-1).gather(-1, row_tokens.unsqueeze(-1)).squeeze(-1)
        for row, row_tokens in zip(logits, tokens, strict=True)
    ]
    return torch.stack(rows)


def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    reference_logprobs: torch.Tensor | None,
    *,
    clip_range: float = CLIP_RANGE,
    kl_weight: float = KL_WEIGHT,
) -> torch.Tensor:
    """Minus the clipped objective, plus the KL penalty, averaged over tokens, then over completions.

    Args:
        logprobs: of the policy that trains, shape (completions, tokens).
        old_logprobs: of the policy that generated, same shape, no gradient.
        advantages: shape (completions,).
        reference_logprobs: same shape as ``logprobs``; None leaves the penalty out.
        clip_range: how far the ratio of new to old probabilities may move the objective.
        kl_weight: of the penalty.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    advantage = advantages.unsqueeze(1)
    clipped = torch.clamp(ratio, 1 - clip_range, 1 + clip_range)
    loss = -torch.min(ratio * advantage, clipped * advantage)
    if reference_logprobs is not None:
        # The unbiased estimator that is never negative: pi_ref/pi - log(pi_ref/pi) - 1.
        difference = reference_logprobs - logprobs
        loss = loss + kl_weight * (torch.exp(difference) - difference - 1)
    return loss.mean(dim=1).mean()
