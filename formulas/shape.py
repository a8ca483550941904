"""ModelShape: what a Hugging Face config says that matters to memory, read from plain JSON and bounded.

The parameter count is arithmetic over the architecture's structure, exact for every architecture named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nooom.formulas.errors import UsageError, nearest

_BOUNDS = {
    "hidden_size": 1 << 20,
    "num_hidden_layers": 4096,
    "num_attention_heads": 16_384,
    "num_key_value_heads": 16_384,
    "head_dim": 65_536,
    "intermediate_size": 1 << 24,
    "vocab_size": 1 << 24,
}
_MAX_PARAMETERS = 10**13
_OTHER_NAMES = {
    "gpt2": {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
             "max_position_embeddings": "n_positions"},
    "opt": {"intermediate_size": "ffn_dim"},
}  # fmt: skip


class ShapeError(UsageError):
    """A config that describes no model that can be counted; names the file, the key and what would be right."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: how many, how many a token uses, and how wide each is."""

    count: int
    per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    """Width of the experts that every token uses, added up."""


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
    intermediate_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position: int | None
    learned_positions: bool = False
    """Positions are a table (gpt2, opt): a longer sequence is an error, not a worse answer."""
    sliding_window: int | None = None
    layer_windows: tuple[int | None, ...] = ()
    """The attention window of each layer; None sees everything."""
    experts: Experts | None = None
    moe_layers: int = 0
    latent: Latent | None = None
    attention_bias: tuple[bool, bool] = (False, False)
    """Whether q, k and v, and whether the output projection, have biases."""
    qk_norm: bool = False
    norms_per_layer: int = 2

    @property
    def parameters(self) -> int:
        """Every weight once: tied embeddings count once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        if self.learned_positions:
            return embeddings + self._learned_position_parameters() + self.num_layers * self._biased_layer()
        dense = (self.num_layers - self.moe_layers) * 3 * self.hidden_size * self.intermediate_size
        per_layer = self._attention() + self.norms_per_layer * self.hidden_size
        sparse = self.moe_layers * self._moe(self.experts) if self.experts else 0
        return embeddings + self.num_layers * per_layer + dense + sparse + self.hidden_size

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """KV cache of one token over all layers, as the architecture really keeps it: grouped heads, not hidden_size.

        With latent attention as transformers caches it: full-width keys and values of every head.
        """
        if self.latent is not None:
            key = self.latent.nope_head_dim + self.latent.rope_head_dim
            return self.num_layers * self.num_heads * (key + self.latent.v_head_dim) * bytes_per_value
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str = "config") -> ModelShape:
        """Read a Hugging Face config.

        Args:
            config: the parsed ``config.json``; a multimodal one's ``text_config`` is taken.
            where: how messages name it.

        Raises:
            ShapeError: an unknown architecture, a missing key, or a size that no model has.
        """
        inner = config.get("text_config")
        return _Reader(inner if isinstance(inner, Mapping) else config, where).shape()

    def _attention(self) -> int:
        h, q, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if self.latent is not None:
            return self._latent_attention(self.latent)
        weights = h * q + 2 * h * kv + q * h
        in_bias, out_bias = self.attention_bias
        biases = (q + 2 * kv if in_bias else 0) + (h if out_bias else 0)
        sinks = self.num_heads if self.model_type == "gpt_oss" else 0
        return weights + biases + sinks + (2 * self.head_dim if self.qk_norm else 0)

    def _latent_attention(self, latent: Latent) -> int:
        h, heads = self.hidden_size, self.num_heads
        q_width = heads * (latent.nope_head_dim + latent.rope_head_dim)
        queries = h * q_width if latent.q_rank is None else (h + 1 + q_width) * latent.q_rank
        down = h * (latent.kv_rank + latent.rope_head_dim) + latent.kv_rank
        up = latent.kv_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
        return queries + down + up + heads * latent.v_head_dim * h

    def _moe(self, experts: Experts) -> int:
        h = self.hidden_size
        weights = h * experts.count + 3 * h * experts.intermediate_size * experts.count
        if self.model_type == "gpt_oss":  # biases of the router and of every expert's projections
            weights += experts.count + experts.count * (2 * experts.intermediate_size + h)
        return weights + 3 * h * experts.shared_intermediate_size

    def _biased_layer(self) -> int:
        """gpt2 and opt: biases everywhere, LayerNorms with a bias, a two-matrix MLP."""
        h, wide = self.hidden_size, self.intermediate_size
        return 4 * h * h + 4 * h + 2 * h * wide + wide + h + 4 * h

    def _learned_position_parameters(self) -> int:
        # opt's table is two rows longer than its positions; both end in a LayerNorm.
        rows = (self.max_position or 0) + (2 if self.model_type == "opt" else 0)
        return rows * self.hidden_size + 2 * self.hidden_size


class _Reader:
    """Reads one config, checking every value before anything is computed from it."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self.model_type = self._model_type()

    def shape(self) -> ModelShape:
        hidden, heads = self.size("hidden_size"), self.size("num_attention_heads")
        explicit = self.size("head_dim", None)
        if explicit is None and hidden % heads and self.model_type != "deepseek_v2":
            raise ShapeError(f"{self.where}: hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        kv_heads = self.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise ShapeError(
                f"{self.where}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        layers = self.size("num_hidden_layers")
        shape = ModelShape(
            model_type=self.model_type,
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=explicit or hidden // heads,
            intermediate_size=self._intermediate(hidden),
            vocab_size=self.size("vocab_size"),
            tied_embeddings=self._flag("tie_word_embeddings", _TIED_BY_DEFAULT.get(self.model_type, False)),
            max_position=self.size("max_position_embeddings", None),
            learned_positions=self.model_type in ("gpt2", "opt"),
            sliding_window=self._window(),
            layer_windows=self._windows(layers),
            **self._particulars(layers),
        )
        if shape.parameters > _MAX_PARAMETERS:
            raise ShapeError(
                f"{self.where}: {shape.parameters:,} parameters; at most {_MAX_PARAMETERS:,}: check hidden_size"
            )
        return shape

    def size(self, key: str, *default: int | None) -> Any:
        """A positive integer within its bound; the default, where there is one, for a key that is missing or null."""
        written = _OTHER_NAMES.get(self.model_type, {}).get(key, key)
        value = self.config.get(written)
        if value is None:
            if default:
                return default[0]
            raise ShapeError(f"{self.where}: {written} is missing")
        bound = _BOUNDS.get(key, 1 << 31)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= bound:
            raise ShapeError(
                f"{self.where}: {written} is {str(value)[:40]!r}; an integer between 1 and {bound} is right"
            )
        return value

    def _model_type(self) -> str:
        value = self.config.get("model_type")
        if value is None:
            raise ShapeError(f"{self.where}: model_type is missing")
        if not isinstance(value, str) or value not in MODEL_TYPES:
            raise ShapeError(
                f"{self.where}: model_type {str(value)[:60]!r} is unknown; {nearest(str(value), MODEL_TYPES)}"
            )
        return value

    def _flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise ShapeError(f"{self.where}: {key} is {str(value)[:40]!r}; true or false is right")
        return default if value is None else value

    def _intermediate(self, hidden: int) -> int:
        return int(
            self.size("intermediate_size", 4 * hidden) if self.model_type == "gpt2" else self.size("intermediate_size")
        )

    def _window(self) -> int | None:
        window: int | None = self.size("sliding_window", None)
        # Qwen's configs write a window that they switch off.
        return None if self.config.get("use_sliding_window") is False else window

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        window = self._window()
        if window is None or self.model_type not in ("gemma2", "gemma3_text", "gpt_oss"):
            return (window,) * layers
        # Every second layer, or with gemma 3 all but every sixth, sees only the window.
        period = 6 if self.model_type == "gemma3_text" else 2
        return tuple(None if (i + 1) % period == 0 else window for i in range(layers))

    def _particulars(self, layers: int) -> dict[str, Any]:
        bias = self._flag("attention_bias", False)
        found: dict[str, Any] = {"attention_bias": (bias, bias)}
        match self.model_type:
            case "qwen2":
                found["attention_bias"] = (True, False)
            case "qwen3" | "qwen3_moe":
                found["qk_norm"] = True
            case "gemma2":
                found["norms_per_layer"] = 4
            case "gemma3_text":
                found |= {"norms_per_layer": 4, "qk_norm": True}
            case "gpt_oss":
                found["attention_bias"] = (True, True)
            case "deepseek_v2":
                found["latent"] = self._latent()
        return found | self._experts(layers)

    def _latent(self) -> Latent:
        return Latent(
            kv_rank=self.size("kv_lora_rank"),
            q_rank=self.size("q_lora_rank", None),
            nope_head_dim=self.size("qk_nope_head_dim"),
            rope_head_dim=self.size("qk_rope_head_dim"),
            v_head_dim=self.size("v_head_dim"),
        )

    def _experts(self, layers: int) -> dict[str, Any]:
        names = {"mixtral": "num_local_experts", "gpt_oss": "num_local_experts", "qwen3_moe": "num_experts",
                 "deepseek_v2": "n_routed_experts"}  # fmt: skip
        if self.model_type not in names:
            return {}
        width = self.size("moe_intermediate_size", None) or self.size("intermediate_size")
        dense = 0
        if self.model_type == "deepseek_v2":
            dense = min((self.config.get("first_k_dense_replace") and self.size("first_k_dense_replace")) or 0, layers)
        elif self.model_type == "qwen3_moe":
            step, only = self.size("decoder_sparse_step", 1), self.config.get("mlp_only_layers") or []
            dense = sum(1 for i in range(layers) if i in only or (i + 1) % step)
        experts = Experts(
            count=self.size(names[self.model_type]),
            per_token=self.size("num_experts_per_tok", 1),
            intermediate_size=width,
            shared_intermediate_size=width * (self.size("n_shared_experts", None) or 0),
        )
        return {"experts": experts, "moe_layers": layers - dense}


_TIED_BY_DEFAULT = {"gemma2": True, "gemma3_text": True, "gpt2": True, "opt": True}

MODEL_TYPES = (
    "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3", "gpt2", "opt",
    "deepseek_v2", "gpt_oss",
)  # fmt: skip
"""The architectures whose parameters are counted exactly."""
