"""``nooom run --device phantom``: the cuda instrument, NVML, children, OOM and retries, on a GPU that isn't there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.gpus import GPUS

Command = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

FLAGS = {
    "inference": ["--batch", 2, "--seq", 64, "--new-tokens", 4],
    "sft": ["--batch", 2, "--seq", 64],
    "lora": ["--batch", 2, "--seq", 64, "--checkpointing"],
    "grpo": ["--batch", 4, "--group-size", 2, "--seq", 16, "--new-tokens", 8],
}


def measurement(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["measurements"]
    return dict(found)


def case(tiny_model: Path, workload: str, *flags: object, gpu: str = "a100-80gb") -> list[object]:
    named = ["run", "--model", tiny_model, "--workload", workload, *FLAGS[workload], *flags]
    return [*named, "--device", "phantom", "--gpu", gpu, "--json"]


@pytest.mark.parametrize("workload", FLAGS)
def test_every_workload_has_the_allocators_and_nvmls_figures(
    phantom_nooom: Command, tiny_model: Path, workload: str
) -> None:
    found = measurement(phantom_nooom(*case(tiny_model, workload)))
    a100 = GPUS["a100-80gb"]
    assert (found["source"], found["device"], found["status"], found["retries"]) == ("emulated", "phantom", "ok", 0)
    assert found["gpu"] == {"name": a100.device_name, "total_bytes": a100.total_bytes}
    assert found["sampling"]["scope"] == "process"
    for phase in found["phases"]:
        assert phase["peak_reserved_bytes"] >= phase["peak_active_bytes"] >= phase["peak_allocated_bytes"] > 0
        assert phase["peak_allocated_bytes"] >= phase["peak_requested_bytes"]
        # What NVML shows is what the driver handed out, and the context.
        assert phase["nvml_peak_bytes"] == phase["peak_reserved_bytes"] + (a100.context_bytes or 0)


def test_two_runs_agree_byte_for_byte(phantom_nooom: Command, tiny_model: Path) -> None:
    def figures() -> list[dict[str, Any]]:
        phases = measurement(phantom_nooom(*case(tiny_model, "grpo")))["phases"]
        return [{name: size for name, size in phase.items() if name.endswith("_bytes")} for phase in phases]

    assert figures() == figures()


def test_running_out_of_memory_is_a_status_with_its_phase_and_request(phantom_nooom: Command, tiny_model: Path) -> None:
    flags = ["--batch", 64, "--seq", 512, "--gpu-memory", "700MiB"]
    found = measurement(phantom_nooom(*case(tiny_model, "sft", *flags)))
    assert found["status"] == "oom"
    error = found["error"]
    assert error["phase"] == "forward"
    assert error["tried_bytes"] % 512 == 0
    assert "700.00 MiB" in error["message"]  # PyTorch's own words
    assert found["gpu"]["total_bytes"] == 700 * MIB


def test_expandable_segments_reserve_in_pages_of_two_mib(phantom_nooom: Command, tiny_model: Path) -> None:
    plain = measurement(phantom_nooom(*case(tiny_model, "sft", "--batch", 16)))
    growing = measurement(
        phantom_nooom(*case(tiny_model, "sft", "--batch", 16, "--allocator", "expandable_segments:True"))
    )
    for before, after in zip(plain["phases"], growing["phases"], strict=True):
        assert after["peak_reserved_bytes"] % (2 * MIB) == 0
        assert after["peak_reserved_bytes"] <= before["peak_reserved_bytes"]
        assert after["peak_requested_bytes"] == before["peak_requested_bytes"]


def test_a_run_is_resumed_for_the_gpu_it_was_made_on(phantom_nooom: Command, tiny_model: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "out", "--resume"]
    phantom_nooom(*case(tiny_model, "sft"), *out)
    again = phantom_nooom(*case(tiny_model, "sft"), *out)
    assert "1 of 1 cases were finished before" in again.stderr
    other = phantom_nooom(*case(tiny_model, "sft", gpu="t4-16gb"), *out)
    assert measurement(other)["gpu"]["name"] == "Tesla T4"
    assert len((tmp_path / "out" / "measurements.jsonl").read_text().splitlines()) == 2


def test_predict_by_phantom_says_whether_it_fits_and_where_it_does_not(
    phantom_nooom: Command, tiny_model: Path
) -> None:
    flags = ["--model", tiny_model, "--workload", "sft", "--batch", 64, "--seq", 512, "--by", "article,phantom"]

    def said(*more: object) -> dict[str, Any]:
        done = phantom_nooom("predict", *flags, "--gpu", "l4-24gb", *more, "--json")
        assert done.returncode == 0, done.stderr
        article, phantom = json.loads(done.stdout)["predictions"]
        assert article["source"] == "article"
        return dict(phantom)

    roomy, tight = said(), said("--gpu-memory", "150MiB")
    assert (roomy["source"], roomy["fits"], roomy["oom"]) == ("phantom", True, None)
    assert (tight["fits"], tight["oom"]["phase"]) == (False, "forward")
    assert tight["oom"]["tried_bytes"] > 0
    for figure in ("allocated_bytes", "reserved_bytes", "device_bytes"):
        assert tight[figure] == roomy[figure]  # what it takes does not depend on what there is
    assert roomy["headroom_bytes"] == GPUS["l4-24gb"].usable_bytes - roomy["allocated_bytes"]


def test_hoppers_default_attention_is_named_as_uncertain(phantom_nooom: Command, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "sft", "--gpu", "h100-80gb", "--by", "phantom", "--json"]

    def uncertain(*more: object) -> str:
        return " ".join(json.loads(phantom_nooom("predict", *flags, *more).stdout)["predictions"][0]["uncertainties"])

    assert "cuDNN" in uncertain()
    assert "cuDNN" not in uncertain("--attention", "sdpa-flash")


TRAINING = """
import contextlib, sys, torch
from nooom.profiler.known_values import KnownValues

with KnownValues() if sys.argv[1] == "known" else contextlib.nullcontext():
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(900, 256), torch.nn.TransformerEncoder(layer, 4))
    model = model.append(torch.nn.Linear(256, 900)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        ids = torch.randint(1, 900, (8, 128)).cuda()
        torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


def under_a_phantom(cuda_python: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, on an A100 that is played."""
    start = (
        "import os, subprocess, sys\n"
        "from nooom.formulas.gpus import find\n"
        "from nooom.profiler.phantom.launcher import Phantom\n"
        "with Phantom(find('a100-80gb')) as phantom:\n"
        "    sys.exit(subprocess.call([sys.executable, '-c', *sys.argv[1:]], env=phantom.environment(os.environ)))\n"
    )
    return subprocess.run(
        [cuda_python, "-c", start, program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )


def test_known_values_change_nothing_that_the_allocator_sees(cuda_python: str) -> None:
    """Where the program asks the device nothing: a mode below autograd would move what is reserved."""
    told = {}
    for how in ("known", "plain"):
        done = under_a_phantom(cuda_python, TRAINING, how)
        assert done.returncode == 0, done.stderr[-2000:]
        told[how] = done.stdout
    assert told["known"] == told["plain"]


TWO = """
import os, subprocess, sys, torch
held = torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
if len(sys.argv) == 1:
    print("first", torch.cuda.mem_get_info()[0], flush=True)
    sys.exit(subprocess.call([sys.executable, "-c", os.environ["PROGRAM"], "second"]))
print("second", torch.cuda.mem_get_info()[0], flush=True)
try:
    torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("oom", "process" in str(error).lower(), flush=True)
"""


def test_two_processes_on_one_gpu_add_up(cuda_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROGRAM", TWO)
    done = under_a_phantom(cuda_python, TWO)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, oom = (line.split() for line in done.stdout.splitlines())
    context = GPUS["a100-80gb"].context_bytes or 0
    assert int(first[1]) == GPUS["a100-80gb"].total_bytes - (30 << 30) - context
    assert int(first[1]) - int(second[1]) == (30 << 30) + context
    assert oom == ["oom", "True"]


COPIES = """
import torch
host = torch.arange(10)
there = host.cuda()
assert there.is_cuda and there.device.index == 0
assert torch.cuda.memory_allocated() == 512
pinned = torch.ones(4).pin_memory()
assert pinned.is_pinned()
assert torch.equal(pinned, torch.ones(4))
assert there.float().cpu().sum().item() == 0  # nothing was computed
event = torch.cuda.Event(enable_timing=True)
event.record()
torch.cuda.synchronize()
assert event.query()
with torch.cuda.stream(torch.cuda.Stream()):
    other = torch.empty(1 << 20, device="cuda")
del there, other
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == 0
assert torch.cuda.memory_reserved() == 0
try:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.empty(4, device="cuda")
except RuntimeError as error:
    print("no graphs:", "not supported" in str(error).lower())
print(torch.cuda.get_device_name(), torch.cuda.device_count(), torch.cuda.utilization.__name__)
"""


def test_what_a_program_asks_of_cuda_is_answered(cuda_python: str) -> None:
    done = under_a_phantom(cuda_python, COPIES)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[0] == "no graphs: True"
    assert "NVIDIA A100-SXM4-80GB 1" in done.stdout
