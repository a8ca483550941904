"""The table of GPUs: names of the contract, plausible figures, each with a source."""

from __future__ import annotations

import re

import pytest

from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPUS, find

PROMISED = [
    "t4-16gb", "v100-16gb", "v100-32gb", "a10-24gb", "a100-40gb", "a100-80gb", "l4-24gb", "l40s-48gb", "rtx3090-24gb",
    "rtx4090-24gb", "rtx5090-32gb", "h100-80gb", "h100-pcie-80gb", "h200-141gb", "b200-180gb",
]  # fmt: skip


def test_the_names_of_the_contract() -> None:
    assert list(GPUS) == PROMISED


def test_an_h100_as_the_contract_shows_it() -> None:
    h100 = find("H100-80GB")
    assert (h100.name, h100.total_bytes, h100.compute_capability) == ("h100-80gb", 85_029_158_912, (9, 0))
    assert (h100.sms, h100.max_threads_per_sm) == (132, 2048)


@pytest.mark.parametrize("name", PROMISED)
def test_a_card_reports_less_than_its_name_says_but_not_by_much(name: str) -> None:
    gpu = find(name)
    said = int(re.search(r"(\d+)gb$", name)[1])  # type: ignore[index]
    assert 0.9 * said * 2**30 < gpu.total_bytes < 1.0 * said * 2**30
    assert gpu.context_bytes is None or 64 << 20 < gpu.context_bytes < 1 << 30


@pytest.mark.parametrize("name", PROMISED)
def test_every_figure_has_a_source_and_an_unknown_one_says_so(name: str) -> None:
    gpu = find(name)
    assert gpu.total_source in gpu.source
    assert (gpu.context_bytes is None) == ("no published figure" in gpu.context_source)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--gpu 'h100' is unknown; did you mean h100-80gb"):
        find("h100")
