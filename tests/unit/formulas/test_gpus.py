"""The table of GPUs: names of the contract, plausible figures, each with a source."""

from __future__ import annotations

import re

import pytest

from nooom.formulas.errors import UsageError
from nooom.formulas.gpus import GPUS, by_device_name, find

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


@pytest.mark.parametrize("name", PROMISED)
def test_a_card_is_found_by_what_it_calls_itself(name: str) -> None:
    gpu = find(name)
    assert by_device_name(gpu.device_name, gpu.total_bytes) is gpu


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--gpu 'h100' is unknown; did you mean h100-80gb"):
        find("h100")


@pytest.mark.parametrize(
    ("device", "total_bytes", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", None, "a100-80gb"),
        ("A100 80GB", None, "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", 42_298_834_944, "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", 85_029_158_912, "h100-80gb"),
        ("NVIDIA H100 PCIe", 81_008 << 20, "h100-pcie-80gb"),
        ("NVIDIA H200", None, "h200-141gb"),
        ("NVIDIA GeForce RTX 4090", None, "rtx4090-24gb"),
        ("Tesla T4", None, "t4-16gb"),
        ("Tesla V100-SXM2-16GB", None, "v100-16gb"),
        ("NVIDIA L4", None, "l4-24gb"),
        ("NVIDIA L40S", None, "l40s-48gb"),
        ("NVIDIA B200", None, "b200-180gb"),
        ("NVIDIA A10", None, "a10-24gb"),
        ("A100", 85_000_000_000, "a100-80gb"),
        ("A100", None, None),  # of which there are two
        ("NVIDIA A100-SXM4-80GB", 40 << 30, None),  # a slice of one
        ("NVIDIA GeForce GTX 1080", None, None),
    ],
)
def test_the_card_that_a_device_calls_itself(device: str, total_bytes: int | None, name: str | None) -> None:
    found = by_device_name(device, total_bytes)
    assert (found.name if found else None) == name
