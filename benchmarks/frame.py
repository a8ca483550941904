"""Measurements as one pandas table: a row for each phase of each record.  Every table here is made from it.

pandas is imported in here only; nothing imports this module before there is a table to make.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from nooom.benchmarks.journal import Entry, entries
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import EXPLANATION, Measurement, Phase

FIGURES = tuple(field.name for field in dataclasses.fields(Phase) if field.name not in ("name", *EXPLANATION))
"""The figures of a phase: integers of bytes, and seconds."""
VERSIONS = ("nooom", "torch", "transformers", "peft", "accelerate")
"""What a fingerprint says of the libraries, one column each."""

_DTYPES: dict[type, Any] = {int: "Int64", float: "Float64", str: "string", bool: "boolean"}
_COLUMNS: dict[str, str] = {
    **dict.fromkeys(("file", "case_id", "name", "source", "device", "gpu", "status", "weights"), "string"),
    **dict.fromkeys(("line", "record", "gpu_total_bytes", "retries"), "Int64"),
    **{name: _DTYPES[flag.kind] for name, flag in FLAGS.items()},
    "phase": "string",
    **{name: "Float64" if name == "seconds" else "Int64" for name in FIGURES},
    **dict.fromkeys(VERSIONS, "string"),
}


def load(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The measurements of a journal (``measurements.jsonl``), or of every journal under a folder.

    One row for each phase of each record: ``file`` and ``line`` (where the record stands), ``record`` (its number, from
    0: a case may have been measured twice), ``case_id``, ``name`` (of anyone's own code, which has no flags; <NA> for a
    case), ``source``, ``device``, ``gpu``, ``gpu_total_bytes``,
    ``status``, ``weights``, ``retries``, every case flag by its name, ``phase``, the phase's figures (bytes as
    integers; unknown is <NA>, never 0) and the versions of the libraries.
    A record without phases (it ran out of memory before the first ended, say) has one row whose phase is <NA>.

    Raises:
        UsageError: nothing there, or a line that is no measurement, with its file and number.
    """
    return load_all([path])


def load_all(paths: Iterable[str | os.PathLike[str]]) -> pd.DataFrame:
    """The measurements of several files or folders as one table; raises as :func:`load` does."""
    return as_frame([entry for path in paths for entry in _some(list(entries(Path(path))), path)])


def _some(found: list[Entry], path: str | os.PathLike[str]) -> list[Entry]:
    if not found:
        raise UsageError(f"{path}: no measurements in it; `nooom run` writes them")
    return found


def as_frame(records: Iterable[Entry | Measurement]) -> pd.DataFrame:
    """The table of :func:`load`, of records that are at hand; those that come from no file have none."""
    rows = [row for number, record in enumerate(records) for row in _rows(record, number)]
    table = {name: pd.array([row[name] for row in rows], dtype=kind) for name, kind in _COLUMNS.items()}  # type: ignore[call-overload]
    return pd.DataFrame(table)


def _rows(record: Entry | Measurement, number: int) -> Iterable[dict[str, Any]]:
    measurement = record.measurement if isinstance(record, Entry) else record
    place = (str(record.file), record.line) if isinstance(record, Entry) else (None, None)
    gpu = measurement.gpu or {}
    if wrong := _unusable(measurement):
        raise UsageError(f"{record.place}: {wrong}" if isinstance(record, Entry) else wrong)
    shared: dict[str, Any] = {
        "file": place[0],
        "line": place[1],
        "record": number,
        **{name: getattr(measurement, name) for name in ("case_id", "source", "device", "status", "weights")},
        "gpu": _text(gpu.get("name")),
        "gpu_total_bytes": _whole(gpu.get("total_bytes")),
        "retries": measurement.retries,
        "name": measurement.label if measurement.is_own_code else None,
        **(dict.fromkeys(FLAGS) if measurement.is_own_code else Case.from_dict(measurement.case).to_dict()),
        **{name: _text(measurement.fingerprint.get(name)) for name in VERSIONS},
    }
    if not measurement.phases:
        yield {**shared, "phase": None, **dict.fromkeys(FIGURES)}
    for phase in measurement.phases:
        yield {**shared, "phase": phase.name, **{name: getattr(phase, name) for name in FIGURES}}


def _unusable(measurement: Measurement) -> str | None:
    """What of a record no table can show: a phase that stands there twice, a name that a terminal would obey."""
    phases = [phase.name for phase in measurement.phases]
    twice = next((name for name in phases if phases.count(name) > 1), None)
    if twice is not None:
        return f"phase {ascii(twice)[:60]} stands there twice"
    names: dict[str, Any] = {"case_id": measurement.case_id, "device": measurement.device}
    names |= {
        "name of a phase": next((name for name in phases if not name.isprintable()), None),
        "name of the gpu": (measurement.gpu or {}).get("name"),
    }
    names |= {f"version of {name}": measurement.fingerprint.get(name) for name in VERSIONS}
    for what, text in names.items():
        if isinstance(text, str) and not text.isprintable():
            return f"{what} is {ascii(text)[:60]}, which is not printable"
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 < value < 1 << 63 else None


def case_of(row: Mapping[Any, Any]) -> Case:
    """The case of one row of the table, however pandas was asked for that row."""
    return Case.from_dict({name: _native(row[name]) for name in FLAGS})


def _native(value: Any) -> Any:
    if pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value  # pandas gives numpy's scalars here and there
