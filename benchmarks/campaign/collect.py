"""The outputs of a campaign's runs as one canonical journal for each GPU: ``results/measured/<gpu>/``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nooom.benchmarks.journal import FILE_NAME, Entry, canonical, entries, read
from nooom.benchmarks.runner import LIBRARIES, is_finished
from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import file_name
from nooom.profiler.measurement import Measurement


def collect(folders: Iterable[Path], *, rehearsal: bool = False) -> dict[str, list[Measurement]]:
    """The records of these folders by GPU, one a case.

    Args:
        folders: of runs, each with journals in it.
        rehearsal: of phantoms; these and nothing else.

    Raises:
        UsageError: a record that isn't measured on cuda (or, rehearsing, emulated on a phantom), with its place; two
            sets of versions for one GPU.
    """
    wanted = ("emulated", "phantom") if rehearsal else ("measured", "cuda")
    found: dict[str, dict[str, Measurement]] = {}
    for folder in folders:
        for entry in entries(folder):
            record = _of(wanted, entry)
            of_gpu = found.setdefault(gpu_name(record), {})
            of_gpu[record.case_id] = _better(of_gpu.get(record.case_id), record)
    for name, records in found.items():
        check_versions(name, records.values())
    return {name: list(records.values()) for name, records in sorted(found.items())}


def _of(wanted: tuple[str, str], entry: Entry) -> Measurement:
    record = entry.measurement
    if (record.source, record.device) != wanted:
        said = f"{record.source} on {record.device}"
        raise UsageError(f"{entry.place}: {said}; only what was {' on '.join(wanted)} may stand in these results")
    if record.is_own_code:
        raise UsageError(f"{entry.place}: {record.label} is no case; only cases may stand in these results")
    return record


def _better(known: Measurement | None, other: Measurement) -> Measurement:
    """A case that was run again after it had failed counts as it ended; of two that finished, the first."""
    return other if known is None or (is_finished(other) and not is_finished(known)) else known


def gpu_name(record: Measurement) -> str:
    """The command's name for the record's GPU, or its own as a folder's name."""
    named = record.gpu or {}
    total = named.get("total_bytes")
    return file_name(str(named.get("name") or "unknown-gpu"), total if isinstance(total, int) else None)


def versions(record: Measurement) -> dict[str, str | None]:
    """Of the libraries that a record was made with."""
    return {name: record.fingerprint.get(name) for name in LIBRARIES}


def check_versions(where: str, records: Iterable[Measurement]) -> None:
    """Raises UsageError for records of several sets of versions: one file holds one."""
    sets = {tuple(versions(record).items()) for record in records}
    if len(sets) > 1:
        listed = "; ".join(", ".join(f"{name} {value}" for name, value in one) for one in sorted(sets, key=str))
        raise UsageError(f"{where}: results of several sets of versions, which can't stand in one file: {listed}")


def merge(folder: Path, records: Sequence[Measurement]) -> list[Measurement]:
    """Write a GPU's journal: these records, and what it had of other cases; returns all of them.

    Raises:
        UsageError: what is there was made with other versions.
    """
    file = folder / FILE_NAME
    earlier = {record.case_id: record for record in (read(file) if file.is_file() else ())}
    kept = list({**earlier, **{record.case_id: record for record in records}}.values())
    check_versions(str(file), kept)
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(canonical(record) for record in kept)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return list(read(file))
