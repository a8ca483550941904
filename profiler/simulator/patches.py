"""What libraries must believe of meta tensors while a dry run lasts, and no longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.optim.optimizer as optimizers
import torch.utils._foreach_utils as foreach


@contextmanager
def patched() -> Iterator[None]:
    """Optimizers have fused and foreach steps for meta tensors, as for CUDA's."""

    def with_meta(devices: Any) -> Any:
        return lambda: [*devices(), "meta"]

    fused, several = foreach._get_fused_kernels_supported_devices, foreach._get_foreach_kernels_supported_devices
    with (
        patch.object(foreach, "_get_fused_kernels_supported_devices", with_meta(fused)),
        patch.object(foreach, "_get_foreach_kernels_supported_devices", with_meta(several)),
        patch.object(optimizers, "_get_fused_kernels_supported_devices", with_meta(fused)),
        patch.object(optimizers, "_get_foreach_kernels_supported_devices", with_meta(several)),
    ):
        yield
