"""Fine-tuning: bytes a parameter under ordinary recipes, activations, and formulas beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from nooom.benchmarks.claim_checks.evidence import Evidence, held, name, peak, tokens
from nooom.benchmarks.claim_checks.shapes import ALL_LINEAR, adapter, real
from nooom.benchmarks.claim_checks.words import Finding, fitting, gb, gib, judged, span, yes
from nooom.formulas import article, gpus
from nooom.formulas.case import Case
from nooom.formulas.claims import SIZES, Claim
from nooom.formulas.constants import value
from nooom.formulas.shape import ModelShape

PURE, MASTER, AUTOCAST = "bf16 weights", "bf16 weights and an fp32 master copy", "fp32 weights under autocast"
ADAM = ("weights", "gradients", "moment", "variance", "master")


def recipes() -> dict[str, dict[str, float]]:
    """Bytes a parameter of each part of full fine-tuning, by ordinary recipe; momentum is SGD's one state.

    torch.optim makes a state with ``zeros_like(parameter)``, so it is as wide as the weight: fp32 states take fp32
    weights (autocast) or an fp32 copy of them (DeepSpeed, Megatron).  The latter is the article's recipe, with its
    constants.
    """
    half, whole = article.precision_bytes("bf16"), article.precision_bytes("fp32")
    adam = article.adam_bytes(1)
    return {
        PURE: dict.fromkeys((*ADAM, "momentum"), half) | {"master": 0},
        MASTER: {"weights": half, "gradients": half, "momentum": article.sgd_momentum_bytes(1), **adam},
        AUTOCAST: dict.fromkeys((*ADAM, "momentum"), whole) | {"master": 0},
    }


def _measured_states(evidence: Evidence, records: Sequence[str]) -> list[float]:
    """Bytes a parameter of each moment, from what full fine-tuning in bf16 holds when its last step has ended."""
    found = []
    for record in map(evidence.record, records):
        left = held(record) / real(record.case["model"]).parameters
        found.append((left - article.precision_bytes(record.case["dtype"])) / 2)
    return found


def _measured_peaks(evidence: Evidence, records: Sequence[str]) -> dict[str, float]:
    """Bytes a parameter at the peak of a run, by its id."""
    return {
        name: peak(record) / real(record.case["model"]).parameters
        for name, record in ((name, evidence.record(name)) for name in records)
    }


def training_bytes(claim: Claim, evidence: Evidence) -> Finding:
    """What some parts of full fine-tuning take of each parameter, by recipe; bf16 weights as they were measured."""
    counts, records = claim.parameters["counts"], claim.parameters["records"]
    by_recipe = recipes()
    seen = ""
    if records:
        states = _measured_states(evidence, records)
        by_recipe[PURE] |= {"moment": max(states), "variance": max(states)}
        model = evidence.record(records[0]).case["model"]
        seen = f" Full fine-tuning of {model} in bf16 left {span(states)} bytes of each moment ({', '.join(records)})"
    figures = {name: sum(parts[part] for part in counts) for name, parts in by_recipe.items()}
    if records and set(counts) == set(ADAM):
        peaks = _measured_peaks(evidence, records)
        figures[PURE] = max(peaks.values())
        seen += f" and peaked at {span(peaks.values())}, 2 of which foreach AdamW takes for a moment"
    word, found = judged(claim, figures.values())
    listed = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
    return Finding(
        word=word,
        found=found,
        evidence=(*records, "torch.optim.AdamW: states as wide as the weights"),
        why=f"By recipe, in bytes a parameter: {listed}.{seen + '.' if seen else ''}",
    )


def _full_needs(claim: Claim, evidence: Evidence) -> dict[str, float]:
    """Bytes that the weights, gradients and states of a full fine-tuning take, by recipe and as measured."""
    told = claim.parameters
    count = real(told["model"]).parameters if "model" in told else told["parameters"]
    return {
        "bf16 with fused AdamW": sum(recipes()[PURE][part] for part in ADAM) * count,
        f"bf16 as measured ({', '.join(told['records'])})": max(_measured_peaks(evidence, told["records"]).values())
        * count,
        "16 bytes a parameter": value("full_fine_tuning") * count,
    }


def full_static(claim: Claim, evidence: Evidence) -> Finding:
    """The static memory of full fine-tuning by recipe."""
    needs = _full_needs(claim, evidence)
    word, found = judged(claim, [need / SIZES[claim.unit or ""] for need in needs.values()])
    listed = ", ".join(f"{name} {gb(need)}" for name, need in needs.items())
    return Finding(word=word, found=found, why=f"By recipe: {listed}.", evidence=tuple(claim.parameters["records"]))


def full_fits(claim: Claim, evidence: Evidence) -> Finding:
    """Whether full fine-tuning fits so many GPUs, its states perfectly divided, without activations."""
    told = claim.parameters
    gpu, needs = gpus.find(told["gpu"]), _full_needs(claim, evidence)
    room = told["gpus"] * gpu.usable_bytes
    listed = ", ".join(f"{name} {gb(need)}" for name, need in needs.items())
    return Finding(
        word=fitting(needs, room, told["fits"]),
        evidence=tuple(told["records"]),
        why=f"{told['gpus']} x {gpu.name} have {gb(room)} beside the CUDA context; without activations: {listed}.",
    )


# --- activations ---------------------------------------------------------------------------------------------------


def bytes_per_token(evidence: Evidence, records: Sequence[str]) -> float:
    """How much more each further token of a step takes, between two runs of one model."""
    few, many = (evidence.record(name) for name in records)
    return (peak(many) - peak(few)) / (tokens(many) - tokens(few))


def bytes_per_logit(evidence: Evidence, records: Sequence[str] = ("M1184", "M1187")) -> float:
    """What a token takes beside its layers' inputs, by entry of the vocabulary: transformers' loss in one piece."""
    shape = real(evidence.record(records[0]).case["model"])
    inputs = 2 * shape.num_layers * shape.hidden_size
    return (bytes_per_token(evidence, records) - inputs) / shape.vocab_size


def checkpointed_slope(claim: Claim, evidence: Evidence) -> Finding:
    """The formula's bytes a token beside the measured ones."""
    records = claim.parameters["records"]
    model = evidence.record(records[0]).case["model"]
    shape = real(model)
    slope, formula = bytes_per_token(evidence, records), article.checkpointed_activation_bytes(shape, 1, 1)
    word, found = judged(claim, slope / formula)
    inputs = 2 * shape.num_layers * shape.hidden_size
    return Finding(
        word=word,
        found=found,
        evidence=("article.checkpointed_activation_bytes", *records),
        why=f"LoRA of {model} takes {slope:,.0f} bytes a token ({', '.join(records)}), the formula {formula:,}. The "
        f"layers' inputs, all that is kept of them, are {inputs:,}; most of the rest are logits, which it leaves out.",
    )


def measured_activations(claim: Claim, evidence: Evidence) -> Finding:
    """A measured peak less what the run held in the end."""
    record = evidence.record(claim.parameters["record"])
    size = peak(record) - held(record)
    word, found = judged(claim, size / SIZES[claim.unit or ""])
    return Finding(
        word=word,
        found=found,
        evidence=(claim.parameters["record"],),
        why=f"{record.case['model']} with as many tokens ({tokens(record):,}) peaked {gib(size)} above what it held in "
        f"the end ({claim.parameters['record']}).",
    )


def measured_total(claim: Claim, evidence: Evidence) -> Finding:
    """A measured peak beside a worked total of as many tokens."""
    record = evidence.record(claim.parameters["record"])
    word, found = judged(claim, peak(record) / SIZES[claim.unit or ""])
    return Finding(
        word=word,
        found=found,
        evidence=(claim.parameters["record"],),
        why=f"LoRA of {record.case['model']} (rank {record.case['lora_rank']}, {record.case['batch']} x "
        f"{record.case['seq']} tokens, checkpointing) peaked at {gb(peak(record))} ({claim.parameters['record']}).",
    )


def formula_against_measurements(claim: Claim, evidence: Evidence) -> Finding:
    """Every measured run of a workload in 16 bits: its peak over what the article's formula says of its case."""
    ratios: dict[str, float] = {}
    devices: set[str] = set()
    for record in evidence.workload(claim.parameters["workload"]):
        if record.case["quantization"] != "none":
            continue  # "All assume bf16/fp16 precision"
        case = Case.from_dict(record.case)
        predicted = sum(article.components(case, real(case.model)).values())
        version = record.fingerprint.get("transformers")
        label = f"{case.model.split('/')[-1]} under transformers {version}, {name(record)}"
        ratios[label] = peak(record) / predicted
        devices.add("CPU" if record.device == "cpu" else "GPU")
    word, found = judged(claim, ratios.values())
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return Finding(
        word=word,
        found=found,
        evidence=("article.components", f"{len(ratios)} measurements"),
        why=f"{len(ratios)} runs on the {' and '.join(sorted(devices))} peak at {span(ratios.values())} of the "
        f"formula: least {low}; most {high}.",
    )


# --- LoRA ----------------------------------------------------------------------------------------------------------

_TARGETS = {"q and v": ("q_proj", "v_proj"), "all-linear": ALL_LINEAR}


def _adapters(claim: Claim) -> dict[str, tuple[int, ModelShape]]:
    """Adapters of ordinary ranks on ordinary targets, and the models they are on."""
    told = claim.parameters
    return {
        f"{model.split('/')[-1]}, rank {rank} on {label}": (adapter(real(model), rank, targets), real(model))
        for model in told["models"]
        for rank in told["ranks"]
        for label, targets in _TARGETS.items()
    }


def lora_share(claim: Claim, _: Evidence) -> Finding:
    """Adapters' parameters as a share of the model's."""
    shares = {label: 100 * size / shape.parameters for label, (size, shape) in _adapters(claim).items()}
    word, found = judged(claim, shares.values())
    low, high = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    return Finding(
        word=word,
        found=found,
        evidence=tuple(f"zoo: {model}" for model in claim.parameters["models"]),
        why=f"Counted with real shapes: {shares[low]:.3f} % ({low}) to {shares[high]:.2f} % ({high}).",
    )


def lora_overhead(claim: Claim, _: Evidence) -> Finding:
    """What an fp32 adapter's gradients or states add to the frozen weights' 2P."""
    each = sum(recipes()[AUTOCAST][part] for part in claim.parameters["counts"])
    added = {
        label: 1 + each * size / article.parameter_bytes(shape.parameters)
        for label, (size, shape) in _adapters(claim).items()
    }
    word, found = judged(claim, added.values())
    high = max(added, key=added.__getitem__)
    return Finding(
        word=word,
        found=found,
        evidence=tuple(f"zoo: {model}" for model in claim.parameters["models"]),
        why=f"{each:g} bytes for each parameter of an fp32 adapter add {100 * (min(added.values()) - 1):.2f} % to "
        f"{100 * (added[high] - 1):.1f} % to the weights' 2P (most: {high}).",
    )


def adafactor(claim: Claim, _: Evidence) -> Finding:
    """Factored second moments: a row and a column for each matrix, in fp32."""
    shape = real(claim.parameters["model"])
    # An adapter of rank 1 is as large: one value for each input and output of a matrix.
    rows_and_columns = adapter(shape, 1, ALL_LINEAR) + shape.vocab_size + shape.hidden_size
    factored = recipes()[AUTOCAST]["variance"] * rows_and_columns / shape.parameters
    adam = recipes()[AUTOCAST]["variance"] * 2
    return Finding(
        word=yes(factored < adam, factored / adam),
        found=factored,
        evidence=(f"zoo: {claim.parameters['model']}",),
        why=f"A row and a column of each matrix of {claim.parameters['model']} are {factored:.4f} bytes a parameter in "
        f"fp32; Adam's two moments are {adam:g}.",
    )
