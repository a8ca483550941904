"""Every constant of the article's formulas by name: what calibration may fit, and what it says in the article."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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


_ALL = (
    Constant(name="adam_moment_bytes", article=4, unit="bytes/parameter", what="first moment, fp32",
             section="2. Optimizer States"),
    Constant(name="adam_variance_bytes", article=4, unit="bytes/parameter", what="second moment, fp32",
             section="2. Optimizer States"),
    Constant(name="adam_master_bytes", article=4, unit="bytes/parameter", what="fp32 master copy of the weights",
             section="2. Optimizer States"),
    Constant(name="sgd_momentum_bytes", article=4, unit="bytes/parameter", what="momentum, fp32",
             section="2. Optimizer States"),
    Constant(name="megatron_linear", article=34, unit="values/(token x hidden x layer)",
             what="activations that do not grow with the square of the sequence", section="4. Activations"),
    Constant(name="megatron_attention", article=5, unit="values/(token x heads x token x layer)",
             what="attention scores and probabilities", section="4. Activations"),
    Constant(name="checkpointed_values", article=2, unit="values/(token x hidden x layer)",
             what="what stays of a layer under gradient checkpointing", section="4. Activations"),
    Constant(name="kv_values", article=2, unit="values/(token x hidden x layer)", what="one key and one value",
             section="5. KV Cache"),
)  # fmt: skip

CONSTANTS: dict[str, Constant] = {constant.name: constant for constant in _ALL}

ARTICLE: Mapping[str, float] = {constant.name: constant.article for constant in _ALL}
"""The article's own values."""
