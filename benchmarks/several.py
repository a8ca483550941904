"""One case per GPU at a time, on a machine with several: ``--gpus``."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence

from nooom.benchmarks import runner
from nooom.benchmarks.devices import Device
from nooom.benchmarks.runner import Options, Planned
from nooom.profiler.measurement import Measurement


class _Shared:
    """An iterator that several threads draw from."""

    def __init__(self, items: Iterable[Planned]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()
        self._stopped = False

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> Planned:
        with self._lock:
            if self._stopped:
                raise StopIteration
            return next(self._items)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True


def run(planned: Iterable[Planned], devices: Sequence[Device], options: Options) -> Iterator[Measurement]:
    """As :func:`runner.run`, each GPU taking the next case when it has finished one; records come as they end.

    A GPU that can't be measured on, a busy one say, is given up with the case it was asked for, and the others go on.

    Raises:
        CannotMeasureError: in the end, why a GPU was given up.
    """
    if len(devices) == 1:
        yield from runner.run(planned, devices[0], options)
        return
    left = _Shared(planned)
    told: queue.SimpleQueue[Measurement | BaseException | None] = queue.SimpleQueue()

    def work(device: Device) -> None:
        try:
            for record in runner.run(left, device, options):
                told.put(record)
        except BaseException as error:  # raised again by who listens
            told.put(error)
        finally:
            told.put(None)

    for device in devices:
        # Daemons: after ^C nobody waits for them, and the cases end with this process.
        threading.Thread(target=work, args=(device,), name=f"gpu-{device.index}", daemon=True).start()
    try:
        yield from _heard(told, len(devices))
    finally:
        left.stop()


def _heard(told: queue.SimpleQueue[Measurement | BaseException | None], workers: int) -> Iterator[Measurement]:
    failed: BaseException | None = None
    while workers:
        said = told.get()
        if said is None:
            workers -= 1
        elif isinstance(said, BaseException):
            failed = failed or said
        else:
            yield said
    if failed is not None:
        raise failed
