"""``python -m nooom.benchmarks.accuracy results README.md``: dry runs of what others published, how far off.

Each record of ``results/measured/public`` is dry-run on the GPU that it was measured on and becomes one line of
``results/dryrun/published.jsonl``; :mod:`nooom.benchmarks.reports.accuracy` makes ``accuracy.md`` and ``accuracy.csv``
of the lines.  No record has a rule of its own: what a case says, or what can't be run here, decides how it is run.

A run that is stopped goes on where it was: finished runs wait in the folder ``--work`` until all are there.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import devices, runner
from nooom.benchmarks.journal import FILE_NAME, Journal, read
from nooom.benchmarks.oracle import given_flags
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import NooomError
from nooom.formulas.gpus import find
from nooom.profiler.fingerprint import fingerprint
from nooom.profiler.measurement import Measurement

FOLDER, LINES, MADE_WITH = "dryrun", "published.jsonl", "made_with.json"
PUBLISHED = RESULTS / "measured" / "public"
GPU = "a100-80gb"
"""All that is published was measured on it."""
LAST_TOKENS = 4
"""A token takes Python a quarter of a second, and the longer the cache, the more memory it takes.  So of a longer
generation the last tokens are run, after a prompt that stands for all that came before; its prompt is run apart."""
CASES_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """One dry run, and which of its phases are not the published run's."""

    case: Case
    without: frozenset[str] = frozenset()


def parts(published: Case) -> list[Part]:
    """How a published case is dry-run: whole, or its prompt and its last tokens.  Empty where it can't be.

    In flash-attn's place stands ``sdpa``, which chooses flash attention where there is no mask.  A checkpoint's place
    take random weights, and then loading doesn't count: drawing weights takes an output matrix of its own even where
    the embeddings are one, and a checkpoint that is loaded does not.
    """
    case = _runnable(published)
    if case.quantization in FLAGS["quantization"].described:
        return []
    drawn = frozenset({"load"} if published.pretrained else ())
    if case.workload != "inference" or case.new_tokens <= LAST_TOKENS:
        return [Part(case=case, without=drawn)]
    before = case.seq + case.new_tokens - LAST_TOKENS
    return [
        Part(case=dataclasses.replace(case, new_tokens=0), without=drawn),
        Part(
            case=dataclasses.replace(case, seq=before, new_tokens=LAST_TOKENS), without=frozenset({"load", "prefill"})
        ),
    ]


def _runnable(published: Case) -> Case:
    attention = "sdpa" if published.attention == "flash_attention_2" else published.attention
    return dataclasses.replace(published, attention=attention, pretrained=False)


def id_of(record: Measurement) -> str:
    """The manifest's id of the published figure."""
    return str(record.fingerprint["published"][0])


def published() -> list[Measurement]:
    """The records that count, in the manifest's order."""
    return list(read(PUBLISHED))


# --- the dry runs ------------------------------------------------------------------------------------------------


def written(record: Measurement, found: Sequence[tuple[Part, Measurement]]) -> str:
    """A record's line: ``{"id": manifest's, "runs": [{"case": flags, "phases": {name: bytes}}], "in": phase,
    "peak_bytes": bytes}``.

    The peak is that of the phase that was published; of ``peak``, which is none, that of the largest.
    """
    runs: list[dict[str, Any]] = []
    peaks: dict[str, int] = {}
    for part, measured in found:
        phases = {phase.name: phase.peak_allocated_bytes for phase in measured.phases if phase.name not in part.without}
        runs.append({"case": given_flags(part.case), "phases": phases})
        peaks |= {name: size for name, size in phases.items() if size is not None}
    (published_phase,) = record.phases
    name = published_phase.name if published_phase.name in peaks else max(peaks, key=lambda phase: peaks[phase])
    line = {"id": id_of(record), "runs": runs, "in": name, "peak_bytes": peaks[name]}
    return json.dumps(line, separators=(",", ":"))


def run(records: Iterable[Measurement], work: Path | None = None) -> list[str]:
    """The lines of the records that can be dry-run, sorted.

    Args:
        records: published ones.
        work: where finished runs wait for the others; None keeps them nowhere.

    Raises:
        NooomError: a run that did not finish.
    """
    wanted = [(record, parts(Case.from_dict(record.case))) for record in records]
    done = measured([part.case for _, found in wanted for part in found], work)
    lines = [
        written(record, [(part, done[part.case.case_id()]) for part in found]) for record, found in wanted if found
    ]
    return sorted(lines)


def measured(cases: Sequence[Case], work: Path | None = None) -> Mapping[str, Measurement]:
    """The dry run of each case, by case_id; arguments and errors as :func:`run`'s."""
    # The peak of a run that would not fit is a prediction all the same.
    device = dataclasses.replace(devices.choose("dryrun", find(GPU)), capped=False)
    planned = runner.plan(cases, device)
    done = {}
    if work is not None and (work / FILE_NAME).is_file():
        done = {record.case_id: record for record in read(work / FILE_NAME) if record.status == "ok"}
    left = [item for item in planned if item.case_id not in done]
    options = runner.Options(timeout_s=CASES_LIMIT_S, on_case=lambda item: _say(item.case.label()))
    failed = []
    for record in runner.run(left, device, options):
        if record.status != "ok":
            failed.append(f"{Case.from_dict(record.case).label()}: {(record.error or {}).get('message')}")
            continue
        done[record.case_id] = record
        if work is not None:
            with Journal(work) as journal:
                journal.append(record)
    if failed:
        raise NooomError(f"{len(failed)} runs failed, the first: {failed[0]}")
    return done


def make(folder: Path, work: Path) -> None:
    """Dry-run every record and write the lines, and what they were made with.

    Args:
        folder: ``results/dryrun``.
        work: where finished runs wait.
    """
    versions = {name: fingerprint({})[name] for name in runner.LIBRARIES}
    lines = run(published(), work / "_".join(f"{name}-{version}" for name, version in versions.items()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LINES).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    made_with = {"versions": versions, "gpu": GPU}
    (folder / MADE_WITH).write_text(json.dumps(made_with, indent=2) + "\n", encoding="utf-8")


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    """The committed lines by id."""
    found = [json.loads(text) for text in (folder / LINES).read_text(encoding="utf-8").splitlines()]
    return {line["id"]: line for line in found}


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m nooom.benchmarks.accuracy", description="How far off dry runs are."
    )
    parser.add_argument("results", type=Path, help="the folder of results")
    parser.add_argument("readme", type=Path, help="where the short table goes")
    parser.add_argument("--work", type=Path, default=Path("build/accuracy"), help="where finished runs wait")
    given = parser.parse_args(arguments)
    from nooom.benchmarks.reports.accuracy import write

    try:
        make(given.results / FOLDER, given.work)
        write(given.results, given.readme)
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
