"""Arithmetic: table cells and worked examples, by the article's own formulas and with the named models' real shapes."""

from __future__ import annotations

from collections.abc import Callable

from nooom.benchmarks.claim_checks.evidence import Evidence, peak
from nooom.benchmarks.claim_checks.shapes import of_that_size, real, stated, tables
from nooom.benchmarks.claim_checks.words import (
    CLOSE,
    HOLDS,
    UNIT_MIX,
    WRONG_SHAPE,
    Finding,
    fitting,
    gb,
    gib,
    judged,
    yes,
)
from nooom.formulas import article, gpus
from nooom.formulas.claims import SIZES, Claim
from nooom.formulas.constants import value
from nooom.formulas.shape import ModelShape

COMFORTABLE = 0.9
"""Share of a GPU that may be filled with room left for the system; vLLM's own default."""


def width(claim: Claim, _: Evidence) -> Finding:
    """Bytes of a value: the formulas' constant and the bits that the precision has."""
    told = claim.parameters
    figures = [*(article.precision_bytes(name) for name in told["precisions"]), told["bits"] / 8]
    word, found = judged(claim, figures)
    why = f"{told['bits']} bits are {told['bits'] / 8:g} byte{'' if told['bits'] == 8 else 's'}."
    return Finding(word=word, found=found, why=why, evidence=("article.precision_bytes",))


def parameters(claim: Claim, _: Evidence) -> Finding:
    """Weights of a named model, or of a round number of parameters."""
    told = claim.parameters
    count = real(told["model"]).parameters if "model" in told else told["parameters"]
    size = article.parameter_bytes(count, told["precision"])
    word, found = judged(claim, size / SIZES[claim.unit or ""])
    each = article.precision_bytes(told["precision"])
    named = f"{told['model']} has {count / 1e9:.2f} billion parameters: " if "model" in told else ""
    return Finding(
        word=word,
        found=found,
        evidence=("article.parameter_bytes",),
        why=f"{named}{count / 1e9:.4g} x 10^9 x {each:g} bytes are {gb(size)} of 10^9 bytes.",
    )


def simplification(claim: Claim, _: Evidence) -> Finding:
    """Two formulas for the weights in bf16, one of which divides by 1024^3."""
    word, found = judged(claim, article.parameter_bytes(10**9) / SIZES["GiB"])
    return Finding(
        word=word,
        found=found,
        evidence=("article.parameter_bytes", "article.simplified_parameter_bytes"),
        why="10^9 parameters of 2 bytes are 1.86 GiB: 2P is exact for GB of 10^9 bytes, and 7 % too many for those of "
        "1024^3 that the formula beside it makes.",
    )


def optimizer(claim: Claim, _: Evidence) -> Finding:
    """Optimizer states by the article's formula."""
    told = claim.parameters
    states = article.optimizer_bytes(told["parameters"], told["optimizer"]) or 0
    word, found = judged(claim, states / SIZES[claim.unit or ""])
    return Finding(
        word=word,
        found=found,
        evidence=("article.optimizer_bytes",),
        why=f"It follows from 12 bytes a parameter: {gb(states)}. Whether there are 12 is another claim.",
    )


def static(claim: Claim, _: Evidence) -> Finding:
    """So many bytes a parameter, times the parameters."""
    told = claim.parameters
    each = value(told["constant"])
    word, found = judged(claim, each * told["parameters"] / SIZES[claim.unit or ""])
    return Finding(
        word=word,
        found=found,
        evidence=(f"constant {told['constant']}",),
        why=f"It follows: {each:g} bytes x {told['parameters'] / 1e9:g} x 10^9 parameters are "
        f"{gb(each * told['parameters'])}.",
    )


# --- KV cache and activations from a shape -------------------------------------------------------------------------

_FORMULAS: dict[str, Callable[[ModelShape, int, int], int]] = {
    "kv_cache": article.kv_cache_bytes,
    "checkpointed": article.checkpointed_activation_bytes,
    "megatron": article.megatron_activation_bytes,
}


def formula(name: str) -> Callable[[ModelShape, int, int], int]:
    """One of the article's formulas that takes a shape, a batch and a length, in bf16."""
    return _FORMULAS[name]


def _really(of: str, shape: ModelShape, batch: int, seq: int) -> int:
    """The cache as the model keeps it; activations by the article's formula, with the model's own sizes."""
    return shape.kv_bytes_per_token() * batch * seq if of == "kv_cache" else formula(of)(shape, batch, seq)


def from_shape(claim: Claim, _: Evidence) -> Finding:
    """A worked example: first with the sizes it states, then with those of the model it names, or of any that fits."""
    told = claim.parameters
    of, layers, hidden, batch, seq = (told[key] for key in ("of", "layers", "hidden", "batch", "seq"))
    size = formula(of)(stated(layers, hidden), batch, seq)
    word, found = judged(claim, size / SIZES[claim.unit or ""])
    evidence = (f"article.{formula(of).__name__}",)
    why = f"With L={layers} and h={hidden} the formula gives {gib(size)}."
    shapes = {told["model"]: real(told["model"])} if "model" in told else of_that_size(layers, hidden)
    sizes = {name: _really(of, shape, batch, seq) for name, shape in shapes.items()}
    if word != HOLDS or not sizes:
        return Finding(word=word, found=found, why=why, evidence=evidence)
    name, nearest = min(sizes.items(), key=lambda item: abs(item[1] - size))
    shape = shapes[name]
    described = (
        f"{name} has L={shape.num_layers}, h={shape.hidden_size} and keys and values for {shape.num_kv_heads} of "
        f"{shape.num_heads} heads: {gib(nearest)}."
    )
    word, _found = judged(claim, nearest / SIZES[claim.unit or ""])
    others = {gib(other) for label, other in sizes.items() if label != name and other != nearest}
    if word == HOLDS and others:
        described += f" Other models of that size: {', '.join(sorted(others))}."
    return Finding(
        word=word if word == HOLDS else WRONG_SHAPE,
        found=nearest / SIZES[claim.unit or ""],
        why=f"{why} {described}",
        evidence=(*evidence, f"zoo: {name}"),
    )


def total(claim: Claim, evidence: Evidence) -> Finding:
    """Weights and one more part: in one unit, and as the article adds them, GB to GiB."""
    told = claim.parameters
    of, batch, seq = (told[key] for key in ("of", "batch", "seq"))
    weights = article.simplified_parameter_bytes(told["parameters"])
    part = formula(of)(stated(told["layers"], told["hidden"]), batch, seq)
    claimed = claim.claimed
    assert isinstance(claimed, float)
    in_gb, in_gib = (weights + part) / SIZES["GB"], (weights + part) / SIZES["GiB"]
    mixed = weights / SIZES["GB"] + part / SIZES["GiB"]
    word, found = judged(claim, in_gb)
    evidence_ids: tuple[str, ...] = ("article.simplified_parameter_bytes", f"article.{formula(of).__name__}")
    if abs(mixed - claimed) <= claim.rounding and min(abs(x - claimed) for x in (in_gb, in_gib)) > claim.rounding:
        word = UNIT_MIX
        why = (
            f"{weights / 1e9:g} GB of 10^9 bytes and {gib(part)} are {in_gb:.1f} GB or {in_gib:.1f} GiB; "
            f"{mixed:.0f} adds one unit to the other."
        )
    else:
        why = (
            f"{weights / 1e9:g} GB and {gib(part)} by the article's own formula with L={told['layers']} and "
            f"h={told['hidden']} are {in_gb:.1f} GB ({mixed:.0f} with the units mixed)."
        )
    if "model" in told:
        shape = real(told["model"])
        own = article.parameter_bytes(shape.parameters) + _really(of, shape, batch, seq)
        why += f" With {told['model']}'s own shape it is {gb(own)}."
        evidence_ids += (f"zoo: {told['model']}",)
    return Finding(word=word, found=found, why=why, evidence=evidence_ids)


def comfortable(claim: Claim, evidence: Evidence) -> Finding:
    """Whether a total, and what was measured of such runs, fills no more of a GPU than leaves room for the system."""
    told = claim.parameters
    gpu = gpus.find(told["gpu"])
    part = formula(told["of"])(stated(told["layers"], told["hidden"]), told["batch"], told["seq"])
    needs: dict[str, float] = {"formula": article.simplified_parameter_bytes(told["parameters"]) + part}
    needs |= {name: peak(evidence.record(name)) for name in told.get("records", ())}
    listed = ", ".join(f"{name} {gb(need)}" for name, need in needs.items())
    return Finding(
        word=fitting(needs, COMFORTABLE * gpu.total_bytes, fits=True),
        evidence=tuple(needs),
        why=f"{COMFORTABLE:.0%} of an {gpu.name} are {gb(COMFORTABLE * gpu.total_bytes)}; {listed}.",
    )


# --- what the KV cache holds ---------------------------------------------------------------------------------------


def cache_width(claim: Claim, _: Evidence) -> Finding:
    """How wide keys and values are, as a share of hidden_size."""
    shares = {}
    for name in claim.parameters["models"]:
        shape = real(name)
        shares[name] = shape.kv_values_per_layer / (value("kv_values") * shape.hidden_size)
    word, found = judged(claim, shares.values())
    listed = ", ".join(f"{name.split('/')[-1]} {share:.3f}" for name, share in shares.items())
    return Finding(
        word=word,
        found=found,
        evidence=tuple(f"zoo: {name}" for name in shares),
        why=f"Keys and values are hidden_size wide only where every head has its own; as a share of it: {listed}.",
    )


def grouped_query(claim: Claim, _: Evidence) -> Finding:
    """How many heads share a key and a value."""
    told = claim.parameters["models"]
    shared = {name: real(name).num_heads / real(name).num_kv_heads for name in told}
    listed = ", ".join(f"{name.split('/')[-1]} {times:g}x" for name, times in shared.items())
    return Finding(
        word=yes(min(shared.values()) > 1, 1),
        found=min(shared.values()),
        why=f"By their configs the cache is smaller: {listed}.",
        evidence=tuple(f"zoo: {name}" for name in told),
    )


def window_limits_cache(claim: Claim, _: Evidence) -> Finding:
    """How much less a model with windows keeps of a long sequence."""
    shape, seq = real(claim.parameters["model"]), claim.parameters["seq"]
    kept = sum(min(seq, window or seq) for window in shape.layer_windows) / shape.num_layers
    return Finding(
        word=yes(kept < seq * (1 - CLOSE), kept / seq),
        found=seq / kept,
        evidence=(f"zoo: {claim.parameters['model']}",),
        why=f"{claim.parameters['model']} attends to {kept:,.0f} of {seq:,} tokens; no other needs to be kept.",
    )


# --- quantized weights ---------------------------------------------------------------------------------------------


def int8_ratio(model: str) -> float:
    """Times less than bf16 when the linear layers are int8 and the embedding and the head stay as they are."""
    shape = real(model)
    rest = tables(shape)
    small = article.precision_bytes("int8") * (shape.parameters - rest) + article.precision_bytes("bf16") * rest
    return article.parameter_bytes(shape.parameters) / small
