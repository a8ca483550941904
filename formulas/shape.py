"""ModelShape: the sizes of a model that matter to its memory.

The parameter count is arithmetic over the architecture's structure, exact for every architecture that ``config.py``
knows: what ``AutoModelForCausalLM.from_config`` builds, with nothing known about any single model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: how many, how many a token uses, and how wide each is."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    """Width of the experts that every token uses, added up."""
    shared_gate: bool = False
    """How much of the shared experts' answer counts is learnt: one weight for each hidden value."""
    bias: bool = False
    """The router and every expert's projections have biases."""


@dataclass(frozen=True, kw_only=True)
class Latent:
    """DeepSeek's multi-head latent attention: K and V are projected from one small vector per token."""

    kv_rank: int
    q_rank: int | None
    nope_head_dim: int
    rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Of queries and keys; with latent attention both of its parts together."""
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position: int | None
    embedding_size: int | None = None
    """Where it isn't hidden_size (opt-350m), two projections lead there and back."""
    learned_positions: bool = False
    """Positions are a table (gpt2, opt, santacoder): a longer sequence is an error, not a worse answer."""
    unused_positions: int = 0
    """Rows of that table before the first position."""
    sliding_window: int | None = None
    layer_windows: tuple[int | None, ...] = ()
    """The attention window of each layer in tokens; None sees everything."""
    experts: Experts | None = None
    moe_layers: tuple[int, ...] = ()
    """Which layers are mixtures of experts, counted from 0; the others have one MLP of intermediate_size."""
    latent: Latent | None = None
    attention_bias: tuple[bool, bool] = (False, False)
    """Whether q, k and v, and whether the output projection, have biases."""
    mlp_bias: bool = False
    gated_mlp: bool = True
    """Three matrices (gate, up, down) instead of two."""
    attention_sinks: bool = False
    qk_norm_values: int = 0
    """Weights, and biases, of one layer's norms of queries and keys."""
    head_bias: bool = False
    """The output projection over the vocabulary has a bias."""
    norms_per_layer: int = 2
    final_norm: bool = True
    values_per_norm: int = 1
    """For each hidden value: 1 RMSNorm's weight, 2 LayerNorm's weight and bias, 0 neither."""

    @property
    def parameters(self) -> int:
        """Every weight once, tied embeddings too; of a multimodal model the language model's."""
        width = self.embedding_size or self.hidden_size
        tables = self.vocab_size * (width * (1 if self.tied_embeddings else 2) + self.head_bias)
        if width != self.hidden_size:
            tables += 2 * width * self.hidden_size
        if self.learned_positions:
            tables += ((self.max_position or 0) + self.unused_positions) * self.hidden_size
        norms = self.values_per_norm * self.hidden_size * (self.norms_per_layer * self.num_layers + self.final_norm)
        dense = (self.num_layers - len(self.moe_layers)) * self._mlp(self.intermediate_size)
        sparse = len(self.moe_layers) * self._mixture(self.experts) if self.experts else 0
        return tables + norms + self.num_layers * self._attention() + dense + sparse

    @property
    def kv_values_per_layer(self) -> int:
        """Values that one layer's cache keeps of one token.

        Grouped heads count as they are, not as hidden_size.  Latent attention keeps the latent and the rotated part of
        the key, which all heads share (so caches transformers' own DeepSeek-V2, tried with 5.24).
        """
        if self.latent is not None:
            return self.latent.kv_rank + self.latent.rope_head_dim
        return 2 * self.num_kv_heads * self.head_dim

    def kv_bytes_per_token(self, bytes_per_value: float = 2) -> int:
        """KV cache of one token over all layers, as the architecture really keeps it; windows bound how many tokens."""
        return round(self.num_layers * self.kv_values_per_layer * bytes_per_value)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str = "config") -> ModelShape:
        """Read a Hugging Face config.

        Args:
            config: the parsed ``config.json``; a multimodal one's ``text_config`` is taken.
            where: how messages name it.

        Raises:
            nooom.formulas.config.ShapeError: an unknown architecture, a missing key, or a size that no model has.
        """
        from nooom.formulas.config import read_shape

        return read_shape(config, where)

    def _attention(self) -> int:
        if self.latent is not None:
            return self._latent_attention(self.latent)
        h, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        in_bias, out_bias = self.attention_bias
        biases = (q + 2 * kv if in_bias else 0) + (h if out_bias else 0)
        sinks = self.num_heads if self.attention_sinks else 0
        return 2 * h * q + 2 * h * kv + biases + sinks + self.qk_norm_values

    def _latent_attention(self, latent: Latent) -> int:
        """The small projections carry the norms, and the biases where there are any."""
        h, heads, (in_bias, out_bias) = self.hidden_size, self.num_heads, self.attention_bias
        q_width = heads * (latent.nope_head_dim + latent.rope_head_dim)
        kv_width = latent.kv_rank + latent.rope_head_dim
        queries = h * q_width
        if latent.q_rank is not None:
            queries = latent.q_rank * (h + in_bias + 1 + q_width)
        down = (h + in_bias) * kv_width + latent.kv_rank
        up = latent.kv_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
        return queries + down + up + (heads * latent.v_head_dim + out_bias) * h

    def _mlp(self, width: int) -> int:
        wide = 2 if self.gated_mlp else 1
        weights = (wide + 1) * self.hidden_size * width
        return weights + (wide * width + self.hidden_size if self.mlp_bias else 0)

    def _mixture(self, experts: Experts) -> int:
        h, width = self.hidden_size, experts.intermediate_size
        weights = experts.count * (h + 3 * h * width)
        biases = experts.count * (1 + 2 * width + h) if experts.bias else 0
        shared = self._mlp(experts.shared_intermediate_size) if experts.shared_intermediate_size else 0
        return weights + biases + shared + (h if experts.shared_gate else 0)
