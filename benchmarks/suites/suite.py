"""Suites: named lists of cases, each a TOML file here or anywhere.

description = "..."
[defaults]                  # flags of every case
model = "HuggingFaceTB/SmolLM2-135M"
[[case]]                    # one case; a list of values makes one case of each
workload = "sft"
seq = [128, 256]
on = "cpu"                  # only on this device, or on any of a list
oom_on = ["h100-80gb"]      # the GPUs on which this is expected to run out of memory
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nooom.benchmarks import devices
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.errors import UsageError, nearest
from nooom.formulas.gpus import GPUS

_HERE = Path(__file__).parent
_MAX_CASES = 100_000


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    description: str
    cases: tuple[Case, ...]
    oom_on: Mapping[Case, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """The GPUs, by the command's names, on which a case is expected to run out of memory."""


def names() -> list[str]:
    """The suites that ship."""
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def load_suite(name: str, device: str) -> Suite:
    """The suite of that name, or in that file, as it is run on ``device``.

    Raises:
        UsageError: no such suite, no TOML, or a case that describes no job; names the file and the case's number.
    """
    path = _HERE / f"{name}.toml" if name in names() else Path(name)
    if path.suffix != ".toml" or not path.is_file():
        raise UsageError(f"no suite {name!r}; {nearest(name, names())}; or the path of a .toml file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not a suite: {' '.join(str(error).split())[:200]}") from error
    for key in content:
        if key not in ("description", "defaults", "case"):
            raise UsageError(f"{path}: unknown key {key!r}; {nearest(key, ['description', 'defaults', 'case'])}")
    found = list(_cases(content, path, device))
    if not found:
        raise UsageError(f"{path}: no [[case]] for device {device}")
    return Suite(
        name=path.stem,
        description=str(content.get("description", "")),
        cases=tuple(case for case, _ in found),
        oom_on={case: gpus for case, gpus in found if gpus},
    )


def asked_for(suite: str | None, flags: Mapping[str, Any], device: str) -> tuple[Case, ...]:
    """The cases of a command line: a suite's, every one with the flags that were given, or the one of the flags.

    Raises:
        UsageError: as :func:`load_suite`, or neither a suite nor a model and a workload.
    """
    if suite is None:
        for name in ("model", "workload"):
            if name not in flags:
                raise UsageError(f"give a suite (such as demo) or a case: --{name} is missing")
        return (Case.from_dict(flags),)
    cases = load_suite(suite, device).cases
    return tuple(Case.from_dict({**_written(case), **flags}) for case in cases) if flags else cases


def as_toml(cases: Iterable[Case]) -> str:
    """A suite's file with these cases, every flag written out.

    Their values are text, numbers and booleans, which JSON writes as TOML does.
    """
    tables = ({name: value for name, value in case.to_dict().items() if value is not None} for case in cases)
    return "\n".join(
        "[[case]]\n" + "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in table.items())
        for table in tables
    )


def _written(case: Case) -> dict[str, Any]:
    """The flags of a case that differ from what would be filled in anyway."""
    base = Case(model=case.model, workload=case.workload)
    return {
        name: getattr(case, name)
        for name in FLAGS
        if name in ("model", "workload") or getattr(case, name) != getattr(base, name)
    }


def _cases(content: dict[str, Any], path: Path, device: str) -> Iterator[tuple[Case, tuple[str, ...]]]:
    defaults, written = content.get("defaults", {}), content.get("case", [])
    if not isinstance(defaults, dict) or not isinstance(written, list):
        raise UsageError(f"{path}: [defaults] must be a table and [[case]] a list of tables")
    for number, flags in enumerate(written, 1):
        try:
            if not isinstance(flags, dict):
                raise UsageError("not a table")
            merged = {**defaults, **flags}
            on = _known("on", merged.pop("on", device), devices.NAMES)
            gpus = _known("oom_on", merged.pop("oom_on", []), GPUS)
            if device in on:
                yield from ((case, gpus) for case in _grid(merged))
        except UsageError as error:
            raise UsageError(f"{path}: case {number}: {error}") from error


def _known(key: str, value: Any, known: Collection[str]) -> tuple[str, ...]:
    """One name or a list of them; raises UsageError for one that isn't known."""
    names = value if isinstance(value, list) else [value]
    for name in names:
        if name not in known:
            raise UsageError(f"{key} is {name!r}; {nearest(str(name), known)}")
    return tuple(names)


def _grid(flags: dict[str, Any]) -> Iterator[Case]:
    """One case for each combination of the values that are lists."""
    axes = [value if isinstance(value, list) else [value] for value in flags.values()]
    size = 1
    for axis in axes:
        size *= len(axis)
    if size > _MAX_CASES:
        raise UsageError(f"{size} combinations; at most {_MAX_CASES}")
    for values in itertools.product(*axes):
        yield Case.from_dict(dict(zip(flags, values, strict=True)))
