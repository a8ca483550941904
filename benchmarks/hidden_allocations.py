"""``python -m nooom.benchmarks.hidden_allocations results``: what kernels allocate for themselves, found and explained.

Reads what the oracle took apart under ``results/emulated`` and writes ``results/hidden-allocations.md``: how much of
each peak has a name, and every operation that took memory which no tensor shows, beside what ``formulas/hidden.py``
says it takes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks import components, oracle
from nooom.benchmarks.components import Apart, Scratch
from nooom.formulas import hidden
from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.tracer.hidden import name_of

FILE = "hidden-allocations.md"
_WORTH_BYTES = 1 << 14
"""Operations whose largest call took less are counted, not listed."""
_ELEMENT_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What an operation is said to take."""

    sizes: Callable[[Scratch], tuple[int, ...] | None]
    """The sizes that must be among those it took; None where the rule does not speak of such a call."""
    formula: str
    """Its function in ``formulas/hidden.py``."""
    rest: str = ""
    """What the operation takes besides, in words."""


def _element_bytes(call: Scratch) -> int:
    return _ELEMENT_BYTES.get(call.dtype or "", 2)


def _product(call: Scratch) -> tuple[int, ...]:
    return (hidden.cublas_workspace_bytes(oracle.gpu_of(call.gpu).compute_capability),)


def _flash_forward(call: Scratch) -> tuple[int, ...] | None:
    (batch, heads, queries, width), (_, kv_heads, keys, _) = call.inputs[:2]
    if queries == 1 and kv_heads < heads:  # one query: the queries of a group take the rows' place
        heads, queries = kv_heads, heads // kv_heads
    splits = hidden.flash_splits(batch, heads, queries, keys, width, oracle.gpu_of(call.gpu).sms)
    return hidden.flash_forward_bytes(batch, heads, queries, width, splits) or None


def _flash_backward(call: Scratch) -> tuple[int, ...] | None:
    (batch, heads, queries, width), (_, kv_heads, keys, _) = call.inputs[1:3]
    return hidden.flash_backward_bytes(batch, heads, kv_heads, queries, keys, width, _element_bytes(call))


def _efficient_forward(call: Scratch) -> tuple[int, ...] | None:
    batch, heads, queries, width = call.inputs[0]
    value_width = call.inputs[2][-1]
    widest = max(width, value_width)
    return hidden.efficient_forward_bytes(batch, heads, queries, value_width, _element_bytes(call), widest) or None


def _efficient_backward(call: Scratch) -> tuple[int, ...] | None:
    batch, heads, queries, width = call.inputs[1]
    if width > 128:
        return None
    return hidden.efficient_backward_bytes(batch, heads, queries, width, _element_bytes(call))


def _column_sum(call: Scratch) -> tuple[int, ...] | None:
    shape, gpu = call.inputs[0], oracle.gpu_of(call.gpu)
    if call.output is None or math.prod(call.output) != shape[-1]:
        return None
    return hidden.row_sum_bytes(math.prod(shape[:-1]), shape[-1], gpu.sms, gpu.max_threads_per_sm) or None


def _embedding(call: Scratch) -> tuple[int, ...] | None:
    if call.output is None:
        return None
    size = hidden.embedding_backward_bytes(math.prod(call.inputs[1]), call.output[0], call.output[1])
    return (size,) if size else None


def _norms(call: Scratch) -> tuple[int, ...]:
    return (hidden.foreach_norm_bytes([call.largest] * call.tensors),)


def _softmax_backward(call: Scratch) -> tuple[int, ...] | None:
    return (hidden.softmax_backward_bytes(math.prod(call.inputs[0])),)


def _safe_softmax(call: Scratch) -> tuple[int, ...] | None:
    return (hidden.safe_softmax_bytes(math.prod(call.inputs[0])),)


def _draws(call: Scratch) -> tuple[int, ...]:
    return (hidden.multinomial_bytes(call.inputs[0][0], call.inputs[0][-1]),)


_PRODUCT = Rule(sizes=_product, formula="cublas_workspace_bytes")
RULES = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), _PRODUCT),
    "_scaled_dot_product_flash_attention": Rule(sizes=_flash_forward, formula="flash_forward_bytes"),
    "_scaled_dot_product_flash_attention_backward": Rule(sizes=_flash_backward, formula="flash_backward_bytes"),
    "_scaled_dot_product_efficient_attention": Rule(sizes=_efficient_forward, formula="efficient_forward_bytes"),
    "_scaled_dot_product_efficient_attention_backward": Rule(
        sizes=_efficient_backward,
        formula="efficient_backward_bytes",
        rest="wider than 128, gradients of keys and values in as many parts as the kernel chooses",
    ),
    "sum": Rule(sizes=_column_sum, formula="row_sum_bytes", rest="of integers, a copy in int64"),
    "mean": Rule(sizes=_column_sum, formula="row_sum_bytes"),
    "embedding_dense_backward": Rule(
        sizes=_embedding,
        formula="embedding_backward_bytes",
        rest="seven arrays of indices, and CUB's scratch to sort them",
    ),
    "_foreach_norm": Rule(sizes=_norms, formula="foreach_norm_bytes"),
    "_softmax_backward_data": Rule(sizes=_softmax_backward, formula="softmax_backward_bytes"),
    "_safe_softmax": Rule(sizes=_safe_softmax, formula="safe_softmax_bytes", rest="a boolean for each row"),
    "multinomial": Rule(sizes=_draws, formula="multinomial_bytes", rest="flags of a few bytes"),
}  # fmt: skip
"""By the operator's name."""


def expected(call: Scratch) -> tuple[int, ...] | None:
    """What the rule says that a call takes; None where there is none."""
    rule = RULES.get(call.op.split(".")[1])
    return None if rule is None else rule.sizes(call)


def is_met(call: Scratch, sizes: Sequence[int]) -> bool:
    """Whether the call took blocks of these very sizes."""
    return not Counter(sizes) - Counter(call.sizes)


def page(apart: Sequence[Apart], scratch: Sequence[Scratch], versions: str) -> str:
    """The document."""
    lines = [
        "# What no tensor shows",
        "",
        "Cases of the oracle's grid, played on phantom GPUs and taken apart by the tracer: how much of each peak has a",
        f"name, and what CUDA kernels allocate for themselves.  With {versions}.  Made by",
        "`python -m nooom.benchmarks.hidden_allocations results` from `results/emulated/*/components/`.",
        "",
        "## How much has a name",
        "",
        *_shares(apart),
        "",
        "*Named* are tensors, and blocks of kernels that are known by name; what is left is of unknown origin.  The",
        "last column compares the pass with the tracer with the one without.",
        "",
        "## By operation",
        "",
        "Of each operation the call that took most, over all cases.  *Rule* is the function in `formulas/hidden.py`;",
        "*met* counts the cases whose largest call took blocks of exactly the sizes that it says, of those that it",
        "speaks of.",
        "",
        *_operations(scratch),
        "",
        *_missed(scratch),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _shares(apart: Sequence[Apart]) -> list[str]:
    lines = [
        "| workload | phase | cases | named, least | of unknown origin, most | the tracer moves the peak, most |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for workload, phase in dict.fromkeys((item.case.workload, item.phase) for item in apart):
        group = [item for item in apart if (item.case.workload, item.phase) == (workload, phase)]
        unknown = max(item.unknown_bytes / item.peak_bytes for item in group)
        moved = max(abs(item.peak_bytes / item.measured_bytes - 1) for item in group)
        lines.append(f"| {workload} | {phase} | {len(group)} | {1 - unknown:.4%} | {unknown:.4%} | {moved:.4%} |")
    return lines


def _operations(scratch: Sequence[Scratch]) -> list[str]:
    calls: dict[tuple[str, bool], list[Scratch]] = defaultdict(list)
    for call in scratch:
        calls[call.op, call.backward].append(call)
    lines = ["| operation | what | most | in | rule | met | besides |", "|---|---|---:|---|---|---:|---|"]
    small = []
    for (op, backward), found in sorted(calls.items(), key=lambda item: -max(call.bytes for call in item[1])):
        most = max(found, key=lambda call: call.bytes)
        if most.bytes < _WORTH_BYTES:
            small.append(op)
            continue
        rule = RULES.get(op.split(".")[1])
        name = f"`{op}`" + (" backward" if backward else "")
        what = name_of(op, max(most.sizes)) or "unknown"
        formula = f"`{rule.formula}`" if rule else "-"
        lines.append(
            f"| {name} | {what} | {most.bytes / 2**20:.2f} MiB | {most.case.label()} | {formula} | {_met(found)} | "
            f"{rule.rest if rule else ''} |"
        )
    if small:
        lines += ["", f"Below {_WORTH_BYTES >> 10} KiB: {', '.join(f'`{op}`' for op in sorted(set(small)))}."]
    return lines


def _met(calls: Iterable[Scratch]) -> str:
    judged = [is_met(call, sizes) for call in calls if (sizes := expected(call)) is not None]
    return f"{sum(judged)} of {len(judged)}" if judged else "-"


def _missed(scratch: Sequence[Scratch]) -> list[str]:
    lines = []
    for call in scratch:
        sizes = expected(call)
        if sizes is not None and not is_met(call, sizes):
            lines.append(
                f"* `{call.op}` in {call.case.label()} on {call.gpu}: said {list(sizes)}, took {list(call.sizes)}"
            )
    return ["## Where a rule is not met", "", *lines] if lines else []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nooom.benchmarks.hidden_allocations", description="List what kernels allocate for themselves."
    )
    parser.add_argument("results", type=Path, help="the folder that has emulated/ in it, e.g. results")
    given = parser.parse_args(arguments)
    try:
        (given.results / FILE).write_text(document(given.results), encoding="utf-8")
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def document(results: Path) -> str:
    """The page from the newest versions that were taken apart.  Raises UsageError where none were."""
    folders = sorted(folder.parent for folder in (results / "emulated").glob(f"*/{components.FOLDER}"))
    if not folders:
        raise UsageError(f"{results}/emulated: no {components.FOLDER}/ in it: make oracle")
    apart, scratch = components.load(folders[-1])
    return page(apart, scratch, folders[-1].name.replace("_", ", ").replace("-", " "))


if __name__ == "__main__":
    sys.exit(main())
