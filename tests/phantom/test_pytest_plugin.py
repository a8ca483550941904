"""The pytest plugin on a phantom: what it measures is called emulated, and one worker at a time has the GPU."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

CONFTEST = """
import os, time
from pathlib import Path

HERE = Path(__file__).parent

def worker():
    return os.environ.get("PYTEST_XDIST_WORKER")

def pytest_runtest_logfinish(nodeid):
    if worker():
        (HERE / f"done-{worker()}").write_text("")

def pytest_sessionfinish():
    # Both workers live until both have run a test: who was first still has the lock.
    deadline = time.monotonic() + 120
    while worker() and len(list(HERE.glob("done-gw*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
"""
TESTS = """
import pytest
import torch

MIB = 1 << 20

@pytest.mark.limit_gpu_memory("8 MiB")
def test_within():
    torch.ones(2 * MIB, device="cuda")

@pytest.mark.limit_gpu_memory("8 MiB")
def test_over():
    first = torch.ones(2 * MIB, device="cuda")
    second = first * 2

@pytest.mark.limit_gpu_memory("20 MiB", metric="reserved", rerun=False)
@pytest.mark.limit_gpu_memory("30 MiB")
def test_reserved():
    torch.ones(3 * MIB, device="cuda")
    torch.ones(5 * MIB, device="cuda")

@pytest.mark.limit_gpu_memory("8 MiB", device="cpu")
def test_on_the_cpu():
    torch.ones(MIB)

@pytest.mark.limit_gpu_memory("80 GiB")
def test_out_of_memory():
    kept = torch.ones(MIB, device="cuda")
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")

def test_block(gpu_memory):
    before = torch.ones(MIB, device="cuda")
    with gpu_memory("step") as measured:
        after = torch.ones(MIB, device="cuda")
    assert measured.peak_allocated_bytes == 8 * MIB
    kept = []
    gpu_memory.no_leak(lambda: torch.ones(MIB, device="cuda"), repeats=2)
    gpu_memory.no_leak(lambda: kept.append(torch.ones(1000, device="cuda")), repeats=2)
"""
SHARED = """
import pytest, torch

@pytest.mark.limit_gpu_memory("8 MiB")
@pytest.mark.parametrize("number", [1, 2])
def test_one(number):
    torch.ones(1 << 20, device="cuda")
"""

Inner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def inner(
    cuda_python: str, phantom_nooom_in: Inner, environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Inner:
    """Run pytest on a phantom A100, in a folder of its own: ``inner(text, "-n", 2)``."""

    def run(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        folder = tmp_path_factory.mktemp("theirs")
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "test_gpu.py").write_text(text)
        (folder / "pytest.ini").write_text("[pytest]\n")
        command = (cuda_python, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
        env = {"COLUMNS": "200", "NOOOM_LOCKS": str(folder / "locks")}
        return phantom_nooom_in(folder, "measure", "--gpu", "a100-80gb", "--", *command, env=env)

    return run


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def done(inner: Inner, out: Path) -> str:
    """What one run of TESTS said."""
    completed = inner(TESTS, f"--gpu-memory-out={out}")
    assert "4 failed, 2 passed" in completed.stdout, completed.stdout + completed.stderr
    return completed.stdout


def line_of(said: str, name: str) -> str:
    """Of our section."""
    (line,) = [line for line in said.partition(" gpu memory ==")[2].splitlines() if line.endswith(f"::{name}")]
    return line


def test_it_is_called_emulated(done: str, out: Path) -> None:
    assert "emulated on phantom NVIDIA A100-SXM4-80GB" in line_of(done, "test_within")
    assert "measured on cuda" not in done
    records = {
        record["case"]["name"]: record
        for record in map(json.loads, (out / "measurements.jsonl").read_text().splitlines())
    }
    record = records["test_gpu.py::test_within"]
    assert (record["source"], record["device"], record["gpu"]["name"]) == (
        "emulated",
        "phantom",
        "NVIDIA A100-SXM4-80GB",
    )
    assert record["phases"][0]["peak_allocated_bytes"] == 8 << 20
    assert record["fingerprint"]["torch"].startswith("2.")


def test_the_allocator_s_peak_is_held_to_the_byte_and_taken_apart(done: str) -> None:
    assert "limit 8.00 MiB, pass" in line_of(done, "test_within")
    assert "gpu memory: peak 16.00 MiB, limit 8.00 MiB: 8.00 MiB (100.0%) over, emulated on phantom" in done
    assert "alive at the peak, by a second run of the body:" in done
    assert "  8.00 MiB  activations float32 [2097152] by aten.mul.Tensor at " in done


def test_what_was_reserved_has_a_limit_of_its_own(done: str) -> None:
    # 12 and 20 MiB, each of its own segment: large ones are not merged.
    assert "gpu memory: peak 32.00 MiB, limit 20.00 MiB: 12.00 MiB (60.0%) over, emulated on phantom" in done
    assert "max_memory_reserved 33,554,432 bytes" in done
    assert "limit 20.00 MiB reserved" in line_of(done, "test_reserved")


def test_the_cpu_is_measured_where_that_is_asked(done: str) -> None:
    assert "4.00 MiB  measured on cpu" in line_of(done, "test_on_the_cpu")


def test_out_of_memory_stays_the_test_s_own_error(done: str, out: Path) -> None:
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 100.00 GiB" in done
    assert " oom " in line_of(done, "test_out_of_memory")
    assert '"status": "oom"' in (out / "measurements.jsonl").read_text()


def test_a_leak_is_named_there_too(done: str) -> None:
    assert "leaks 4.00 KiB (4,096 bytes) a call" in done
    assert "alive after 3 calls more:" in done
    assert "inputs float32 [1000] by aten.ones.default at " in done


def test_two_workers_do_not_share_a_gpu_unless_that_is_asked(inner: Inner) -> None:
    refused = inner(SHARED, "-n", "2")
    assert "1 passed, 1 error" in refused.stdout, refused.stdout + refused.stderr
    (line,) = [line for line in refused.stdout.splitlines() if line.startswith("GPU ")]
    assert "is measured on by pytest process " in line
    assert "(xdist worker gw" in line
    for remedy in ("-n 0", "CUDA_VISIBLE_DEVICES", "--gpu-memory-share"):
        assert remedy in line
    shared = inner(SHARED, "-n", "2", "--gpu-memory-share")
    assert "2 passed" in shared.stdout, shared.stdout + shared.stderr
    assert shared.stdout.count("the GPU was shared with pytest process ") == 1
