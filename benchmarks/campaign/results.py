"""``python -m nooom.benchmarks.campaign.results DIR...``: a campaign's outputs as committed results.

Writes ``results/measured/<gpu>/measurements.jsonl``, calibration tables, the claims' page, ``differences.md`` and the
table between README's markers.  Refuses what wasn't measured on a GPU; with ``--rehearsal`` it takes what phantoms
said, and nothing else, and writes under ``build/`` alone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nooom.benchmarks import cost, verdicts
from nooom.benchmarks.campaign import causes, report
from nooom.benchmarks.campaign.collect import collect, merge
from nooom.benchmarks.campaign.differences import Difference, differences, of_run, recorded
from nooom.benchmarks.claim_checks.evidence import Evidence
from nooom.benchmarks.commands.calibrate import tables
from nooom.benchmarks.journal import read
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.reports.calibration import write
from nooom.benchmarks.runner import is_finished
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError, UsageError
from nooom.profiler.measurement import Measurement

REHEARSED = Path("build/rehearsal/results")
"""Where a rehearsal writes: a folder that git ignores."""


_CLAIMS = re.compile(r"(are tested one by one: )\d+(, of which )\d+")
"""Where README counts the claims: new measurements may move a verdict."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where everything goes."""

    results: Path
    """Of ``measured/``, ``calibration/`` and the recordings of phantoms."""
    claims: Path
    readme: Path
    """Its table is renewed; read from ``template`` where that is given."""
    template: Path | None = None

    @classmethod
    def committed(cls) -> Places:
        return cls(results=Path("results"), claims=Path("docs/claims.md"), readme=Path("README.md"))

    @classmethod
    def rehearsed(cls) -> Places:
        """Under build/, and nowhere else; what an earlier rehearsal left there goes."""
        shutil.rmtree(REHEARSED, ignore_errors=True)
        REHEARSED.mkdir(parents=True)
        return cls(
            results=REHEARSED,
            claims=REHEARSED / "claims.md",
            readme=REHEARSED / "README.md",
            template=Path("README.md"),
        )


def publish(
    folders: Sequence[Path], places: Places, *, rehearsal: bool = False, emulated: Sequence[Path] = ()
) -> list[str]:
    """Write everything; returns what there is to say, line by line.

    Args:
        folders: outputs of runs.
        places: where to.
        rehearsal: whether these are of phantoms.
        emulated: outputs of runs on phantoms to hold against, besides what ``results/emulated`` has recorded.

    Raises:
        UsageError: as :func:`collect` and :func:`merge`, and a README without markers.
    """
    by_gpu = collect(folders, rehearsal=rehearsal)
    records = {gpu: merge(places.results / "measured" / gpu, found) for gpu, found in by_gpu.items()}
    everything = [record for found in records.values() for record in found]
    said = [_counted(gpu, found) for gpu, found in records.items()]
    said += _calibrated([places.results / "measured" / gpu for gpu in records], places.results / "calibration")
    judged = verdicts.verdicts(Evidence() if rehearsal else Evidence(places.results))
    places.claims.write_text(verdicts.as_markdown(judged), encoding="utf-8")
    played = recorded(Path("results/emulated"))
    for key, found in of_run(record for folder in emulated for record in read(folder)).items():
        played.setdefault(key, []).extend(found)
    rows = list(differences(everything, played))
    page = _reported(rows, places, judged, rehearsal=rehearsal)
    return [*said, *page, *([] if rehearsal else _timed(everything))]  # a phantom's time says nothing of a GPU's


def _counted(gpu: str, records: Sequence[Measurement]) -> str:
    failed = [record for record in records if not is_finished(record)]
    ended = ", ".join(f"{Case.from_dict(record.case).label()} ({record.status})" for record in failed)
    oom = sum(record.status == "oom" for record in records)
    return f"{gpu}: {len(records)} cases, {oom} out of memory, {len(failed)} failed{': ' + ended if ended else ''}"


def _calibrated(folders: Sequence[Path], out: Path) -> list[str]:
    made = [path for table in tables(folders) for path in write(table, out)]
    return [f"calibration: {path}" for path in made if path.suffix == ".md"]


def _reported(
    rows: Sequence[Difference], places: Places, judged: Sequence[verdicts.Verdict], *, rehearsal: bool
) -> list[str]:
    known, words = causes.load(), report.EVIDENCE[rehearsal]
    page = places.results / "measured" / "differences.md"
    page.write_text(report.page(rows, known, words, rehearsal=rehearsal), encoding="utf-8")
    lost = report.unknown(rows, known)
    text = (places.template or places.readme).read_text(encoding="utf-8")
    renewed = report.with_summary(text, rows, words, lost)
    if renewed is None:
        raise UsageError(f"no place for the table: {places.readme} needs {report.BEGIN} and {report.END}")
    broken = sum(verdict.broken for verdict in judged)
    counted = _CLAIMS.sub(rf"\g<1>{len(judged)}\g<2>{broken}", renewed)
    places.readme.write_text(counted, encoding="utf-8")
    return [f"{page}: {side}: {count} differences with {causes.UNKNOWN}" for side, count in lost.items()]


def _timed(records: Iterable[Measurement]) -> list[str]:
    """How the estimate of time did: it has to be seen whether budgets hold."""
    ratios = []
    for record in records:
        case, took = Case.from_dict(record.case), record.fingerprint.get("wall_s")
        if took and record.status == "ok":
            ratios.append(took / cost.seconds(case, resolve_case(case)[1]))
    if not ratios:
        return []
    middle, worst = statistics.median(ratios), max(ratios)
    return [f"time: cases took {middle:.2f} of their estimate in the median, {worst:.2f} at most"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nooom.benchmarks.campaign.results", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="outputs of runs")
    parser.add_argument("--emulated", action="append", type=Path, default=[], help="output of a phantom's run")
    parser.add_argument("--rehearsal", action="store_true", help="what phantoms said; writes under build/ alone")
    given = parser.parse_args(arguments)
    places = Places.rehearsed() if given.rehearsal else Places.committed()
    try:
        lines = publish(given.folders, places, rehearsal=given.rehearsal, emulated=given.emulated)
    except NooomError as error:
        print(f"nooom: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
