"""The sides of a check: sets of measurements that are there, or that are made for it, here or in an environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nooom.benchmarks import gate
from nooom.benchmarks.journal import FILE_NAME, Entry
from nooom.formulas.errors import CannotMeasureError, NooomError
from nooom.profiler.measurement import Measurement, evidence

if TYPE_CHECKING:
    from nooom.benchmarks.devices import Device
    from nooom.benchmarks.runner import Options
    from nooom.formulas.case import Case

Key = tuple[str, gate.Group]
Runs = tuple[dict[Key, list[Measurement]], dict[Key, str]]
Again = Callable[[Sequence[Measurement], int], Runs]
"""Runs cases some more times, taken apart: the new records by :func:`gate.key`, and why there are none for others."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One set of figures, and how its cases are run once more."""

    name: str
    records: list[Measurement]
    again: Again
    was_run: bool
    """Whether it was run by this check: then what looks worse is taken apart without being asked for."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is run: a suite, or a case by its flags, or what the baseline has; and where."""

    suite: str | None
    flags: Mapping[str, Any]
    device: Device
    out: Path
    """Its measurements are kept there."""
    options: Options
    say: Callable[[str], None]

    @property
    def named(self) -> bool:
        """Whether the command line says which cases."""
        return self.suite is not None or bool(self.flags)

    def cases(self) -> tuple[Case, ...]:
        from nooom.benchmarks.suites.suite import asked_for

        return asked_for(self.suite, self.flags, self.device.name)


def measured(path: Path, options: Callable[[], Options]) -> Side:
    """What a file or folder holds; raises as :func:`gate.read_set` does."""
    records = [entry.measurement for entry in gate.read_set(path)]
    return Side(name=str(path), records=records, again=_here(options), was_run=False)


def _here(options: Callable[[], Options]) -> Again:
    def again(records: Sequence[Measurement], times: int) -> Runs:
        from nooom.benchmarks import repeats  # with the runner, which a check of two files needs not

        return repeats.again(records, times, options())

    return again


def run_here(asked: Asked, baseline: Sequence[Entry]) -> tuple[list[Entry], Side]:
    """Run the cases on this machine.

    Returns:
        The part of the baseline that the run answers for, and the run.

    Raises:
        CannotMeasureError: the baseline has no case of such a device.
        NooomError: as the runner raises.
    """
    from nooom.benchmarks import runner

    theirs = [entry for entry in baseline if _is_of(entry.measurement, asked.device)]
    if not theirs and not asked.named:
        has = ", ".join(sorted({str(gate.group(entry.measurement)) for entry in baseline}))
        raise CannotMeasureError(f"the baseline has no case of {_device(asked.device)}; it has: {has}")
    cases = asked.cases() if asked.named else _cases(theirs)
    planned = runner.plan(cases, asked.device, write_checkpoints=asked.suite is not None)
    # A baseline that says what its peaks are made of gets an answer in kind, and a successor.
    apart = any(phase.components is not None for entry in theirs for phase in entry.measurement.phases)
    records = _run(planned, dataclasses.replace(asked, options=dataclasses.replace(asked.options, attribute=apart)))
    theirs = of_asked(theirs, records, asked)
    return theirs, Side(
        name=f"run on {asked.device.name}", records=records, again=_here(lambda: asked.options), was_run=True
    )


def of_asked(baseline: Sequence[Entry], records: Sequence[Measurement], asked: Asked) -> list[Entry]:
    """The baseline's entries that the run answers for: where one case was asked for, nobody asked for the others."""
    if asked.suite is not None or not asked.flags:
        return list(baseline)
    ids = {record.case_id for record in records}
    return [entry for entry in baseline if entry.measurement.case_id in ids]


def _is_of(record: Measurement, device: Device) -> bool:
    """Whether a baseline's case can be run on that device, as far as a record tells."""
    if record.is_own_code or (record.source, record.device) != (device.source, device.name):
        return False
    return device.gpu is None or (record.gpu or {}).get("name") == device.gpu.device_name


def _device(device: Device) -> str:
    played = f", {device.gpu.device_name}" if device.gpu is not None else ""
    return f"{evidence(device.source, device.name)}{played}"


def _cases(entries: Sequence[Entry]) -> list[Case]:
    from nooom.formulas.case import Case

    return [Case.from_dict(entry.measurement.case) for entry in entries]


def _run(planned: Sequence[Any], asked: Asked) -> list[Measurement]:
    from nooom.benchmarks import runner
    from nooom.benchmarks.checkpoints import Checkpoints
    from nooom.benchmarks.journal import Journal

    folder = _empty(asked.out / "current")
    records = []
    with (
        Checkpoints(lambda what: asked.say(f"  writing a checkpoint of {what}")) as checkpoints,
        Journal(folder) as journal,
    ):
        options = dataclasses.replace(
            asked.options, prepare=checkpoints.prepare, on_case=lambda item: asked.say(f"  {item.case.label()}")
        )
        for record in runner.run(planned, asked.device, options):
            journal.append(record)
            records.append(record)
    return records


def _empty(folder: Path) -> Path:
    """A folder for this check's own measurements, without those of the last one: they would be measured twice.

    Nothing else in it is touched: it may be anyone's.
    """
    for name in (FILE_NAME, f"{Path(FILE_NAME).stem}.torn"):
        (folder / name).unlink(missing_ok=True)
    return folder


def run_in(asked: Asked, requirements: Path, gpu_flags: Sequence[str], place: str, name: str) -> Side:
    """Run the cases in the environment of a requirements file.

    Args:
        asked: what is run.
        requirements: pip's file; what it does not name comes from the environment that runs this.
        gpu_flags: as the command line has them.
        place: where below ``asked.out`` its measurements go.
        name: what the side is called.

    Raises:
        NooomError: an environment that can't be made, or a run that failed as a whole.
    """
    from nooom.benchmarks import environments

    python = environments.prepared(requirements, say=asked.say)
    run = environments.Run(
        device=asked.device.name, gpu_flags=gpu_flags, timeout_s=asked.options.timeout_s, name=str(requirements)
    )
    asked.say(f"{requirements}: running {len(asked.cases())} cases")
    records = environments.run_in(python, asked.cases(), run, _empty(asked.out / place))

    def again(doubted: Sequence[Measurement], times: int) -> Runs:
        found: dict[Key, list[Measurement]] = {}
        why: dict[Key, str] = {}
        wanted = {gate.key(record) for record in doubted}
        cases = [Case.from_dict(record.case) for record in doubted]
        for number in range(times):
            try:
                folder = _empty(asked.out / f"{place}-again-{number + 1}")
                for record in environments.run_in(python, cases, dataclasses.replace(run, attribute=True), folder):
                    if gate.key(record) in wanted:
                        found.setdefault(gate.key(record), []).append(record)
            except NooomError as error:
                why |= dict.fromkeys(wanted - found.keys(), str(error))
        return found, why

    from nooom.formulas.case import Case

    return Side(name=name, records=records, again=again, was_run=True)
