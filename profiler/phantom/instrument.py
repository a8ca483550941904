"""The CUDA instrument on a phantom: the same readings, and the answers that a GPU would have given to the program."""

from __future__ import annotations

import re
from typing import Any

from nooom.formulas.errors import CannotMeasureError
from nooom.profiler.instruments.cuda import CudaInstrument


class PhantomInstrument(CudaInstrument):
    """Reads what :class:`CudaInstrument` reads, beside known values for what the program asks the device."""

    name = "phantom"

    def __init__(self) -> None:
        super().__init__(allow_busy=False)
        self._known: Any = None

    def open(self) -> None:
        """As on a GPU; raises as there, and for a GPU that torch has no kernels for: there it would fail."""
        import torch

        from nooom.profiler.phantom.program import prepare

        _refuse_a_gpu_without_kernels(torch)
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


def _refuse_a_gpu_without_kernels(torch: Any) -> None:
    """A phantom runs no kernel, so it would not notice.

    Raises:
        CannotMeasureError: a GPU that this build of torch was not made for.
    """
    major, minor = torch.cuda.get_device_capability(0)
    built = [re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", name) for name in torch.cuda.get_arch_list()]
    known = [(int(found[1]), int(found[2])) for found in built if found]
    # Machine code runs on later GPUs of its own generation.
    if known and not any(of == major and least <= minor for of, least in known):
        listed = ", ".join(f"{of}.{least}" for of, least in sorted(set(known)))
        raise CannotMeasureError(
            f"torch {torch.__version__} has no kernels for {torch.cuda.get_device_name(0)} (compute capability "
            f"{major}.{minor}); it was built for {listed}"
        )
