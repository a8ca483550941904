"""Every constant of the article's formulas by name: what calibration may fit, and what it says in the article.

The formulas take a mapping of values by these names.  It may be partial: what it leaves out keeps the article's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nooom.formulas.errors import UsageError, nearest

_PARAMETERS = "1. Model Parameters"
_OPTIMIZER = "2. Optimizer States"
_ACTIVATIONS = "4. Activations"
_CACHE = "5. KV Cache"
_SHORT = "TL;DR: Quick Estimation Formulas"
_REWARD = "When You Need a Reward Model"
_TIPS = "Practical Tips for Avoiding OOM"


@dataclass(frozen=True, kw_only=True)
class Constant:
    """One coefficient of a formula."""

    name: str
    article: float
    """The value that the article gives it."""
    unit: str
    what: str
    section: str
    """Where the article says so."""


def _bytes(name: str, value: float, what: str, section: str) -> Constant:
    return Constant(name=name, article=value, unit="bytes/parameter", what=what, section=section)


_ALL = (
    _bytes("fp32_bytes", 4, "a weight in fp32", _PARAMETERS),
    _bytes("bf16_bytes", 2, "a weight in bf16", _PARAMETERS),
    _bytes("fp16_bytes", 2, "a weight in fp16", _PARAMETERS),
    _bytes("int8_bytes", 1, "a weight in int8", _PARAMETERS),
    _bytes("int4_bytes", 0.5, "a weight in int4", _PARAMETERS),
    _bytes("simplified_parameters", 2, 'the 2 of "2P": weights in bf16', _PARAMETERS),
    _bytes("adam_moment_bytes", 4, "first moment, fp32", _OPTIMIZER),
    _bytes("adam_variance_bytes", 4, "second moment, fp32", _OPTIMIZER),
    _bytes("adam_master_bytes", 4, "fp32 master copy of the weights", _OPTIMIZER),
    _bytes("sgd_momentum_bytes", 4, "momentum, fp32", _OPTIMIZER),
    _bytes("full_fine_tuning", 16, 'the 16 of "16P": weights 2, gradients 2, Adam 12', _SHORT),
    _bytes("reward_generation", 4, 'the 4 of "4P": an actor and a reward model of its size', _REWARD),
    Constant(name="reward_caches", article=2, unit="caches", what="the actor's and the reward model's KV cache",
             section=_REWARD),
    Constant(name="megatron_linear", article=34, unit="values/(token x hidden x layer)",
             what="activations that do not grow with the square of the sequence", section=_ACTIVATIONS),
    Constant(name="megatron_attention", article=5, unit="values/(token x heads x token x layer)",
             what="attention scores and probabilities", section=_ACTIVATIONS),
    Constant(name="checkpointed_values", article=2, unit="values/(token x hidden x layer)",
             what="what stays of a layer under gradient checkpointing", section=_ACTIVATIONS),
    Constant(name="kv_values", article=2, unit="values/(token x hidden x layer)", what="one key and one value",
             section=_CACHE),
    Constant(name="lora_share_low", article=0.001, unit="trained/all parameters", what="smallest typical adapter",
             section="3. Gradients"),
    Constant(name="lora_share_high", article=0.01, unit="trained/all parameters", what="largest typical adapter",
             section="3. Gradients"),
    Constant(name="checkpointing_low", article=5, unit="times less", what="activations saved by checkpointing",
             section=_TIPS),
    Constant(name="checkpointing_high", article=10, unit="times less", what="activations saved by checkpointing",
             section=_TIPS),
)  # fmt: skip

CONSTANTS: dict[str, Constant] = {constant.name: constant for constant in _ALL}

ARTICLE: Mapping[str, float] = {constant.name: constant.article for constant in _ALL}
"""The article's own values."""


def value(name: str, constants: Mapping[str, float] = ARTICLE) -> float:
    """A constant's value: the given one, or the article's where none is given.

    Raises:
        UsageError: a given name that is no constant, so that a typo doesn't leave the article's value standing.
    """
    if constants is not ARTICLE:
        for given in constants:
            if given not in CONSTANTS:
                raise UsageError(f"constant {given!r} is unknown; {nearest(given, CONSTANTS)}")
    return constants.get(name, ARTICLE[name])
