"""The shapes that claims are about: the article's, the zoo's real ones, and the sizes of LoRA adapters on them."""

from __future__ import annotations

import functools

from nooom.benchmarks.models.zoo import names, resolve
from nooom.formulas.shape import ModelShape

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
"""Every linear layer but the output projection over the vocabulary, which is what peft's all-linear means."""


@functools.cache
def real(model: str) -> ModelShape:
    """A zoo model's own shape."""
    return ModelShape.from_config(resolve(model).config, where=model)


def of_that_size(layers: int, hidden: int) -> dict[str, ModelShape]:
    """The zoo's models with so many layers of that width."""
    found = {name: real(name) for name in names()}
    return {name: shape for name, shape in found.items() if (shape.num_layers, shape.hidden_size) == (layers, hidden)}


def stated(layers: int, hidden: int, heads: int | None = None) -> ModelShape:
    """A model as the article describes one: layers, width, every head with its own keys and values."""
    heads = heads or hidden // 128
    return ModelShape(
        model_type="llama", hidden_size=hidden, num_layers=layers, num_heads=heads, num_kv_heads=heads,
        head_dim=hidden // heads, intermediate_size=4 * hidden, vocab_size=32_000, tied_embeddings=False,
        max_position=None,
    )  # fmt: skip


def adapter(shape: ModelShape, rank: int, targets: tuple[str, ...]) -> int:
    """Parameters of a LoRA adapter: rank x (inputs + outputs) of each matrix that it is on, in every layer."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {
        "q_proj": hidden + queries, "k_proj": hidden + keys, "v_proj": hidden + keys, "o_proj": queries + hidden,
        "gate_proj": hidden + inner, "up_proj": hidden + inner, "down_proj": inner + hidden,
    }  # fmt: skip
    return rank * shape.num_layers * sum(sizes[target] for target in targets)


def tables(shape: ModelShape) -> int:
    """Parameters of the embedding and, where it is another matrix, the output projection."""
    return shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
