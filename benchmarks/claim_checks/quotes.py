"""What the article quotes from others, what it says is usual, and what checkpointing costs and saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nooom.benchmarks.claim_checks.evidence import Evidence, MissingError, held, peak
from nooom.benchmarks.claim_checks.shapes import real, stated
from nooom.benchmarks.claim_checks.words import (
    HOLDS,
    MISQUOTED,
    NOT_TESTED,
    RECIPE,
    VERSION,
    Finding,
    judged,
    off_by,
    span,
    yes,
)
from nooom.formulas import article, gpus
from nooom.formulas.claims import Claim


def untested(claim: Claim, _: Evidence) -> Finding:
    """What nothing here can show, and why."""
    return Finding(word=NOT_TESTED, why=claim.parameters["why"])


def context_takes_memory(claim: Claim, _: Evidence) -> Finding:
    """The CUDA context of one process."""
    gpu = gpus.find(claim.parameters["gpu"])
    if gpu.context_bytes is None:
        raise MissingError(f"Nobody published how much the context takes on an {gpu.name}.")
    return Finding(
        word=yes(gpu.context_bytes > 0, 1),
        found=None,
        evidence=(gpu.context_source,),
        why=f"A process on an {gpu.name} takes {gpu.context_bytes / (1 << 20):,.0f} MiB outside torch's allocator "
        f"({gpu.context_source}).",
    )


def megatron_quote(claim: Claim, evidence: Evidence) -> Finding:
    """The article's formula over the paper's."""
    paper, shape, seq = evidence.facts["megatron"], stated(32, 4096), 2048
    scores = paper["attention_bytes"] * shape.num_heads * seq
    written = seq * (paper["linear_bytes"] * shape.hidden_size + scores) * shape.num_layers
    word, found = judged(claim, article.megatron_activation_bytes(shape, 1, seq) / written)
    return Finding(
        word=word if word == HOLDS else MISQUOTED,
        found=found,
        evidence=("article.megatron_activation_bytes", paper["source"]),
        why=f"The paper's {paper['linear_bytes']} and {paper['attention_bytes']} are bytes in 16 bits already; times "
        f"precision_bytes it is {found:.2f} times as much.",
    )


# --- verl ----------------------------------------------------------------------------------------------------------


def _verl_row(claim: Claim, evidence: Evidence) -> Mapping[str, Any]:
    for row in evidence.facts["verl"]["rows"]:
        if row["model"] == claim.parameters["model"]:
            found: Mapping[str, Any] = row
            return found
    raise MissingError(f"verl's table has no row of {claim.parameters['model']}.")


def verl_quote(claim: Claim, evidence: Evidence) -> Finding:
    """The row as the article prints it beside verl's own."""
    verl, row, told = evidence.facts["verl"], _verl_row(claim, evidence), claim.parameters
    differs = [
        f"{what} is {real_value}, not {quoted}"
        for what, real_value, quoted in (
            ("the method", verl["method"], told["method"]),
            ("the number of GPUs", row["gpus"], told["gpus"]),
            ("the batch", row["batch"], claim.claimed),
        )
        if real_value != quoted
    ]
    why = (
        f"In verl's row of {row['model']} {'; '.join(differs)}."
        if differs
        else "So verl's page has it; a batch is prompts a step, with 5 completions each of at most 512 + 1024 tokens."
    )
    return Finding(word=MISQUOTED if differs else HOLDS, why=why, found=float(row["batch"]), evidence=(verl["source"],))


def verl_maximum(claim: Claim, evidence: Evidence) -> Finding:
    """The largest batch that ran, by the search marks in verl's scripts."""
    verl, row = evidence.facts["verl"], _verl_row(claim, evidence)
    word, found = judged(claim, float(row["ran_per_gpu"] * row["gpus"]))
    return Finding(
        word=word,
        found=found,
        evidence=(verl["source"],),
        why=f"The script's search marks say that {row['ran_per_gpu']} prompts a GPU ran and "
        f"{row['out_of_memory_per_gpu']} ran out of memory; {row['batch']} is what the script was left at.",
    )


# --- checkpointing -------------------------------------------------------------------------------------------------


def checkpointing_default(_: Claim, evidence: Evidence) -> Finding:
    """Which frameworks have it on where a user says nothing."""
    rows = evidence.recorded("defaults")["rows"]
    on = [row["framework"] for row in rows if row["on"]]
    off = [row["framework"] for row in rows if not row["on"]]
    share = len(on) / len(rows) if rows else 0.0
    if set(on) & set(off):
        word = VERSION
    elif on and off:
        word = RECIPE
    else:
        word = HOLDS if on else off_by(1, share)
    return Finding(
        word=word,
        found=share,
        evidence=tuple(row["where"] for row in rows),
        why=f"On by default in {', '.join(on) or 'none'}; off in {', '.join(off) or 'none'}.",
    )


def recompute(claim: Claim, evidence: Evidence) -> Finding:
    """Operations that recomputing adds to a forward and a backward pass."""
    recorded = evidence.recorded("flops")
    extra: dict[tuple[str, str], list[float]] = {}
    for row in recorded["rows"]:
        extra.setdefault((row["workload"], row["checkpointing"]), []).append(100 * row["extra"])
    word, found = judged(claim, [figure for figures in extra.values() for figure in figures])
    names = {"sft": "full fine-tuning", "lora": "LoRA"}
    listed = ", ".join(f"{names[workload]} {span(figures, 0)} % ({way})" for (workload, way), figures in extra.items())
    torch = recorded.get("fingerprint", {}).get("torch", "unknown")
    return Finding(
        word=word,
        found=found,
        evidence=("results/claims/flops.json",),
        why=f"Counted under torch {torch}: {listed} more. A frozen weight has no gradient to compute, so LoRA's "
        "backward pass is shorter and the recomputed forward pass weighs more; what is not reentrant stops before a "
        "layer's last product where no gradient needs it. Time was not measured.",
    )


def checkpointing_saves(claim: Claim, evidence: Evidence) -> Finding:
    """Activations without over with: by the article's two formulas, in a published pair, and in the demo."""
    told, shape = claim.parameters, stated(32, 4096)
    formulas = article.megatron_activation_bytes(shape, 8, 2048) / article.checkpointed_activation_bytes(shape, 8, 2048)
    ratios = {"the article's formulas (7B, 2048 tokens)": formulas}
    plain, saved = (evidence.printed(told[key]) for key in ("without", "with"))
    # bf16 weights, gradients and AdamW's two states: 8 bytes a parameter that checkpointing does not touch.
    fixed = 8 * real(plain["published_model"]).parameters
    label = f"torchtune, {plain['published_model'].split('/')[-1]} ({told['without']}, {told['with']})"
    ratios[label] = (plain.size_bytes()[0] - fixed) / (saved.size_bytes()[0] - fixed)
    for workload in ("lora", "grpo"):
        without, with_it = (evidence.demo(workload, checkpointing=on) for on in (False, True))
        ratios[f"demo, {workload}"] = (peak(without) - held(without)) / (peak(with_it) - held(with_it))
    word, found = judged(claim, ratios.values())
    listed = ", ".join(f"{label} {ratio:.1f}x" for label, ratio in ratios.items())
    return Finding(
        word=word,
        found=found,
        why=f"{listed}. Short sequences and large vocabularies leave little to save.",
        evidence=("article.megatron_activation_bytes", told["without"], told["with"], "results/demo"),
    )
