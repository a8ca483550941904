"""``python -m nooom.benchmarks.published FOLDER``: figures that others published, as measurements.

``FOLDER/manifest.csv`` says of each figure where it stands, what was printed there and, for those that are used, which
case it was.  ``measurements.jsonl`` and ``README.md`` beside it are made from it.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from nooom.benchmarks.journal import FILE_NAME
from nooom.benchmarks.models.zoo import names, resolve_case
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import NooomError, UsageError, nearest
from nooom.profiler.measurement import Measurement, Phase

MANIFEST = "manifest.csv"
USES = ("accuracy", "end", "no")
"""accuracy: a record of its own; end: the ``end_allocated_bytes`` of the record that it names; no: neither, see why."""

_UNITS = {"B": 1, "MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30}
_ROUNDINGS = ("none", "nearest", "down")
_PLACE = ("repository", "path", "commit", "gpu", "metric")
_PRINTED = ("printed", "unit", "rounding")
_CASE = (
    "model", "workload", "batch", "seq", "new_tokens", "dtype", "quantization", "autocast", "attention", "optimizer",
    "checkpointing", "lora_rank", "lora_targets", "lora_dropout", "lora_dtype", "logits", "decoding", "pretrained",
)  # fmt: skip
_VERSIONS = ("torch", "transformers", "peft", "accelerate", "trl", "flash_attn")
COLUMNS = ("id", "use", "record", "why", *_PLACE, *_PRINTED, "published_model", "phase", *_CASE, *_VERSIONS, "notes")


@dataclass(frozen=True)
class Figure:
    """One row of the manifest: cells as text, an empty one is unknown; and where it stands, for messages."""

    cells: Mapping[str, str]
    place: str

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def error(self, what: str) -> UsageError:
        return UsageError(f"{self.place}: {what}")

    @property
    def where(self) -> str:
        """Repository, commit and file, as one word that can be looked up."""
        commit = f"@{self['commit']}" if self["commit"] else ""
        return f"{self['repository']}{commit}:{self['path']}"

    def size_bytes(self) -> tuple[int, int]:
        """The figure in bytes, and how far the truth may lie to either side because of how it was printed.

        Rounded to the nearest, it is what was printed; cut off, it is the middle of all that would be printed so.
        """
        for column, known in (("unit", tuple(_UNITS)), ("rounding", _ROUNDINGS)):
            if self[column] not in known:
                raise self.error(f"{column} is {self[column]!r}; {nearest(self[column], known)}")
        try:
            printed = Decimal(self["printed"])
        except InvalidOperation:
            printed = Decimal("NaN")
        exponent = printed.as_tuple().exponent
        if not isinstance(exponent, int) or not 0 < printed < 1 << 50:
            raise self.error(f"printed is {self['printed'][:40]!r}; a positive decimal number is right")
        unit = _UNITS[self["unit"]]
        exact = printed * unit
        if self["rounding"] == "none":
            if exact != int(exact):
                raise self.error(f"{self['printed']} {self['unit']} is no whole number of bytes, so it was rounded")
            return int(exact), 0
        half = Decimal(1).scaleb(min(exponent, 0)) * unit / 2
        return round(exact + half if self["rounding"] == "down" else exact), round(half)

    def case(self) -> Case:
        """The case of the run; flags without a cell take their defaults.  Raises UsageError with the row's place."""
        try:
            case = Case.from_dict({name: _typed(name, self[name]) for name in _CASE if self[name]})
            if case.model not in names():
                raise UsageError(f"model {case.model!r} is not in the zoo; {nearest(case.model, names())}")
            resolve_case(case)  # refuses a case that is longer than the model's positions
        except UsageError as error:
            raise self.error(str(error)) from error
        return case


def figures(manifest: Path) -> list[Figure]:
    """The rows of a manifest.

    Raises:
        UsageError: unreadable, other columns, a row that is too short or too long, an id that stands there twice, an
            unknown use, no reason, a figure that is no number of bytes; with file and line.
    """
    found = list(_rows(manifest))
    seen: dict[str, str] = {}
    for figure in found:
        if figure["use"] not in USES:
            raise figure.error(f"use is {figure['use']!r}; {nearest(figure['use'], USES)}")
        for column in ("id", "why", "repository", "path"):
            if not figure[column]:
                raise figure.error(f"{column} is empty")
        if figure["id"] in seen:
            raise figure.error(f"id {figure['id']} stands at {seen[figure['id']]} too")
        seen[figure["id"]] = figure.place
        figure.size_bytes()
    return found


def _rows(manifest: Path) -> Iterator[Figure]:
    try:
        text = manifest.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{manifest}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{manifest}: not UTF-8 text (byte {error.start})") from error
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = next(reader, [])
        if sorted(header) != sorted(COLUMNS):
            odd = sorted(set(header).symmetric_difference(COLUMNS)) or ["a column twice"]
            raise UsageError(f"{manifest}:1: not the columns of a manifest; odd: {', '.join(odd)[:200]}")
        for cells in reader:
            place = f"{manifest}:{reader.line_num}"
            if len(cells) != len(header):
                raise UsageError(f"{place}: {len(cells)} cells; {len(header)}, one for each column, is right")
            yield Figure(dict(zip(header, (cell.strip() for cell in cells), strict=True)), place)
    except csv.Error as error:
        raise UsageError(f"{manifest}:{reader.line_num}: not CSV: {error}") from error


def measurements(manifest: Path) -> list[Measurement]:
    """A record for each row whose use is ``accuracy``, in the manifest's order.

    Raises:
        UsageError: as :func:`figures`; a row that describes no case, an ``end`` without its record, or two records
            of the same case under the same versions; with file and line.
    """
    found = figures(manifest)
    ends = _ends(found)
    same: dict[tuple[str, ...], str] = {}
    records = []
    for figure in found:
        if figure["use"] != "accuracy":
            continue
        record = _record(figure, ends.get(figure["id"]))
        run = (record.case_id, *(figure[name] for name in _VERSIONS))
        if run in same:
            raise figure.error(f"the same case under the same versions as {same[run]}")
        same[run] = figure["id"]
        records.append(record)
    return records


def _ends(found: Sequence[Figure]) -> dict[str, Figure]:
    """What was allocated at the end, by the id of the run's peak."""
    peaks = {figure["id"]: figure for figure in found if figure["use"] == "accuracy"}
    ends: dict[str, Figure] = {}
    for figure in found:
        name = figure["record"]
        if figure["use"] != "end":
            if name:
                raise figure.error(f"record is {name!r}; only an end belongs to another row's record")
            continue
        if name not in peaks:
            raise figure.error(f"record is {name!r}; the id of the same run's accuracy row is right")
        odd = [column for column in ("repository", "path", "commit", "gpu", *_CASE, *_VERSIONS)
               if figure[column] != peaks[name][column]]  # fmt: skip
        if odd:
            raise figure.error(f"not the same run as {name}: {', '.join(odd)}")
        if name in ends:
            raise figure.error(f"{ends[name]['id']} is the end of {name} too")
        ends[name] = figure
    return ends


def _record(figure: Figure, end: Figure | None) -> Measurement:
    for column in ("commit", "gpu", "published_model", "phase"):
        if not figure[column]:
            raise figure.error(f"{column} is empty")
    case = figure.case()
    peak_bytes, rounding_bytes = figure.size_bytes()
    parts = [figure] if end is None else [figure, end]
    phase = Phase(
        name=figure["phase"],
        peak_allocated_bytes=peak_bytes,
        end_allocated_bytes=end.size_bytes()[0] if end else None,
    )
    return Measurement(
        case_id=case.case_id(),
        case=case.to_dict(),
        source="measured",
        device="cuda",
        status="ok",
        weights="pretrained" if case.pretrained else "random",
        gpu={"name": figure["gpu"], "total_bytes": None},
        phases=[phase],
        fingerprint={
            "published": [part["id"] for part in parts],
            "where": figure.where,
            "as_printed": [f"{part['printed']} {part['unit']}" for part in parts],
            "rounding_bytes": rounding_bytes,
            "published_model": figure["published_model"],
            **{name: figure[name] or None for name in (*_VERSIONS, "notes")},
        },
    )


def _typed(name: str, cell: str) -> Any:
    """A cell as its flag's type; text that is none of it is left for the case to refuse."""
    kind = FLAGS[name].kind
    if kind is bool:
        return {"true": True, "false": False}.get(cell, cell)
    try:
        return kind(cell)
    except ValueError:
        return cell


# --- the files made from it --------------------------------------------------------------------------------------


def as_journal(records: Sequence[Measurement]) -> str:
    """One line a record, as ``measurements.jsonl`` has them."""
    return "".join(json.dumps(record.to_json(), allow_nan=False) + "\n" for record in records)


def as_readme(found: Sequence[Figure]) -> str:
    """What the folder holds: the sources, what was used and why not, and how a row becomes a case."""
    uses = Counter(figure["use"] for figure in found)
    counts = {"figures": len(found), "records": uses["accuracy"], "ends": uses["end"], "unused": uses["no"]}
    return _README.format(**counts, sources=_sources(found), reasons=_reasons(found))


def _sources(found: Sequence[Figure]) -> str:
    rows: dict[str, list[Figure]] = {}
    for figure in found:
        rows.setdefault(figure.where, []).append(figure)
    lines = ["| source | GPU | torch, transformers | " + " | ".join(USES) + " |", "|---|---|---|--:|--:|--:|"]
    for where, part in rows.items():
        gpus = ", ".join(dict.fromkeys(figure["gpu"] for figure in part))
        versions = [", ".join(dict.fromkeys(figure[name] or "-" for figure in part)) for name in _VERSIONS[:2]]
        counts = Counter(figure["use"] for figure in part)
        numbers = " | ".join(str(counts[use]) for use in USES)
        lines.append(f"| {where} | {gpus} | {', '.join(versions)} | {numbers} |")
    return "\n".join(lines)


def _reasons(found: Sequence[Figure]) -> str:
    counts = Counter((figure["use"], figure["why"]) for figure in found)
    ordered = sorted(counts.items(), key=lambda item: (USES.index(item[0][0]), -item[1], item[0][1]))
    lines = ["| use | figures | why |", "|---|--:|---|"]
    return "\n".join([*lines, *(f"| {use} | {count} | {why} |" for (use, why), count in ordered)])


_README = """\
# Memory that others measured

Made from [`manifest.csv`](manifest.csv) by `make public-results`; change that file, not this one.

The manifest has {figures} published figures of which the quantity, the unit and the settings are known: one row each,
with the repository, file and commit where it stands and what was printed there.  {records} of them are the records of
[`measurements.jsonl`](measurements.jsonl), {ends} more are what was allocated when one of these runs had ended, and
{unused} are not used.  No figure was measured by nooom, none is estimated, and what a source does not say is left
empty: `null` in the records.

## Sources

{sources}

A source without `@commit` was read at its newest state, and which commit that was is not known.

## What is used

{reasons}

## How a row becomes a case

The columns from `model` to `pretrained` are case flags; an empty cell takes the flag's default.  The figure is the
`peak_allocated_bytes` of the one phase that the source measured, named in `phase`: `prefill` is one forward pass over
the prompt, `peak` is the whole run.  An `end` row's figure becomes `end_allocated_bytes` of the record it names.  Ids
are the manifest's own.

| manifest | record |
|---|---|
| `published_model` | fingerprint; `model` is the zoo's of the same shape: Instruct's base, a mirror's original |
| `printed`, `unit`, `rounding` | `peak_allocated_bytes`; fingerprint: `as_printed`, `rounding_bytes` |
| `repository`, `path`, `commit` | fingerprint: `where` |
| `torch` to `flash_attn`, `notes` | fingerprint |
| `gpu` | `gpu.name` as published; its size is not published, so `gpu.total_bytes` is null |

## Traps

- **Units.**  QwenLM's page says GB, and its script divides by 1024^3; optimum-benchmark's MB are 10^6 bytes, Liger's
  are 2^20.  `unit` is what the number is, not what the page calls it.
- **Rounding.**  `rounding_bytes` is how far the truth may lie to either side of the figure: two decimals of a GiB are
  5.4 MB, more than 0.5 % of the smallest model here.  optimum-benchmark cuts its MB off (`int(bytes * 1e-6)`), so its
  figures are the middle of that MB.  0 is exact bytes.
- **Loading counts** in QwenLM's figures: the peak is never reset.  optimum-benchmark resets it before each phase, and
  the HF Trainer's memory tracker before training.
- **Old versions.**  transformers 4.35 keeps a tuple cache that `torch.cat` grows (twice the cache at the peak of
  `generate`), casts every logit of the prefill to fp32 and keeps tables of rotary positions in each layer.  A formula
  of today's transformers is not wrong because these figures are higher.
- **Checkpointing** was the reentrant kind in the fine-tuning runs as far as their settings tell (transformers' default
  then); the case flag is the other one.  Both keep each layer's input.
- **NF4** is bitsandbytes' with double quantization, and norms, embeddings and head stay in bf16: the plugin's own
  preparation casts nothing.  peft's `prepare_model_for_kbit_training` casts them to fp32, so those runs are left out.
- **LoRA targets** are the modules of the source's list that the model has: santacoder's only one is `c_attn`.  The
  adapter's alpha is 16, which takes no memory.
- **Packed to exactly** the given length: no padding, and no sample is shorter.
- **Random weights.**  optimum-benchmark's runs were made with `no_weights`; their `weights` are `random`.
"""


def publish(folder: Path) -> None:
    """Write ``measurements.jsonl`` and ``README.md`` anew; raises UsageError as :func:`measurements` does."""
    manifest = folder / MANIFEST
    records = measurements(manifest)
    (folder / FILE_NAME).write_text(as_journal(records), encoding="utf-8")
    (folder / "README.md").write_text(as_readme(figures(manifest)), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Exits with one line and the error's code where something is wrong."""
    try:
        if len(arguments) != 1:
            raise UsageError(f"python -m nooom.benchmarks.published FOLDER, where FOLDER holds a {MANIFEST}")
        publish(Path(arguments[0]))
    except NooomError as problem:
        print(f"published: {problem}", file=sys.stderr)
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
