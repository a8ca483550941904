"""A suspicion is looked at again: the case in fresh processes, taken apart, and the median of all runs decides."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from nooom.benchmarks import devices, gate, runner
from nooom.formulas.case import Case
from nooom.formulas.errors import NooomError
from nooom.formulas.gpus import by_device_name
from nooom.profiler import hardware
from nooom.profiler.fingerprint import fingerprint
from nooom.profiler.measurement import Measurement, Phase
from nooom.profiler.regression import explained_phase

Key = tuple[str, gate.Group]
AGAIN = 2
"""Runs besides the one that raised the suspicion."""


def again(
    records: Sequence[Measurement], times: int, options: runner.Options
) -> tuple[dict[Key, list[Measurement]], dict[Key, str]]:
    """Run cases again where they were measured, ``times`` each and attributed.

    Returns:
        The new records by :func:`gate.key`, and for the cases that can't be run again here, why.
    """
    found: dict[Key, list[Measurement]] = {}
    why: dict[Key, str] = {}
    planned: dict[devices.Device, list[tuple[Key, runner.Planned]]] = {}
    for record in records:
        try:
            device = device_of(record)
            (item,) = runner.plan([Case.from_dict(record.case)], device)
            _same(item, record)
            planned.setdefault(device, []).append((gate.key(record), item))
        except NooomError as error:
            why[gate.key(record)] = str(error)
    attributing = dataclasses.replace(options, attribute=True)
    for device, items in planned.items():
        # Cases of one allocator stand together: another one takes another server, which takes seconds to start.
        in_order = sorted((item for _, item in items), key=lambda item: item.case.allocator)
        try:
            for record in runner.run([item for item in in_order for _ in range(times)], device, attributing):
                found.setdefault(gate.key(record), []).append(record)
        except NooomError as error:  # a GPU that is busy now, say
            why |= {which: str(error) for which, _ in items if which not in found}
    return found, why


def device_of(record: Measurement) -> devices.Device:
    """Where a record's case can be run once more.

    Raises:
        NooomError: nowhere here.
    """
    if record.is_own_code:
        raise NooomError("it is code of one's own, which nooom can't run")
    named = record.gpu or {}
    if record.device not in devices.PLAYED:
        device = devices.choose(record.device)
        names = [gpu.name for gpu in hardware.find_gpus()] if record.device == "cuda" else []
        if names and named.get("name") not in names:
            raise NooomError(f"it was measured on {named.get('name')}; here is {', '.join(names)}")
        return device
    gpu = by_device_name(str(named.get("name")), named.get("total_bytes"))
    if gpu is None:
        gpu = by_device_name(str(named.get("name")))
    if gpu is None:
        raise NooomError(f"no GPU in the table is called {named.get('name')}")
    total = named.get("total_bytes")
    return devices.choose(record.device, dataclasses.replace(gpu, total_bytes=total) if isinstance(total, int) else gpu)


def _same(planned: runner.Planned, record: Measurement) -> None:
    """Raises NooomError where it would be another model, or other libraries."""
    if planned.case_id != record.case_id:
        raise NooomError(f"{record.case['model']} is another model here than the one that was measured")
    now = fingerprint({})
    for name in runner.LIBRARIES:
        if record.fingerprint.get(name) != now.get(name):
            raise NooomError(f"it was measured with {name} {record.fingerprint.get(name)}; here is {now.get(name)}")


def median(records: Sequence[Measurement]) -> Measurement:
    """Of several runs of one case: how most of them ended, and of each phase the median peak, taken apart if any was.

    Of an even number the lower one: a suspicion that half of the runs don't share is none.
    """
    most = statistics.mode(record.status for record in records)
    alike = [record for record in records if record.status == most]
    names = dict.fromkeys(phase.name for record in alike for phase in record.phases)
    phases = [
        _median_phase([phase for record in alike for phase in record.phases if phase.name == name]) for name in names
    ]
    return dataclasses.replace(alike[0], phases=phases)


def _median_phase(phases: Sequence[Phase]) -> Phase:
    known = [phase.peak_allocated_bytes for phase in phases if phase.peak_allocated_bytes is not None]
    if not known:
        return phases[0]
    middle = statistics.median_low(known)
    chosen = next(phase for phase in phases if phase.peak_allocated_bytes == middle)
    return explained_phase(chosen, phases)


def explained(record: Measurement, others: Iterable[Measurement]) -> Measurement:
    """A record as it is, its phases taken apart as other runs of it say."""
    said = [phase for other in others for phase in other.phases]
    return dataclasses.replace(record, phases=[explained_phase(phase, said) for phase in record.phases])


def replaced(records: Sequence[Measurement], new: Mapping[Key, Measurement]) -> list[Measurement]:
    return [new.get(gate.key(record), record) for record in records]
