"""Where a tensor lies, asked without becoming one of its owners."""

from __future__ import annotations

import torch


def address_of(tensor: torch.Tensor) -> int:
    """Where a tensor's storage begins.

    Asking the storage itself would give it an object in Python that counts as one more owner for as long as it lives,
    and autograd adds gradients in place only where there is one owner.
    """
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else 0
