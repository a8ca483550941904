"""Case: the frozen description of one job, the noun that everything shares.

Each field is one case flag of the command.  Its :class:`Flag` says which workloads it applies to, what values it
takes and what stands in when it is not given; the command line, the suites and the JSON records are all made from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nooom.formulas.errors import UsageError, nearest

CASE_VERSION = 1
"""Part of every case's identity: raised when what a workload runs for the same flags changes."""

WORKLOADS = ("inference", "sft", "lora", "grpo")
TRAINING = ("sft", "lora", "grpo")

UNBUILT_FLAGS = {
    "compile": "torch.compile is not built yet",
    "torch_compile": "torch.compile is not built yet",
    "fp8": "fp8 is not built yet",
    "packing": "packing is not built yet",
}

_NO_IDENTITY = ("_name_or_path", "transformers_version")
"""Of a model's config: where it came from, not what it is."""


class CaseError(UsageError):
    """A flag, a value or a combination that describes no job."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """What one field of a case may be."""

    kind: type
    workloads: tuple[str, ...] = WORKLOADS
    default: Any = None
    choices: tuple[str, ...] = ()
    unbuilt: tuple[str, ...] = ()
    described: tuple[str, ...] = ()
    """Choices that the formulas know, and that no device runs yet."""
    low: float | None = None
    high: float | None = None
    help: str = ""


def _flag(kind: type, help: str, **rest: Any) -> Any:
    return dataclasses.field(default=None, metadata={"flag": Flag(kind=kind, help=help, **rest)})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One job.  A flag that is not given (None) takes its default; one that does not apply stays None.

    Raises:
        CaseError: a value out of range or unknown, a flag that does not apply to the workload, or a combination
            that describes no job; the message names the flag and what would be right.
    """

    model: str = _flag(str, "zoo name, a directory or file with a config.json, or a hub id when online")
    workload: str = _flag(str, "what is run", choices=WORKLOADS)
    batch: int = _flag(int, "sequences per forward; grpo: completions per step", low=1, high=1_000_000)
    seq: int = _flag(
        int, "training: tokens per sequence; inference, grpo: prompt tokens", default=2048, low=1, high=16_777_216
    )
    new_tokens: int = _flag(
        int, "completion tokens", workloads=("inference", "grpo"), default=0, low=0, high=16_777_216
    )
    padding: float = _flag(float, "share of every row but the first that is padding", default=0.0, low=0.0, high=0.9)
    dtype: str = _flag(str, "dtype of the weights", choices=("bf16", "fp16", "fp32"), unbuilt=("fp8",), default="bf16")
    autocast: str = _flag(
        str,
        "mixed precision",
        workloads=TRAINING,
        choices=("none", "bf16", "fp16"),
        unbuilt=("fp8",),
        default="none",
    )
    attention: str = _flag(
        str,
        "attention implementation; sdpa-* pin one SDPA kernel",
        choices=(
            "sdpa",
            "eager",
            "flash_attention_2",
            "sdpa-flash",
            "sdpa-efficient",
            "sdpa-cudnn",
            "sdpa-math",
        ),
        unbuilt=("flash_attention_3", "flex_attention"),
        default="sdpa",
    )
    optimizer: str = _flag(
        str,
        "optimizer; adamw is the HF Trainer's default (fused)",
        workloads=TRAINING,
        choices=("adamw", "adamw-fused", "adamw-foreach", "sgd", "sgd-momentum", "adafactor", "adamw-8bit"),
        described=("adamw-8bit",),
        default="adamw",
    )
    checkpointing: bool = _flag(
        bool,
        "non-reentrant gradient checkpointing (off as in the HF Trainer; TRL's configs turn it on)",
        workloads=TRAINING,
        default=False,
    )
    grad_accumulation: int = _flag(
        int, "micro-batches per optimizer step", workloads=("sft", "lora"), default=1, low=1, high=4096
    )
    lora_rank: int = _flag(int, "rank", workloads=("lora", "grpo"), default=16, low=1, high=65_536)
    lora_targets: str = _flag(
        str, "all-linear, or module names with commas", workloads=("lora", "grpo"), default="all-linear"
    )
    lora_dropout: float = _flag(
        float, "dropout before the adapter", workloads=("lora", "grpo"), default=0.0, low=0.0, high=1.0
    )
    lora_dtype: str = _flag(
        str, "dtype of the adapter", workloads=("lora", "grpo"), choices=("fp32", "bf16"), default="fp32"
    )
    full: bool = _flag(bool, "train every weight instead of an adapter", workloads=("grpo",), default=False)
    group_size: int = _flag(int, "completions per prompt", workloads=("grpo",), default=8, low=1, high=65_536)
    micro_batch: int = _flag(
        int, "completions per forward/backward of the update", workloads=("grpo",), low=1, high=1_000_000
    )
    logprob_micro_batch: int = _flag(
        int, "completions per forward of the log-probabilities", workloads=("grpo",), low=1, high=1_000_000
    )
    reference: str = _flag(
        str, "where the KL's reference comes from", workloads=("grpo",), choices=("none", "shared", "separate")
    )
    logits: str = _flag(
        str, "logits kept by the prefill", workloads=("inference",), choices=("all", "last"), default="last"
    )
    decoding: str = _flag(
        str, "how tokens are picked", workloads=("inference",), choices=("greedy", "sampled"), default="greedy"
    )
    quantization: str = _flag(
        str, "quantized base weights", choices=("none", "int8", "nf4"), described=("int8", "nf4"), default="none"
    )
    steps: int = _flag(int, "measured repetitions after one warm-up", default=2, low=1, high=1000)
    allocator: str = _flag(str, "what would stand in PYTORCH_ALLOC_CONF", default="")
    pretrained: bool = _flag(bool, "load real weights with from_pretrained", default=False)

    def __post_init__(self) -> None:
        for name in ("model", "workload"):
            if getattr(self, name) is None:
                raise CaseError(f"{_option(name)} is required")
        self._set("workload", _checked("workload", FLAGS["workload"], self.workload))
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if not self._applies(name, flag):
                if value is not None:
                    raise CaseError(
                        f"{_option(name)} does not apply to {self._described()}; "
                        f"it applies to {', '.join(flag.workloads)}"
                    )
            elif value is None:
                self._set(name, self._default(name, flag))
            else:
                self._set(name, _checked(name, flag, value))
        self._check_together()

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Case:
        """A case from JSON or TOML keys; null means not given.  Raises CaseError for an unknown key."""
        for key in given:
            if key not in FLAGS:
                reason = UNBUILT_FLAGS.get(str(key).replace("-", "_"))
                raise CaseError(reason or f"unknown case key {str(key)!r}; {nearest(str(key), FLAGS)}")
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Every flag, resolved; null where a flag does not apply."""
        return {name: getattr(self, name) for name in FLAGS}

    def case_id(self, model_key: str | None = None) -> str:
        """A stable hash of the case's identity: its version and every flag that applies.

        Args:
            model_key: stands for the model instead of its name where the name is a path (a digest of the config),
                so that the same model measured from two folders is the same case.
        """
        identity = {name: value for name, value in self.to_dict().items() if value is not None}
        identity["model"] = model_key or self.model
        identity["case_version"] = CASE_VERSION
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @property
    def trains(self) -> bool:
        return self.workload in TRAINING

    @property
    def adapter(self) -> bool:
        """Whether a LoRA adapter is trained instead of the weights."""
        return self.workload == "lora" or (self.workload == "grpo" and not self.full)

    @property
    def padded_tokens(self) -> int:
        """Padding in every row but the first, in tokens."""
        return round(self.padding * self.seq)

    def label(self) -> str:
        """One short line that tells this case from its neighbours: the flags that differ from their defaults."""
        words = [f"{self.model.rstrip('/').rsplit('/', 1)[-1]} {self.workload} {self.batch}x{self.seq}"]
        if self.new_tokens:
            words[0] += f"+{self.new_tokens}"
        for name, flag in FLAGS.items():
            value = getattr(self, name)
            if name in ("model", "workload", "batch", "seq", "new_tokens", "steps") or value is None:
                continue
            if value != self._default(name, flag):
                words.append(_short(name, value))
        return " ".join(words)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _described(self) -> str:
        return "grpo --full" if self.workload == "grpo" and self.full else self.workload

    def _applies(self, name: str, flag: Flag) -> bool:
        if name.startswith("lora_") and self.workload == "grpo" and self.full:
            return False
        return self.workload in flag.workloads

    def _default(self, name: str, flag: Flag) -> Any:
        grpo = self.workload == "grpo"
        if name == "batch":
            return (self.group_size or FLAGS["group_size"].default) if grpo else 1
        if name == "new_tokens" and grpo:
            return 256
        if name == "micro_batch":
            return self.batch
        if name == "logprob_micro_batch":
            return self.micro_batch
        if name == "reference":
            return "separate" if self.full else "shared"
        return flag.default

    def _check_together(self) -> None:
        if self.padding and self.batch == 1:
            raise CaseError("--padding needs a --batch of at least 2: the first row is never padded")
        if self.quantization != "none" and (self.workload == "sft" or self.full):
            raise CaseError(f"--quantization {self.quantization} leaves no weights to train; it goes with an adapter")
        if self.workload != "grpo":
            return
        if self.new_tokens < 1:
            raise CaseError("--new-tokens must be at least 1 for grpo")
        if self.batch % self.group_size:
            lower = max(self.batch // self.group_size, 1) * self.group_size
            raise CaseError(
                f"--batch {self.batch} is not a multiple of --group-size {self.group_size}; the nearest is {lower}"
            )
        for name in ("micro_batch", "logprob_micro_batch"):
            if getattr(self, name) > self.batch:
                raise CaseError(f"{_option(name)} {getattr(self, name)} is larger than --batch {self.batch}")
        if self.full and self.reference == "shared":
            raise CaseError("--reference shared needs an adapter to switch off; with --full use separate or none")


def check_built(case: Case) -> None:
    """Raises CaseError for a value that can be described and predicted, but that no device runs yet."""
    for name, flag in FLAGS.items():
        if (value := getattr(case, name)) in flag.described:
            built = [choice for choice in flag.choices if choice not in flag.described]
            raise CaseError(f"{_option(name)} {value} is not built yet; built: {', '.join(built)}")


FLAGS: dict[str, Flag] = {field.name: field.metadata["flag"] for field in dataclasses.fields(Case)}
"""Every case flag by its field name, in the order in which they are shown."""


def config_key(config: Mapping[str, Any]) -> str:
    """What stands for a model that lies in a folder: the digest of its config, wherever the folder is."""
    identity = {key: value for key, value in config.items() if key not in _NO_IDENTITY}
    return "config:" + hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _short(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return f"{name.replace('_', '-')}={value}"


def _checked(name: str, flag: Flag, value: Any) -> Any:
    """The value in its field's own type, or a CaseError that says what would be right."""
    option = _option(name)
    if flag.kind is bool:
        if not isinstance(value, bool):
            raise CaseError(f"{option} must be true or false, not {value!r}")
        return value
    if flag.kind is str:
        if not isinstance(value, str):
            raise CaseError(f"{option} must be text, not {value!r}")
        if value in flag.unbuilt:
            raise CaseError(f"{option} {value} is not built yet; built: {', '.join(flag.choices)}")
        if flag.choices and value not in flag.choices:
            raise CaseError(f"{option} {value!r} is unknown; {nearest(value, flag.choices)}")
        return _checked_text(name, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CaseError(f"{option} must be a number, not {value!r}")
    if isinstance(value, float) and (not math.isfinite(value) or (flag.kind is int and value != int(value))):
        raise CaseError(f"{option} must be {'an integer' if flag.kind is int else 'a finite number'}, not {value!r}")
    if (flag.low is not None and value < flag.low) or (flag.high is not None and value > flag.high):
        raise CaseError(f"{option} must lie between {flag.low:g} and {flag.high:g}, not {_shown(value)}")
    return flag.kind(value)


def _shown(value: float) -> str:
    """A number as a message quotes it; never one that takes minutes to print."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


def _checked_text(name: str, value: str) -> str:
    if name == "model" and (not value.strip() or "\0" in value):
        raise CaseError("--model is empty")
    if name == "lora_targets":
        names = sorted({part.strip() for part in value.split(",")})
        if not all(re.fullmatch(r"[A-Za-z_][\w.-]*", part) for part in names):
            raise CaseError(f"--lora-targets must be all-linear or module names with commas, not {value!r}")
        return ",".join(names)
    if name == "allocator" and value and not re.fullmatch(r"\w+:[\w.:>\[\],]+(,\w+:[\w.:>\[\],]+)*", value):
        raise CaseError(f"--allocator must read key:value[,key:value...] as in PYTORCH_ALLOC_CONF, not {value!r}")
    return value
