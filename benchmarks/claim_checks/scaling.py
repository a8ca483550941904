"""What doubles when something is doubled, and what is divided among GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from nooom.benchmarks.claim_checks.evidence import Evidence, held, peak, tokens
from nooom.benchmarks.claim_checks.numbers import formula
from nooom.benchmarks.claim_checks.shapes import real, stated, tables
from nooom.benchmarks.claim_checks.words import Finding, judged, span
from nooom.formulas import article
from nooom.formulas.claims import Claim
from nooom.formulas.errors import UsageError

_LAYERS, _HIDDEN, _HEADS, _BATCH, _SEQ = 32, 4096, 32, 8, 2048
"""The article's 7B example."""
_NAMES = {"layers": "layers", "hidden": "width", "batch": "batch", "seq": "sequence"}


def _doubled(of: str, by: str) -> Iterator[tuple[str, float]]:
    """How many times more a formula gives with one thing doubled; width with as many heads, and with twice as many."""
    before = formula(of)(stated(_LAYERS, _HIDDEN, _HEADS), _BATCH, _SEQ)
    sizes = {"layers": _LAYERS, "hidden": _HIDDEN, "batch": _BATCH, "seq": _SEQ}
    sizes[by] *= 2
    for heads in (_HEADS, 2 * _HEADS) if by == "hidden" else (_HEADS,):
        shape = stated(sizes["layers"], sizes["hidden"], heads)
        label = f"{of}, {heads} heads" if by == "hidden" else of
        yield label, formula(of)(shape, sizes["batch"], sizes["seq"]) / before


def scaling(claim: Claim, evidence: Evidence) -> Finding:
    """Formulas with one thing doubled, and a pair of runs where there is one."""
    told = claim.parameters
    ratios = dict(pair for of in told["of"] for pair in _doubled(of, told["by"]))
    records = told.get("records", ())
    if records:
        few, many = (evidence.record(name) for name in records)
        differ = [size for size in ("batch", "seq") if few.case[size] != many.case[size]]
        if differ != [told["by"]]:
            raise UsageError(f"claim {claim.id}: {' and '.join(records)} differ in {differ}, not in {told['by']} alone")
        growth = (peak(many) - held(many)) / (peak(few) - held(few))
        ratios[f"measured, {' and '.join(records)}"] = 2 * growth / (tokens(many) / tokens(few))
    word, found = judged(claim, ratios.values())
    listed = ", ".join(f"{label} {ratio:.2f}x" for label, ratio in ratios.items())
    subject = _NAMES[told["by"]]
    quadratic = ""
    if told["by"] == "seq" and "megatron" in told["of"]:
        quadratic = " Attention scores, where they are kept, grow with the square; flash attention keeps none."
    return Finding(
        word=word,
        found=found,
        evidence=(*(f"article.{formula(of).__name__}" for of in told["of"]), *records),
        why=f"With twice the {subject}: {listed}.{quadratic}",
    )


def linear_growth(claim: Claim, evidence: Evidence) -> Finding:
    """Three runs of growing length: the slope between the last two over that between the first two."""
    runs = [evidence.record(name) for name in claim.parameters["records"]]
    lengths = [run.case["seq"] for run in runs]
    slopes = [(peak(runs[i + 1]) - peak(runs[i])) / (lengths[i + 1] - lengths[i]) for i in range(len(runs) - 1)]
    word, found = judged(claim, slopes[-1] / slopes[0])
    return Finding(
        word=word,
        found=found,
        evidence=tuple(claim.parameters["records"]),
        why=f"{runs[0].case['model']} takes {span(slopes, 0)} bytes more for each token between {lengths[0]:,} and "
        f"{lengths[-1]:,} ({', '.join(claim.parameters['records'])}).",
    )


# --- parallelism ---------------------------------------------------------------------------------------------------


def tensor_parallel(claim: Claim, evidence: Evidence) -> Finding:
    """What is left to one GPU: of matrices their share, of activations also what is not divided."""
    tp, paper = claim.parameters["tp"], evidence.facts["megatron"]
    whole, kept = paper["linear_bytes"], paper["not_divided_bytes"]
    weights = article.tensor_parallel_bytes(whole * tp, 0, tp) / (whole * tp)
    activations = (kept + (whole - kept) / tp) / whole
    word, found = judged(claim, [weights, activations])
    return Finding(
        word=word,
        found=found,
        evidence=("article.tensor_parallel_bytes", paper["source"]),
        why=f"Matrices, and activations under sequence parallelism, leave {weights:.2f}; without it norms and dropout "
        f"are on every GPU, {kept} of {whole} bytes: {activations:.2f} of the activations are left.",
    )


def pipeline_parallel(claim: Claim, _: Evidence) -> Finding:
    """The largest stage, which has an embedding or an output projection beside its layers, over an equal share."""
    pp, ratios = claim.parameters["pp"], {}
    for model in claim.parameters["models"]:
        shape = real(model)
        table = shape.vocab_size * shape.hidden_size
        layers = (shape.parameters - tables(shape)) / shape.num_layers
        stage = layers * -(-shape.num_layers // pp) + table
        ratios[model] = stage / article.pipeline_parallel_bytes(shape.parameters, pp)
    word, found = judged(claim, ratios.values())
    listed = ", ".join(f"{model.split('/')[-1]} {ratio:.2f}" for model, ratio in ratios.items())
    return Finding(
        word=word,
        found=found,
        evidence=("article.pipeline_parallel_bytes", *(f"zoo: {model}" for model in ratios)),
        why=f"With PP={pp} the largest stage has an embedding or the output projection too; over an equal share: "
        f"{listed}.",
    )


def data_parallel(claim: Claim, _: Evidence) -> Finding:
    """One GPU's memory, before and after."""
    word, found = judged(claim, article.data_parallel_bytes(10**9, 8) / 10**9)
    return Finding(
        word=word,
        found=found,
        evidence=("article.data_parallel_bytes",),
        why="Each GPU has its own whole copy: that is what data parallelism means, and nothing here measures it.",
    )


def zero(claim: Claim, _: Evidence) -> Finding:
    """How many times less of a part one GPU has."""
    told = claim.parameters
    whole = {"parameters": 2 * 10**9, "gradients": 2 * 10**9, "optimizer": 12 * 10**9}
    left = article.zero_bytes(whole, told["stage"], told["gpus"])
    word, found = judged(claim, whole[told["part"]] / left[told["part"]])
    return Finding(
        word=word,
        found=found,
        evidence=("article.zero_bytes",),
        why=f"ZeRO-{told['stage']} partitions the {told['part']}: one of {told['gpus']} GPUs has "
        f"1/{told['gpus']}. That is its definition; buffers come on top, and nothing here measures them.",
    )
