"""Quantized weights: int8 counted from real shapes, NF4 as it was measured."""

from __future__ import annotations

from nooom.benchmarks.claim_checks.evidence import Evidence, held
from nooom.benchmarks.claim_checks.numbers import int8_ratio
from nooom.benchmarks.claim_checks.shapes import adapter, real
from nooom.benchmarks.claim_checks.words import Finding, judged, span
from nooom.formulas import article
from nooom.formulas.claims import Claim

_ADAPTER_BYTES = 12
"""An fp32 adapter's weight and AdamW's two states, which are left when a run has ended."""


def _nf4_bytes(evidence: Evidence, name: str) -> tuple[str, float]:
    """A model, and what each of its parameters takes in NF4: what a run held in the end, without its adapter."""
    record = evidence.record(name)
    model, rank = record.case["model"], record.case["lora_rank"]
    trained = adapter(real(model), rank, tuple(record.case["lora_targets"].split(",")))
    return model, (held(record) - _ADAPTER_BYTES * trained) / real(model).parameters


def nf4_bytes_per_parameter(claim: Claim, evidence: Evidence) -> Finding:
    """Bytes a parameter, all of the model counted."""
    figures = dict(_nf4_bytes(evidence, name) for name in claim.parameters["records"])
    word, found = judged(claim, figures.values())
    listed = ", ".join(f"{model.split('/')[-1]} {figure:.3f}" for model, figure in figures.items())
    return Finding(
        word=word,
        found=found,
        evidence=tuple(claim.parameters["records"]),
        why=f"4 bits are 0.5 bytes, but scales come with them and the embedding and the head stay in bf16. Measured in "
        f"NF4, in bytes a parameter: {listed} ({', '.join(claim.parameters['records'])}).",
    )


def quantization(claim: Claim, evidence: Evidence) -> Finding:
    """Times less than bf16."""
    told = claim.parameters
    eight = {model: int8_ratio(model) for model in told["int8_models"]}
    four = {
        model: article.precision_bytes("bf16") / each
        for model, each in (_nf4_bytes(evidence, name) for name in told["nf4_records"])
    }
    word, found = judged(claim, [*eight.values(), *four.values()])
    parts = []
    if eight:
        models = " and ".join(model.split("/")[-1] for model in eight)
        parts.append(f"int8 linear layers make {models} {span(eight.values())}x smaller")
    if four:
        parts.append(
            f"NF4 was measured {span(four.values())}x smaller ({', '.join(told['nf4_records'])}, adapters taken off)"
        )
    return Finding(
        word=word,
        found=found,
        evidence=(*(f"zoo: {model}" for model in eight), *told["nf4_records"]),
        why=f"{'; '.join(parts)}: the embedding and the output projection stay in bf16.",
    )
