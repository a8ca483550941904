"""``nooom run --device phantom``: the cuda instrument, NVML, children, OOM and retries, on a GPU that isn't there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
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


def measurements(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["measurements"])


def measurement(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    (found,) = measurements(done)
    return found


def case(model: Path, workload: str, *flags: object, gpu: str = "a100-80gb") -> list[object]:
    named = ["run", "--model", model, "--workload", workload, *FLAGS[workload], *flags]
    return [*named, "--device", "phantom", "--gpu", gpu, "--json"]


SUITE = """
[defaults]
model = "{model}"
[[case]]
workload = "inference"
batch = 2
seq = 64
new_tokens = 4
[[case]]
workload = "sft"
batch = 2
seq = 64
[[case]]
workload = "lora"
batch = 2
seq = 64
checkpointing = true
[[case]]
workload = "grpo"
batch = 4
group_size = 2
seq = 16
new_tokens = 8
[[case]]
workload = "sft"
batch = 16
seq = 64
allocator = ["", "expandable_segments:True"]
"""
"""The cases of FLAGS, and one under both allocators: one command runs them all, which imports torch once for each."""


@dataclass(frozen=True)
class Shared:
    """What several tests look at: the suite's run on an A100, and one case's after it, typed as flags and saved."""

    model: Path
    suite: list[dict[str, Any]]
    typed: dict[str, Any]
    out: Path

    def of(self, workload: str) -> dict[str, Any]:
        return next(found for found in self.suite if found["case"]["workload"] == workload)


@pytest.fixture(scope="module")
def shared(phantom_nooom_in: Command, shared_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    folder = tmp_path_factory.mktemp("shared")
    suite, out = folder / "suite.toml", folder / "out"
    suite.write_text(SUITE.format(model=shared_model))
    every = phantom_nooom_in(folder, "run", suite, "--device", "phantom", "--gpu", "a100-80gb", "--json")
    typed = phantom_nooom_in(folder, *case(shared_model, "grpo"), "--out", out)
    return Shared(model=shared_model, suite=measurements(every), typed=measurement(typed), out=out)


@pytest.mark.parametrize("workload", FLAGS)
def test_every_workload_has_the_allocators_and_nvmls_figures(shared: Shared, workload: str) -> None:
    found = shared.of(workload)
    a100 = GPUS["a100-80gb"]
    assert (found["source"], found["device"], found["status"], found["retries"]) == ("emulated", "phantom", "ok", 0)
    assert found["gpu"] == {"name": a100.device_name, "total_bytes": a100.total_bytes}
    assert found["sampling"]["scope"] == "process"
    for phase in found["phases"]:
        assert phase["peak_reserved_bytes"] >= phase["peak_active_bytes"] >= phase["peak_allocated_bytes"] > 0
        assert phase["peak_allocated_bytes"] >= phase["peak_requested_bytes"]
        # What NVML shows is what the driver handed out, and the context.
        assert phase["nvml_peak_bytes"] == phase["peak_reserved_bytes"] + (a100.context_bytes or 0)


def test_two_runs_agree_byte_for_byte(shared: Shared) -> None:
    def figures(found: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: size for name, size in phase.items() if name.endswith("_bytes")} for phase in found["phases"]]

    assert shared.of("grpo")["case_id"] == shared.typed["case_id"]
    assert figures(shared.of("grpo")) == figures(shared.typed)


def test_running_out_of_memory_is_a_status_with_its_phase_and_request(phantom_nooom: Command, tiny_model: Path) -> None:
    flags = ["--batch", 64, "--seq", 512, "--gpu-memory", "700MiB"]
    found = measurement(phantom_nooom(*case(tiny_model, "sft", *flags)))
    assert found["status"] == "oom"
    error = found["error"]
    assert error["phase"] == "forward"
    assert error["tried_bytes"] % 512 == 0
    assert "700.00 MiB" in error["message"]  # PyTorch's own words
    assert found["gpu"]["total_bytes"] == 700 * MIB


def test_a_gpu_that_torch_has_no_kernels_for_is_refused(phantom_nooom: Command, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "sft", "--device", "phantom", "--gpu", "v100-16gb"]
    done = phantom_nooom("run", *flags)
    assert done.returncode == 3, done.stderr
    assert "no kernels for Tesla V100" in done.stderr or "no kernels for NVIDIA V100" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("batch", "room", "flags", "status", "failed_in"),
    [
        # Its live bytes fit and what the allocator keeps beside them does not: the cache goes back to the driver.
        (32, 238 * MIB, ["--checkpointing"], "ok", None),
        # The same in the forward pass; what the backward pass asks for finds no room even so.
        (64, 628 * MIB, [], "oom", "backward"),
    ],
)
def test_the_allocator_frees_its_cache_and_tries_again(
    phantom_nooom: Command,
    tiny_model: Path,
    batch: int,
    room: int,
    flags: list[str],
    status: str,
    failed_in: str | None,
) -> None:
    capacity = room + (GPUS["a100-80gb"].context_bytes or 0)
    flags = ["--batch", str(batch), "--seq", "512", "--gpu-memory", f"{capacity // MIB}MiB", *flags]
    found = measurement(phantom_nooom(*case(tiny_model, "sft", *flags)))
    assert found["status"] == status
    assert found["retries"] > 0
    assert (found["error"] or {}).get("phase") == failed_in
    assert all(phase["peak_reserved_bytes"] <= room for phase in found["phases"])


def test_expandable_segments_reserve_in_pages_of_two_mib(shared: Shared) -> None:
    plain, growing = (found for found in shared.suite if found["case"]["batch"] == 16)
    assert growing["case"]["allocator"] == "expandable_segments:True"
    for before, after in zip(plain["phases"], growing["phases"], strict=True):
        assert after["peak_reserved_bytes"] % (2 * MIB) == 0
        assert after["peak_reserved_bytes"] <= before["peak_reserved_bytes"]
        assert after["peak_requested_bytes"] == before["peak_requested_bytes"]


def test_a_run_is_resumed_for_the_gpu_it_was_made_on(shared: Shared, phantom_nooom: Command) -> None:
    out = ["--out", shared.out, "--resume"]
    again = phantom_nooom(*case(shared.model, "grpo"), *out)
    assert "1 of 1 cases were finished before" in again.stderr
    other = phantom_nooom(*case(shared.model, "grpo", gpu="t4-16gb"), *out)
    assert measurement(other)["gpu"]["name"] == "Tesla T4"
    assert len((shared.out / "measurements.jsonl").read_text().splitlines()) == 2


@pytest.fixture(scope="module")
def on_hopper(
    phantom_nooom_in: Command, shared_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The phantom's predictions of one case on an H100, and on one with little memory and its attention pinned."""
    flags = ("--model", shared_model, "--workload", "sft", "--batch", 64, "--seq", 512, "--by", "article,phantom")
    folder = tmp_path_factory.mktemp("hopper")

    def said(*more: object) -> dict[str, Any]:
        done = phantom_nooom_in(folder, "predict", *flags, "--gpu", "h100-80gb", *more, "--json")
        assert done.returncode == 0, done.stderr
        article, phantom = json.loads(done.stdout)["predictions"]
        assert article["source"] == "article"
        return dict(phantom)

    return said(), said("--gpu-memory", "700MiB", "--attention", "sdpa-flash")


def test_predict_by_phantom_says_whether_it_fits_and_where_it_does_not(
    on_hopper: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    roomy, tight = on_hopper
    assert (roomy["source"], roomy["fits"], roomy["oom"]) == ("phantom", True, None)
    assert (tight["fits"], tight["oom"]["phase"]) == (False, "forward")
    assert tight["oom"]["tried_bytes"] > 0
    for figure in ("allocated_bytes", "reserved_bytes", "device_bytes"):
        assert tight[figure] == roomy[figure]  # what it takes does not depend on what there is, and flash is played
    assert roomy["headroom_bytes"] == GPUS["h100-80gb"].usable_bytes - roomy["allocated_bytes"]


def test_hoppers_default_attention_is_named_as_uncertain(on_hopper: tuple[dict[str, Any], dict[str, Any]]) -> None:
    default, pinned = (" ".join(prediction["uncertainties"]) for prediction in on_hopper)
    assert "cuDNN" in default
    assert "cuDNN" not in pinned


# Twice, each in a process of its own that is forked before CUDA begins.
TRAINING = """
import contextlib, os, torch
from nooom.profiler.known_values import KnownValues

def train():
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

for mode in (KnownValues, contextlib.nullcontext):
    child = os.fork()
    if child == 0:
        with mode():
            train()
        print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
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


MOVED = """
import contextlib, os, torch
from nooom.profiler.known_values import KnownValues

lengths = torch.tensor([3, 1, 2])
for mode in (KnownValues, contextlib.nullcontext):
    child = os.fork()
    if child == 0:
        with mode() as known:
            moved = lengths.cuda()
            if mode is KnownValues:
                assert moved.tolist() == [3, 1, 2] and moved.is_cuda
        print(torch.cuda.max_memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_moving_a_tensor_takes_nothing_twice(cuda_python: str) -> None:
    done = under_a_phantom(cuda_python, MOVED)
    assert done.returncode == 0, done.stderr[-2000:]
    known, plain = done.stdout.splitlines()
    assert known == plain


def test_known_values_change_nothing_that_the_allocator_sees(cuda_python: str) -> None:
    """Where the program asks the device nothing: a mode below autograd would move what is reserved."""
    done = under_a_phantom(cuda_python, TRAINING)
    assert done.returncode == 0, done.stderr[-2000:]
    known, plain = done.stdout.splitlines()
    assert known == plain


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
