"""The CUDA instrument on a phantom: the same readings, and the answers that a GPU would have given to the program."""

from __future__ import annotations

from typing import Any

from nooom.profiler.instruments.cuda import CudaInstrument


class PhantomInstrument(CudaInstrument):
    """Reads what :class:`CudaInstrument` reads, beside known values for what the program asks the device."""

    name = "phantom"

    def __init__(self) -> None:
        super().__init__(allow_busy=False)
        self._known: Any = None

    def open(self) -> None:
        """As on a GPU; raises as there."""
        from nooom.profiler.phantom.program import prepare

        super().open()
        self._known = prepare()
        self._known.__enter__()

    def describe(self) -> dict[str, Any]:
        """Besides what the CUDA instrument says: which answers were invented."""
        from nooom.profiler.known_values import summary

        invented = summary(self._known.invented.most_common()) if self._known is not None else []
        return {**super().describe(), "invented_answers": invented}

    def close(self) -> None:
        if self._known is not None:
            self._known.__exit__(None, None, None)
        super().close()
