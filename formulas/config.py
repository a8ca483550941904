"""Hugging Face configs -> ModelShape: read from plain JSON, every value checked before anything is computed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.shape import Experts, Latent, ModelShape

_BOUNDS = {
    "hidden_size": 1 << 20,
    "num_hidden_layers": 4096,
    "num_attention_heads": 16_384,
    "num_key_value_heads": 16_384,
    "head_dim": 65_536,
    "intermediate_size": 1 << 24,
    "vocab_size": 1 << 24,
    "word_embed_proj_dim": 1 << 20,
    "num_experts": 65_536,
}
_MAX_PARAMETERS = 10**13
_REQUIRED = object()


class ShapeError(UsageError):
    """A config that describes no model that can be counted; names the file, the key and what would be right."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What transformers' code of one model type fixes, and which keys of a config it heeds."""

    tied: bool = False
    """Whether the output projection is the embedding where the config doesn't say."""
    learned_positions: bool = False
    multi_head: bool = False
    """Every head has its own K and V, and none but hidden_size / heads wide."""
    norms_per_layer: int = 2
    values_per_norm: int = 1
    qk_norm: bool = False
    """Queries and keys are normed, all heads with the same weights."""
    qk_norm_over_heads: bool = False
    """They are normed, and each head has weights of its own."""
    qkv_bias: bool = False
    """q, k and v have biases whatever ``attention_bias`` says."""
    bias_by_default: bool | None = None
    """What ``attention_bias`` is where the config doesn't say; None: the key is not heeded."""
    bias_on_output: bool = True
    """``attention_bias`` is about the output projection too."""
    heeds_mlp_bias: bool = False
    sinks: bool = False
    """A learnt attention sink for every head."""
    head_dim_is_free: bool = False
    """Without ``head_dim`` transformers takes a fixed width, not hidden_size / heads: the config has to say it."""
    full_heads_by_default: bool = False
    """Without ``num_key_value_heads`` every head has its own K and V; elsewhere transformers takes a fixed number."""
    experts_key: str | None = None
    expert_width_key: str = "moe_intermediate_size"
    expert_bias: bool = False
    window_by_default: int | None = None
    window_is_opt_in: bool = False
    """Qwen's configs write a window and a switch, ``use_sliding_window``, that is off by default."""
    heeds_layer_types: bool = False
    full_every: int | None = None
    """Every n-th layer sees everything, the others only the window; None: all layers are alike."""
    other_names: Mapping[str, str] | None = None


_GPT2_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
_LLAMA = Architecture(bias_by_default=False, heeds_mlp_bias=True, full_heads_by_default=True)
_ARCHITECTURES = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Architecture(
        tied=True, bias_by_default=False, heeds_mlp_bias=True, window_is_opt_in=True, heeds_layer_types=True
    ),
    "mistral": Architecture(window_by_default=4096),
    "mixtral": Architecture(experts_key="num_local_experts", expert_width_key="intermediate_size"),
    "qwen2": Architecture(qkv_bias=True, window_by_default=4096, window_is_opt_in=True, heeds_layer_types=True),
    "qwen2_moe": Architecture(
        experts_key="num_experts", window_by_default=4096, window_is_opt_in=True, heeds_layer_types=True
    ),
    "qwen3": Architecture(
        bias_by_default=False, qk_norm=True, head_dim_is_free=True, window_by_default=4096, window_is_opt_in=True,
        heeds_layer_types=True,
    ),
    "qwen3_moe": Architecture(
        bias_by_default=False, qk_norm=True, experts_key="num_experts", window_by_default=4096, window_is_opt_in=True
    ),
    "gemma": Architecture(tied=True, bias_by_default=False, head_dim_is_free=True),
    "gemma2": Architecture(
        tied=True, bias_by_default=False, norms_per_layer=4, head_dim_is_free=True, window_by_default=4096,
        heeds_layer_types=True, full_every=2,
    ),
    "gemma3_text": Architecture(
        tied=True, bias_by_default=False, norms_per_layer=4, qk_norm=True, head_dim_is_free=True,
        window_by_default=4096, heeds_layer_types=True, full_every=6,
    ),
    "phi": Architecture(norms_per_layer=1, values_per_norm=2, full_heads_by_default=True),
    "phi3": Architecture(full_heads_by_default=True),
    "olmo": Architecture(values_per_norm=0, bias_by_default=False, full_heads_by_default=True),
    "olmo2": Architecture(bias_by_default=False, qk_norm_over_heads=True, full_heads_by_default=True),
    "olmo3": Architecture(
        bias_by_default=False, qk_norm_over_heads=True, full_heads_by_default=True, window_by_default=4096,
        heeds_layer_types=True, full_every=4,
    ),
    "olmoe": Architecture(
        bias_by_default=False, qk_norm_over_heads=True, full_heads_by_default=True, experts_key="num_experts",
        expert_width_key="intermediate_size",
    ),
    "cohere": Architecture(tied=True, norms_per_layer=1, bias_by_default=False, full_heads_by_default=True),
    "glm": Architecture(bias_by_default=True, bias_on_output=False, head_dim_is_free=True),
    "glm4": Architecture(bias_by_default=True, bias_on_output=False, norms_per_layer=4, head_dim_is_free=True),
    "stablelm": Architecture(values_per_norm=2),
    "starcoder2": Architecture(tied=True, values_per_norm=2),
    "gpt_neox": Architecture(multi_head=True, values_per_norm=2, bias_by_default=True),
    "gpt2": Architecture(
        tied=True, learned_positions=True, multi_head=True, values_per_norm=2, other_names=_GPT2_NAMES
    ),
    "gpt_bigcode": Architecture(tied=True, learned_positions=True, values_per_norm=2, other_names=_GPT2_NAMES),
    "opt": Architecture(
        tied=True, learned_positions=True, multi_head=True, values_per_norm=2,
        other_names={"intermediate_size": "ffn_dim"},
    ),
    "deepseek_v2": Architecture(
        bias_by_default=False, heeds_mlp_bias=True, full_heads_by_default=True, experts_key="n_routed_experts"
    ),
    "deepseek_v3": Architecture(
        bias_by_default=False, full_heads_by_default=True, experts_key="n_routed_experts"
    ),
    "gpt_oss": Architecture(
        bias_by_default=True, sinks=True, head_dim_is_free=True, experts_key="num_local_experts",
        expert_width_key="intermediate_size", expert_bias=True, window_by_default=128,
        heeds_layer_types=True, full_every=2,
    ),
}  # fmt: skip

_LATENT = ("deepseek_v2", "deepseek_v3")

MODEL_TYPES = tuple(_ARCHITECTURES)
"""The architectures whose parameters are counted exactly."""


def read_shape(config: Mapping[str, Any], where: str) -> ModelShape:
    """See :meth:`nooom.formulas.shape.ModelShape.from_config`."""
    wrapped = isinstance(config.get("text_config"), Mapping)
    return _Reader(language_part(config), f"{where}: text_config" if wrapped else where).shape()


def language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A multimodal config's ``text_config``, which is all that is counted and built; any other config itself."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    # Whether the embeddings are tied is said outside where transformers writes it.
    outside = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**outside, **inner}


class _Reader:
    """Reads one config, checking every value before anything is computed from it."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config, self.where = config, where
        self.model_type = self._model_type()
        self.architecture = _ARCHITECTURES[self.model_type]
        self.names = self.architecture.other_names or {}

    def shape(self) -> ModelShape:
        heads, layers = self.size("num_attention_heads"), self.size("num_hidden_layers")
        hidden, latent = self.size("hidden_size"), self._latent()
        kv_heads = self._kv_heads(heads)
        head_dim = latent.nope_head_dim + latent.rope_head_dim if latent else self._head_dim(hidden, heads)
        four_times = self.model_type in ("gpt2", "gpt_bigcode")
        shape = ModelShape(
            model_type=self.model_type,
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=self.size("intermediate_size", 4 * hidden if four_times else _REQUIRED),
            vocab_size=self.size("vocab_size", low=2),
            tied_embeddings=self.flag("tie_word_embeddings", self.architecture.tied),
            max_position=self.size(
                "max_position_embeddings", _REQUIRED if self.architecture.learned_positions else None
            ),
            learned_positions=self.architecture.learned_positions,
            sliding_window=self._window(),
            layer_windows=self._windows(layers),
            latent=latent,
            attention_sinks=self.architecture.sinks,
            **{**self._by_the_table(layers), **self._by_its_own_keys()},
            qk_norm_values=self._qk_norm_values(heads, kv_heads, head_dim),
        )
        if shape.parameters > _MAX_PARAMETERS:
            raise self.error(f"{shape.parameters:,} parameters; at most {_MAX_PARAMETERS:,}: check hidden_size")
        return shape

    def size(self, key: str, default: Any = _REQUIRED, low: int = 1) -> Any:
        """An integer within its bounds; the default, where there is one, for a key that is missing or null."""
        written = self.names.get(key, key)
        value = self.config.get(written)
        if value is None:
            written, value = key, self.config.get(key)
        if value is None:
            if default is _REQUIRED:
                raise self.error(f"{self.names.get(key, key)} is missing")
            return default
        high = _BOUNDS.get("num_experts" if key == self.architecture.experts_key else key, 1 << 31)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{written} is {_shown(value)}; an integer between {low} and {high} is right")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(f"{key} is {_shown(value)}; true or false is right")
        return default if value is None else value

    def error(self, what: str) -> ShapeError:
        return ShapeError(f"{self.where}: {what}")

    def _model_type(self) -> str:
        value = self.config.get("model_type")
        if value is None:
            raise self.error("model_type is missing")
        if not isinstance(value, str) or value not in _ARCHITECTURES:
            raise self.error(f"model_type {_shown(value)} is unknown; {nearest(str(value)[:60], MODEL_TYPES)}")
        return value

    def _kv_heads(self, heads: int) -> int:
        if self.model_type == "gpt_bigcode":
            return 1 if self.flag("multi_query", True) else heads
        every = self.architecture.multi_head or self.architecture.full_heads_by_default
        written = "num_key_value_heads" in self.config  # null means as many as there are heads
        kv_heads: int = self.size("num_key_value_heads", heads if written or every else _REQUIRED)
        if heads % kv_heads:
            raise self.error(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
        if self.architecture.multi_head and kv_heads != heads:
            raise self.error(f"num_key_value_heads is {kv_heads}; {self.model_type} has one for each of {heads} heads")
        return kv_heads

    def _head_dim(self, hidden: int, heads: int) -> int:
        free = not self.architecture.multi_head and self.model_type not in ("gpt_bigcode", "stablelm")
        if free and (given := self.size("head_dim", _REQUIRED if self.architecture.head_dim_is_free else None)):
            return int(given)
        if hidden % heads:
            raise self.error(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        return hidden // heads

    def _qk_norm_values(self, heads: int, kv_heads: int, head_dim: int) -> int:
        """Values of one layer's two norms of queries and keys."""
        over_heads = (heads + kv_heads) * head_dim
        if self.architecture.qk_norm_over_heads:
            return over_heads
        if self.model_type == "phi":  # with biases
            return 4 * head_dim if self.flag("qk_layernorm", False) else 0
        switch = {"cohere": "use_qk_norm", "stablelm": "qk_layernorm"}.get(self.model_type)
        if switch is not None:
            return over_heads if self.flag(switch, False) else 0
        return 2 * head_dim if self.architecture.qk_norm else 0

    def _window(self) -> int | None:
        if self.architecture.window_is_opt_in and not self.flag("use_sliding_window", False):
            return None
        # Null is no window; only a missing key takes what transformers would.
        default = None if "sliding_window" in self.config else self.architecture.window_by_default
        window: int | None = self.size("sliding_window", default)
        return window

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        window, period = self._window(), self.architecture.full_every
        if self.architecture.heeds_layer_types and (kinds := self.config.get("layer_types")) is not None:
            return self._windows_of(kinds, layers, window)
        if period is not None:
            period = self.size("sliding_window_pattern", period) if self.model_type == "gemma3_text" else period
            return tuple(None if (i + 1) % period == 0 else window for i in range(layers))
        if window is None or not self.architecture.window_is_opt_in:
            return (window,) * layers
        return self._windows_by_switch(layers, window)

    def _windows_by_switch(self, layers: int, window: int) -> tuple[int | None, ...]:
        """Which layers ``use_sliding_window`` is about, where no ``layer_types`` say so."""
        if self.model_type == "smollm3":
            raise self.error("layer_types is missing; use_sliding_window needs it")
        bound = self.size("max_window_layers", 28, low=0)
        if self.model_type == "qwen2_moe":
            return tuple(window if i < bound and i % 2 == 0 else None for i in range(layers))
        first = 0 if self.model_type == "qwen3_moe" else bound
        return tuple(window if i >= first else None for i in range(layers))

    def _windows_of(self, kinds: Any, layers: int, window: int | None) -> tuple[int | None, ...]:
        known = {"full_attention": None, "sliding_attention": window}
        if not isinstance(kinds, (list, tuple)) or len(kinds) != layers:
            raise self.error(f"layer_types is {_shown(kinds)}; a list of num_hidden_layers {layers} names is right")
        for kind in kinds:
            if not isinstance(kind, str) or kind not in known:
                raise self.error(f"layer_types has {_shown(kind)}; {' or '.join(known)} is right")
        return tuple(known[kind] for kind in kinds)

    def _by_the_table(self, layers: int) -> dict[str, Any]:
        """What the architecture and the keys that many of them share say: the whole of most models."""
        default = self.architecture.bias_by_default
        bias = default is not None and self.flag("attention_bias", default)
        return {
            "norms_per_layer": self.architecture.norms_per_layer,
            "values_per_norm": self.architecture.values_per_norm,
            "attention_bias": (bias or self.architecture.qkv_bias, bias and self.architecture.bias_on_output),
            "mlp_bias": self.architecture.heeds_mlp_bias and self.flag("mlp_bias", False),
            **self._experts(layers),
        }

    def _by_its_own_keys(self) -> dict[str, Any]:
        """What differs from the table in an architecture with keys, or with a structure, of its own."""
        match self.model_type:
            case "gpt2" | "gpt_bigcode":
                if self.flag("add_cross_attention", False):
                    raise self.error("add_cross_attention is true; a decoder on its own is right")
                return _two_matrices(bias=True)
            case "opt":
                return self._opt()
            case "phi":
                return _two_matrices(bias=True) | {"head_bias": True}
            case "starcoder2":
                return _two_matrices(bias=self.flag("use_bias", True))
            case "gpt_neox":
                return {"mlp_bias": True, "gated_mlp": False}
            case "qwen2_moe":
                return {"attention_bias": (self.flag("qkv_bias", True), False)}
            case "stablelm":
                return {
                    "attention_bias": (self.flag("use_qkv_bias", False), False),
                    "norms_per_layer": 1 if self.flag("use_parallel_residual", False) else 2,
                }
        return {}

    def _opt(self) -> dict[str, Any]:
        """A config of opt can switch off most of what it has."""
        return _two_matrices(bias=self.flag("enable_bias", True)) | {
            "unused_positions": 2,
            "embedding_size": self.size("word_embed_proj_dim", None),
            "values_per_norm": 2 if self.flag("layer_norm_elementwise_affine", True) else 0,
            "final_norm": self.flag("do_layer_norm_before", True) and not self.flag("_remove_final_layer_norm", False),
        }

    def _latent(self) -> Latent | None:
        if self.model_type not in _LATENT:
            return None
        return Latent(
            kv_rank=self.size("kv_lora_rank"),
            q_rank=self.size("q_lora_rank", None),
            nope_head_dim=self.size("qk_nope_head_dim"),
            rope_head_dim=self.size("qk_rope_head_dim"),
            v_head_dim=self.size("v_head_dim"),
        )

    def _experts(self, layers: int) -> dict[str, Any]:
        key = self.architecture.experts_key
        if key is None:
            return {}
        # transformers knows the number by two names in most architectures.
        count = self.size(key, self.size("num_experts", self.size("num_local_experts", None))) or self.size(key)
        width = self.size(self.architecture.expert_width_key)
        per_token = self.size("num_experts_per_tok")
        if per_token > count:
            raise self.error(f"num_experts_per_tok is {per_token}; at most {key} {count} is right")
        shared = width * self.size("n_shared_experts", low=0) if self.model_type in _LATENT else 0
        if self.model_type == "qwen2_moe":
            shared = self.size("shared_expert_intermediate_size")
        experts = Experts(
            count=count,
            per_token=per_token,
            intermediate_size=width,
            shared_intermediate_size=shared,
            shared_gate=self.model_type == "qwen2_moe",
            bias=self.architecture.expert_bias,
        )
        return {"experts": experts, "moe_layers": self._moe_layers(layers)}

    def _moe_layers(self, layers: int) -> tuple[int, ...]:
        dense_by_default = {"deepseek_v2": 0, "deepseek_v3": 3}.get(self.model_type)
        first = 0 if dense_by_default is None else self.size("first_k_dense_replace", dense_by_default, low=0)
        if self.model_type not in ("qwen2_moe", "qwen3_moe"):
            return tuple(range(min(first, layers), layers))
        step, dense = self.size("decoder_sparse_step", 1), self.config.get("mlp_only_layers") or []
        if not isinstance(dense, (list, tuple)) or not all(type(layer) is int for layer in dense):
            raise self.error(f"mlp_only_layers is {_shown(dense)}; a list of layers is right")
        return tuple(i for i in range(layers) if i not in set(dense) and (i + 1) % step == 0)


def _two_matrices(bias: bool) -> dict[str, Any]:
    """An MLP of two matrices, and biases in it and in the attention or nowhere."""
    return {"attention_bias": (bias, bias), "mlp_bias": bias, "gated_mlp": False}


def _shown(value: Any) -> str:
    """A value as a message quotes it: short, on one line, and never a number that takes minutes to print."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(str(value)[:40])
