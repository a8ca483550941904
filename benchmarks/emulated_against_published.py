"""``python -m nooom.benchmarks.emulated_against_published results/emulated``: phantom A100s beside published figures.

Three comparisons, each from files that are in the repository: fine-tunings in the very versions in which they were
measured (``published.jsonl``, made by ``make oracle-old``), the same cases in today's versions (the oracle's
recordings, made by ``make oracle``), and prefills as the script that measured them ran them (``as_run.jsonl``, made by
``make oracle-old`` too).  A difference has its cause beside it, or is said to be open.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks.journal import read
from nooom.benchmarks.oracle import MADE_WITH, Recording, load
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement

OLD = "published.jsonl"
AS_RUN = "as_run.jsonl"
COMPLETIONS = "completions.jsonl"
PAGE = "published.md"
GPU = "a100-80gb"
_FLAGS = (
    "model", "workload", "batch", "seq", "dtype", "autocast", "optimizer", "checkpointing", "lora_rank", "lora_targets",
    "lora_dropout", "lora_dtype", "quantization",
)  # fmt: skip
"""What a recording must share with a published run.  Attention is sdpa where that was flash-attn's, weights are random,
and no tokens follow the prompt, whose pass is the peak of these runs."""

_NEAR = "what was printed explains all but {share:.3%}; the rest was not traced"
_RESTS = (
    "no tensor more: rests.  Tying drops the `lm_head` that random weights come with, bf16 [151936, 896] "
    "(272,269,312 B); its block stays cached and is cut up.  The published run loaded a checkpoint, which makes none: "
    "{blocks}"
)
_LORA = (
    "at its peak the published run still had the bf16 logits [{tokens}, 32001] ({logits:,} B) and the bf16 output of "
    "the last norm [{tokens}, 4096] ({norm:,} B); today's has sdpa's mask of the sliding window instead, "
    "bool [{batch}, 1, 4096, 4096] ({mask:,} B); what is left is below 0.01 %"
)
CAUSES = {
    "M1168": "the loss, as M1171: it moves the peak from the optimizer to the backward pass",
    "M1171": "transformers 5 computes the loss of this architecture in fp32: three tensors [16384, 49280] of "
    "3,229,614,080 B where 4.48 had three of bf16 [16376, 49158], 1,610,022,816 B each; 4.48 kept 24 outputs of "
    "c_attn, bf16 [16384, 2304], 1,811,939,328 B together",
    "M1176": "one row more in embedding and head, bf16 [4096] each, in weights, gradients, two states and the step's "
    "root: 5 x 16,384 B; and two scalars, 512 B each: the losses that the Trainer keeps",
    "M1179": "as M1176",
    "M1184": _LORA.format(tokens=16_384, logits=1_048_608_768, norm=134_217_728, batch=4, mask=67_108_864),
    "M1187": _LORA.format(tokens=32_768, logits=2_097_217_536, norm=268_435_456, batch=8, mask=134_217_728),
    "M0145": "at its peak, the last token's, transformers 4.46 has expanded a layer's keys and values to every query "
    "head before flash-attn takes them, bf16 [1, 14, 2048, 64], 3,670,016 B each; today's attention takes them as they "
    "are",
    "M0149": _RESTS.format(
        blocks="three of the MLP's bf16 [6144, 4864] (57 MiB) lie in segments of 58 MiB, and one more of the cache's, "
        "bf16 [1, 2, 6144, 64], has 1 MiB over: 4 x 1,048,576 B; 0.9 MiB more were not told apart"
    ),
    "M0153": _RESTS.format(
        blocks="three of the MLP's bf16 [14336, 4864] (133 MiB) lie in segments of 134 MiB, where after random weights "
        "two do; whether one rest more belongs to it is open, see below"
    ),
}
"""Why today's figure differs, by the id of the published one; of the others rounding explains all, or nearly all.
The tensors of M1171 and M1184 are read from torch's record of allocations (``torch.cuda.memory._snapshot``) at the
peaks of both, old and new; those of M1187 are twice M1184's."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A published run and what a phantom took for it."""

    published: Measurement
    run: str
    peak_bytes: int
    end_bytes: int | None

    @property
    def id(self) -> str:
        return str(self.published.fingerprint["published"][0])

    @property
    def published_peak_bytes(self) -> int:
        peak = self.published.peak_allocated_bytes
        assert peak is not None
        return peak

    @property
    def off_bytes(self) -> int:
        """Emulated less published."""
        return self.peak_bytes - self.published_peak_bytes

    @property
    def beyond_rounding_bytes(self) -> int:
        """The difference that rounding can't explain, without its sign."""
        rounding: int = self.published.fingerprint["rounding_bytes"]
        return max(abs(self.off_bytes) - rounding, 0)

    @property
    def beyond_rounding(self) -> float:
        """The difference that rounding can't explain, as a share of what was published."""
        return self.beyond_rounding_bytes / self.published_peak_bytes


def old(folder: Path) -> list[tuple[Pair, dict[str, Any]]]:
    """The runs in their own versions, each with its line.  Raises UsageError for an id that was not published."""
    published = _published()
    found = []
    for number, text in enumerate((folder / OLD).read_text(encoding="utf-8").splitlines(), 1):
        line = json.loads(text)
        if line["published"] not in published:
            raise UsageError(f"{folder / OLD}:{number}: {line['published']!r} is no published record")
        run = f"{line['model'].split('/')[1]} {line['workload']} {line['batch']} x {line['seq']}"
        figures = {"peak_bytes": line["peak_allocated_bytes"], "end_bytes": line["end_allocated_bytes"]}
        found.append((Pair(published=published[line["published"]], run=run, **figures), line))
    return found


def as_run(folder: Path) -> list[tuple[Pair, dict[str, Any]]]:
    """The prefills as their script ran them, each with its line.  Raises UsageError for an id not published."""
    published = _published()
    found = []
    for number, text in enumerate((folder / AS_RUN).read_text(encoding="utf-8").splitlines(), 1):
        line = json.loads(text)
        if line["id"] not in published:
            raise UsageError(f"{folder / AS_RUN}:{number}: {line['id']!r} is no published record")
        run = f"{line['model'].split('/')[1]} {line['length']} + {line['new_tokens']}"
        found.append(
            (Pair(published=published[line["id"]], run=run, peak_bytes=line["peak_bytes"], end_bytes=None), line)
        )
    return found


def completed(folder: Path) -> list[tuple[Pair, dict[str, Any]]]:
    """Llama's prompts and completions as they were run, two to a line.  Raises UsageError for an id not published."""
    published = _published()
    found = []
    for number, text in enumerate((folder / COMPLETIONS).read_text(encoding="utf-8").splitlines(), 1):
        line = json.loads(text)
        for name, peak, tokens in zip(
            line["ids"], ("forward_bytes", "generate_bytes"), ("", f" + {line['new_tokens']}"), strict=True
        ):
            if name not in published:
                raise UsageError(f"{folder / COMPLETIONS}:{number}: {name!r} is no published record")
            run = f"{line['model'].split('/')[1]} {line['batch']} x {line['seq']}{tokens}, {line['attention']}"
            found.append((Pair(published=published[name], run=run, peak_bytes=line[peak], end_bytes=None), line))
    return found


def today(folder: Path) -> list[Pair]:
    """Every published run on an A100 of which there is a recording of the same case.

    Args:
        folder: of the recordings of one set of versions.
    """
    recordings = [item for item in load(folder) if item.gpu == GPU and item.status == "ok" and _is_plain(item)]
    return list(_pairs(recordings))


def _is_plain(item: Recording) -> bool:
    case = item.case
    return case.attention == "sdpa" and not (case.allocator or case.new_tokens or case.padding or case.logits == "all")


def _pairs(recordings: list[Recording]) -> Iterator[Pair]:
    for record in _published().values():
        for item in recordings:
            if all(getattr(item.case, name) == record.case[name] for name in _FLAGS):
                yield Pair(
                    published=record,
                    run=f"{item.case.model.split('/')[1]} {item.case.workload} {item.case.batch} x {item.case.seq}",
                    peak_bytes=max(figures["peak_allocated_bytes"] for figures in item.phases.values()),
                    end_bytes=list(item.phases.values())[-1]["end_allocated_bytes"] if item.case.trains else None,
                )


def _published() -> dict[str, Measurement]:
    return {record.fingerprint["published"][0]: record for record in read(RESULTS / "measured" / "public")}


def page(folder: Path, versions: Path) -> str:
    """The page: the comparisons, and what can't be compared.

    Args:
        folder: results/emulated.
        versions: the folder of today's recordings in it.
    """
    runs = old(folder)
    own = [pair for pair, line in runs if is_as_published(line)]
    varied = [(pair, line) for pair, line in runs if not is_as_published(line)]
    rows = as_run(folder)
    lines = [
        "# Phantom A100s beside published figures",
        "",
        "Made by `python -m nooom.benchmarks.emulated_against_published results/emulated`; change that, not this.",
        "Peaks are `torch.cuda.max_memory_allocated` in bytes; ids are the",
        "[manifest's](../measured/public/manifest.csv).",
        "No real GPU took part in the emulated figures.",
        "",
        "## In the versions of their time",
        "",
        "torch 2.4.1, transformers 4.48.1, peft 0.13.2, accelerate 1.0.1, with a stand-in for flash-attn 2.7.3 that",
        "allocates what it does: `make oracle-old`.  Reentrant checkpointing, as was the default.  The published runs",
        "(fms-hf-tuning) fitted the embeddings to the tokenizer with a padding token of its own; how many rows that",
        "made is not published, and follows from the figures: 32,001 for Mistral, one more than its config has, and",
        "49,158 for santacoder, 122 fewer.",
        "",
        "| id | run | published peak | emulated | off by | published end | off by |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_own_row(pair) for pair in own),
        "",
        f"{_exact(own)}",
        "",
        "What each circumstance is worth, from the same runs with one thing changed:",
        "",
        *(_varied_line(pair, line) for pair, line in varied),
        "",
        "## In today's versions",
        "",
        f"{_named(versions)}, sdpa attention, non-reentrant checkpointing, random weights: the oracle's recordings.",
        "",
        "| id | run | published peak | printed to | emulated | off by | | cause |",
        "|---|---|--:|--:|--:|--:|--:|---|",
        *(_today_row(pair) for pair in today(versions)),
        "",
        "## Qwen2.5 as its script ran it",
        "",
        *_as_run_said([line for _, line in rows]),
        "",
        "| id | run | published | emulated | its bytes | requested | rests |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_as_run_row(pair, line) for pair, line in rows),
        "",
        *_as_run_why([pair for pair, _ in rows]),
        "",
        "## Llama 2 as optimum-benchmark ran it",
        "",
        *_completed_said(completed(folder)),
        "",
        *_LEFT_OUT,
    ]
    return "\n".join(lines) + "\n"


def is_as_published(line: dict[str, Any]) -> bool:
    return line["attention"] == "flash_attention_2" and line["vocab_size"] not in (32_000, 49_280)


def _own_row(pair: Pair) -> str:
    published_end = pair.published.phases[0].end_allocated_bytes
    end_off = "" if published_end is None or pair.end_bytes is None else f"{pair.end_bytes - published_end:+,}"
    return (
        f"| {pair.id} | {pair.run} | {pair.published_peak_bytes:,} | {pair.peak_bytes:,} | {pair.off_bytes:+,} "
        f"| {published_end:,} | {end_off} |"
    )


def _exact(pairs: list[Pair]) -> str:
    exact = sum(pair.off_bytes == 0 for pair in pairs)
    rest = [pair for pair in pairs if pair.off_bytes]
    said = f"{exact} of {len(pairs)} peaks agree to the byte."
    for pair in rest:
        said += (
            f"  {pair.id} is {pair.off_bytes:+,} bytes off ({pair.off_bytes / pair.published_peak_bytes:+.4%}), and "
            "why was not traced: two blocks that the allocator leaves unsplit, by up to 1 MiB each, make as much, and "
            "depend on what was allocated before.  Twenty steps give the same figure as three."
        )
    return said


def _varied_line(pair: Pair, line: dict[str, Any]) -> str:
    if line["attention"] == "sdpa":
        return (
            f"- {pair.id} with sdpa: {pair.off_bytes:+,} bytes ({pair.off_bytes / pair.published_peak_bytes:+.2%}), "
            f"which are the causal mask, bf16 [{line['batch']}, 1, {line['seq']}, {line['seq']}]: Mistral's window is "
            "as long as the rows, so transformers 4.48 makes one for sdpa, and none for flash-attn."
        )
    return f"- {pair.id} with the config's {line['vocab_size']:,} rows: {pair.off_bytes:+,} bytes."


def _today_row(pair: Pair) -> str:
    rounding = pair.published.fingerprint["rounding_bytes"]
    printed = "the byte" if not rounding else f"±{rounding:,}"
    cause = CAUSES.get(pair.id) or _NEAR.format(share=pair.beyond_rounding)
    return (
        f"| {pair.id} | {pair.run} | {pair.published_peak_bytes:,} | {printed} | {pair.peak_bytes:,} "
        f"| {pair.off_bytes:+,} | {pair.off_bytes / pair.published_peak_bytes:+.4%} | {cause} |"
    )


def _as_run_said(lines: list[dict[str, Any]]) -> list[str]:
    ((torch, transformers),) = {(line["torch"], line["transformers"]) for line in lines}
    return [
        f"torch {torch}, transformers {transformers}, accelerate 1.0.1 and the stand-in for flash-attn:",
        "`make oracle-old`; the published runs had torch 2.3.1.  A checkpoint of zeros through `from_pretrained`, then",
        "`generate` with the checkpoint's sampling, each length in a process of its own.  After a long prompt its pass",
        "is the peak, so two new tokens stand for the 2048 that were made; after a prompt of one token all are made.",
        "GiB with two decimals, as published, and bytes.",
    ]


def _as_run_row(pair: Pair, line: dict[str, Any]) -> str:
    asked = line["requested_bytes"]
    return (
        f"| {pair.id} | {pair.run} | {_gib(pair.published_peak_bytes)} | {_gib(pair.peak_bytes)} "
        f"| {pair.peak_bytes:,} | {asked:,} | {pair.peak_bytes - asked:,} |"
    )


def _as_run_why(pairs: list[Pair]) -> list[str]:
    others = [pair for pair in pairs if pair.beyond_rounding_bytes]
    return [
        f"{len(pairs) - len(others)} of {len(pairs)} print as published.  The last column is the peak less the most",
        "that was asked for, so no tensor's: the allocator rounds a segment of 10 MiB or more up to 2 MiB, and hands a",
        "block out whole where it would leave 1 MiB or less; `max_memory_allocated` counts such rests.",
        *(text for pair in others for text in _open_question(pair)),
    ]


def _open_question(pair: Pair) -> list[str]:
    side = "short of" if pair.off_bytes < 0 else "beyond"
    return [
        "",
        f"{pair.id} is {pair.beyond_rounding_bytes:,} B {side} what prints as {_gib(pair.published_peak_bytes)}; a",
        "rest is up to 1,048,576 B.  An open question: where two free blocks suit equally, the allocator chooses by",
        "address, so those that the driver gave can decide about a rest.  They are not published; the segments'",
        "addresses on an A100 (`torch.cuda.memory_snapshot()`) would tell.",
    ]


def _completed_said(found: list[tuple[Pair, dict[str, Any]]]) -> list[str]:
    ((torch, transformers),) = {(line["versions"]["torch"], line["versions"]["transformers"]) for _, line in found}
    pairs = [pair for pair, _ in found]
    return [
        f"torch {torch} (the published runs had its build for CUDA 11.8), transformers {transformers} and the",
        "stand-in for flash-attn: `make oracle-older`.  Random weights in fp16, one forward pass over the prompt, then",
        "`generate` with all of its 512 tokens; decimal megabytes, cut off, as published.",
        f"{sum(_prints_alike(pair) for pair in pairs)} of {len(pairs)} print as published.",
        "",
        "| id | run | published, MB | emulated, MB | its bytes |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {pair.id} | {pair.run} | {pair.published_peak_bytes // 10**6} | {pair.peak_bytes // 10**6} "
            f"| {pair.peak_bytes:,} |"
            for pair in pairs
        ),
    ]


def _prints_alike(pair: Pair) -> bool:
    return pair.published_peak_bytes // 10**6 == pair.peak_bytes // 10**6


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"


def _named(versions: Path) -> str:
    found = json.loads((versions / MADE_WITH).read_text(encoding="utf-8"))["versions"]
    return ", ".join(f"{name} {version}" for name, version in found.items())


_LEFT_OUT = (
    "## What is not compared",
    "",
    "- NF4 runs (M1204 to M1229): bitsandbytes brings kernels and allocations of its own.",
)


def main(folder: Path) -> None:
    """Write the page, of the newest recordings there."""
    versions = sorted(path.parent for path in folder.glob(f"*/{MADE_WITH}"))
    if not versions:
        raise UsageError(f"{folder}: no recordings in it; make oracle")
    (folder / PAGE).write_text(page(folder, versions[-1]), encoding="utf-8")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except NooomError as error:
        sys.exit(f"nooom: {error}")
