"""GRPO: what fits an H100, and what phases leave behind."""

from __future__ import annotations

import math

from nooom.benchmarks.claim_checks.evidence import Evidence, held, peak
from nooom.benchmarks.claim_checks.numbers import COMFORTABLE
from nooom.benchmarks.claim_checks.shapes import real, stated
from nooom.benchmarks.claim_checks.training import bytes_per_logit
from nooom.benchmarks.claim_checks.words import Finding, fitting, gb, judged, yes
from nooom.formulas import article, gpus
from nooom.formulas.claims import SIZES, Claim
from nooom.formulas.gpus import GPU

_FORMULA, _ONE_PIECE = "the article's formula", "logits in one piece, as measured"


def _needs(model: str, batch: int, seq: int, evidence: Evidence) -> dict[str, float]:
    """Bytes at the peak of GRPO with LoRA on a model's real shape, by two ordinary recipes.

    The article's formulas know no logits.  transformers' loss over the whole batch keeps several values for each entry
    of the vocabulary: as many as were measured between two LoRA runs of another model.
    """
    shape = real(model)
    weights = article.simplified_parameter_bytes(shape.parameters)
    generation = article.grpo_generation_bytes(weights, article.kv_cache_bytes(shape, batch, seq))
    training = article.grpo_training_bytes(weights, article.checkpointed_activation_bytes(shape, batch, seq))
    token = 2 * shape.num_layers * shape.hidden_size + bytes_per_logit(evidence) * shape.vocab_size
    return {
        _FORMULA: article.grpo_peak_bytes(generation, training),
        _ONE_PIECE: weights + batch * seq * token,
    }


def _largest_batches(model: str, seq: int, room: float, evidence: Evidence) -> dict[str, int]:
    """How many sequences fit, by recipe: what one more takes goes so often into what is left."""
    one, two = (_needs(model, batch, seq, evidence) for batch in (1, 2))
    return {name: max(0, 1 + math.floor((room - one[name]) / (two[name] - one[name]))) for name in one}


def _evidence(model: str) -> tuple[str, ...]:
    return ("article.grpo_peak_bytes", "M1184", "M1187", f"zoo: {model}")


def grpo_fits(claim: Claim, evidence: Evidence) -> Finding:
    """Whether a batch, of one sequence unless told, fits one GPU."""
    told = claim.parameters
    gpu, batch = gpus.find(told["gpu"]), told.get("batch", 1)
    needs = _needs(told["model"], batch, told["seq"], evidence)
    listed = ", ".join(f"{name} {gb(need)}" for name, need in needs.items())
    return Finding(
        word=fitting(needs, gpu.usable_bytes, told["fits"]),
        evidence=_evidence(told["model"]),
        why=f"{told['model']} with a batch of {batch}: {listed}; an {gpu.name} has {gb(gpu.usable_bytes)} beside the "
        f"CUDA context.{_verl(told['model'], evidence)}",
    )


def grpo_batch(claim: Claim, evidence: Evidence) -> Finding:
    """The largest batch that leaves a tenth of the GPU."""
    told = claim.parameters
    gpu = gpus.find(told["gpu"])
    batches = _largest_batches(told["model"], told["seq"], COMFORTABLE * gpu.total_bytes, evidence)
    word, found = judged(claim, batches.values())
    listed = ", ".join(f"{name} {batch}" for name, batch in batches.items())
    return Finding(
        word=word,
        found=found,
        evidence=_evidence(told["model"]),
        why=f"Sequences of {told['seq']} tokens in {COMFORTABLE:.0%} of an {gpu.name}, with {told['model']}'s shape: "
        f"{listed}.{_verl(told['model'], evidence)}",
    )


def grpo_gpus(claim: Claim, evidence: Evidence) -> Finding:
    """The fewest GPUs that hold a batch of one, divided without a rest."""
    told = claim.parameters
    gpu = gpus.find(told["gpu"])
    needs = _needs(told["model"], 1, told["seq"], evidence)
    counts = {name: _count(need, gpu) for name, need in needs.items()}
    word, found = judged(claim, counts.values())
    listed = ", ".join(f"{name} {gb(needs[name])} on {_gpus(count)}" for name, count in counts.items())
    return Finding(
        word=word,
        found=found,
        evidence=_evidence(told["model"]),
        why=f"A batch of one sequence, tensor-parallel in {COMFORTABLE:.0%} of each {gpu.name}: {listed}."
        f"{_verl(told['model'], evidence)}",
    )


def _count(need: float, gpu: GPU) -> int:
    return math.ceil(need / (COMFORTABLE * gpu.total_bytes))


def _verl(model: str, evidence: Evidence) -> str:
    """What verl publishes of that model, as a sentence; a rough bound, for its completions are ragged."""
    for row in evidence.facts["verl"]["rows"]:
        if row["model"].startswith(model):
            where = f"{'each of ' if row['gpus'] > 1 else ''}{_gpus(row['gpus'])}"
            return (
                f" verl's largest batch that ran: {row['ran_per_gpu']} prompts on {where}, with 5 completions, most of "
                "them far shorter."
            )
    return ""


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def grpo_peak(claim: Claim, evidence: Evidence) -> Finding:
    """The worked total with the model's real shape."""
    told = claim.parameters
    needs = _needs(told["model"], told["batch"], told["seq"], evidence)
    word, found = judged(claim, [need / SIZES[claim.unit or ""] for need in needs.values()])
    listed = ", ".join(f"{name} {gb(need)}" for name, need in needs.items())
    return Finding(
        word=word,
        found=found,
        evidence=_evidence(told["model"]),
        why=f"With {told['model']}'s shape: {listed}. What decides is how the loss handles logits, not the layers.",
    )


# --- phases and copies ---------------------------------------------------------------------------------------------


def phases_apart(claim: Claim, evidence: Evidence) -> Finding:
    """What is held when generation has ended, over what is held when the step has ended."""
    run = evidence.demo("grpo", checkpointing=True)
    after, end = held(run, "rollout"), held(run, "update")
    word, found = judged(claim, after / end)
    return Finding(
        word=word,
        found=found,
        evidence=("results/demo",),
        why=f"In the demo's GRPO step {after:,} bytes are left when generation has ended and {end:,} when the step "
        "has: its cache is gone before the update begins.",
    )


def peak_is_the_largest_phase(claim: Claim, evidence: Evidence) -> Finding:
    """The demo's peak over its largest phase, and over the sum of generation and update."""
    run = evidence.demo("grpo", checkpointing=True)
    phases = {phase.name: phase.peak_allocated_bytes or 0 for phase in run.phases}
    largest = max(phases["rollout"], phases["update"])
    word, found = judged(claim, peak(run) / largest)
    return Finding(
        word=word,
        found=found,
        evidence=("results/demo", "article.grpo_peak_bytes"),
        why=f"The demo's GRPO step peaks at {gb(peak(run))}: rollout {gb(phases['rollout'])}, update "
        f"{gb(phases['update'])}, together {gb(phases['rollout'] + phases['update'])}.",
    )


def shared_reference(claim: Claim, evidence: Evidence) -> Finding:
    """Copies of the weights that are held once the reference has been asked."""
    run = evidence.demo("grpo", checkpointing=True)
    weights = article.parameter_bytes(real(run.case["model"]).parameters, run.case["dtype"])
    extra = held(run, "reference") - held(run, "rollout")
    word, found = judged(claim, 1 + extra / weights)
    return Finding(
        word=word,
        found=found,
        evidence=("results/demo",),
        why=f"The demo's reference is the actor with its adapter off: asking it leaves {extra:,} bytes more, and a "
        f"copy of the weights would be {weights:,}.",
    )


def separate_reference(claim: Claim, _: Evidence) -> Finding:
    """The article's formula with and without a reference model."""
    parameters = 7 * 10**9
    weights = article.simplified_parameter_bytes(parameters)
    added = article.grpo_training_bytes(weights, 0, reference=weights) - article.grpo_training_bytes(weights, 0)
    word, found = judged(claim, added / parameters)
    return Finding(
        word=word,
        found=found,
        evidence=("article.grpo_training_bytes",),
        why="A frozen copy in bf16 has 2 bytes a parameter and neither gradients nor states.",
    )


def without_critic(_: Claim, __: Evidence) -> Finding:
    """PPO's critic of the actor's size, which trains."""
    parameters = 7 * 10**9
    critic = article.full_fine_tuning_bytes(parameters, 0)
    grpo = article.full_fine_tuning_bytes(parameters, 0) + article.simplified_parameter_bytes(parameters)
    return Finding(
        word=yes(grpo + critic > grpo, 1),
        found=(grpo + critic) / grpo,
        evidence=("article.full_fine_tuning_bytes",),
        why=f"A critic of the actor's size that trains too takes another {gb(critic)} for 7B: with it an actor and a "
        f"reference take {(grpo + critic) / grpo:.2f} times as much. That is arithmetic; PPO has not been measured.",
    )


# --- a reward model ------------------------------------------------------------------------------------------------


def _with_reward(claim: Claim) -> tuple[int, float, float]:
    """Generation alone; with a reward model that keeps a cache; with one that scores in one forward pass."""
    told = claim.parameters
    cache = article.kv_cache_bytes(stated(told["layers"], told["hidden"]), told["batch"], told["seq"])
    alone = article.inference_bytes(told["parameters"], cache)
    doubled = article.same_sized_reward_bytes(told["parameters"], cache)
    return alone, doubled, doubled - cache


def reward_caches(claim: Claim, _: Evidence) -> Finding:
    """Two caches or one."""
    _alone, doubled, scored = _with_reward(claim)
    word, found = judged(claim, [1.0, scored / doubled])
    return Finding(
        word=word,
        found=found,
        evidence=("article.same_sized_reward_bytes",),
        why=f"A reward model that writes keeps a cache ({gb(doubled)} in the 7B example); one with a scoring head "
        f"reads everything in one pass and keeps none ({gb(scored)}).",
    )


def reward_doubles(claim: Claim, _: Evidence) -> Finding:
    """Times the memory of generation alone."""
    alone, doubled, scored = _with_reward(claim)
    word, found = judged(claim, [doubled / alone, scored / alone])
    return Finding(
        word=word,
        found=found,
        evidence=("article.same_sized_reward_bytes", "article.inference_bytes"),
        why=f"In the 7B example {doubled / alone:.2f} times with a second cache, {scored / alone:.2f} with a reward "
        "model that scores in one pass and keeps none.",
    )
