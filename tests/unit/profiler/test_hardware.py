"""What is here: GPUs as NVML shows them, which torch without importing it, and memory within every limit."""

from __future__ import annotations

import glob
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nooom.profiler import hardware
from nooom.profiler.hardware import FoundGPU, TorchBuild, find_gpus, looked_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: b"NVIDIA H100",
        nvmlDeviceGetUUID=lambda handle: "GPU-1",
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlDeviceGetMemoryInfo=lambda handle, version=1: SimpleNamespace(total=80, used=7, reserved=5),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=42, usedGpuMemory=6)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library


def test_a_gpu_as_nvml_shows_it(one_gpu: SimpleNamespace) -> None:
    assert find_gpus() == [
        FoundGPU(
            index=0,
            name="NVIDIA H100",
            uuid="GPU-1",
            total_bytes=80,
            driver="580.1",
            used_bytes=7,
            reserved_bytes=5,
            processes={42: 6},
        )
    ]


def test_a_gpu_whose_processes_are_not_listed_is_still_found(one_gpu: SimpleNamespace) -> None:
    def not_supported(handle: Any) -> Any:
        raise RuntimeError("Not Supported")

    one_gpu.nvmlDeviceGetComputeRunningProcesses = not_supported
    assert [gpu.processes for gpu in find_gpus()] == [None]


@pytest.mark.parametrize("hides", ["", "-1", " "])
def test_hidden_gpus_are_not_found_and_said_to_be_hidden(
    one_gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, hides: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hides)
    assert find_gpus() == []
    assert "hides every GPU" in looked_for()


def test_one_line_says_what_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version="2.13.0+cpu", cuda=None))
    assert find_gpus() == []
    assert "NVML: " in looked_for()
    assert "; no /dev/nvidia*; torch 2.13.0+cpu is built without CUDA" in looked_for()
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version="2.13.0+cu130", cuda="13.0"))
    assert looked_for().endswith("torch 2.13.0+cu130 is built for CUDA 13.0")
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version=None, cuda=None))
    assert looked_for().endswith("torch is not installed")


def test_which_torch_is_known_without_importing_it() -> None:
    program = (
        "import sys; from nooom.profiler import hardware; told = hardware.torch_build(); hardware.find_gpus();\n"
        "assert 'torch' not in sys.modules; import torch;\n"
        "assert (told.version, told.cuda) == (torch.__version__, torch.version.cuda), told"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_builds_own_file_is_read_as_torch_writes_it() -> None:
    text = "__version__ = '2.13.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    assert hardware._assigned("__version__", text) == "2.13.0+cu130"
    assert hardware._assigned("cuda", text) == "13.0"
    assert hardware._assigned("hip", text) is None


def test_the_machine_has_cores_and_memory() -> None:
    assert hardware.cpu_cores() >= 1
    assert hardware.cpu_model()
    assert 0 < hardware.available_bytes() <= hardware.memory_bytes()


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of memory groups: /outer allows 500, of which it uses 450, 100 of them a cache that can be dropped."""
    own, root = tmp_path / "own", tmp_path / "cgroup"
    (root / "outer" / "inner").mkdir(parents=True)
    own.write_text("0::/outer/inner\n")
    (root / "outer" / "memory.max").write_text("500\n")
    (root / "outer" / "memory.current").write_text("450\n")
    (root / "outer" / "memory.stat").write_text("anon 350\ninactive_file 100\n")
    (root / "outer" / "inner" / "memory.max").write_text("max\n")
    monkeypatch.setattr(hardware, "_OWN_CGROUP", own)
    monkeypatch.setattr(hardware, "_CGROUPS", root)
    return root


def test_a_limit_on_a_group_further_out_counts(cgroups: Path) -> None:
    assert hardware.cgroup_limit_bytes() == 500


def test_a_cache_that_can_be_dropped_is_available(cgroups: Path) -> None:
    assert hardware.available_bytes() == 150


def test_the_tightest_of_the_groups_decides(cgroups: Path) -> None:
    (cgroups / "outer" / "inner" / "memory.max").write_text("300\n")
    (cgroups / "outer" / "inner" / "memory.current").write_text("290\n")
    assert (hardware.cgroup_limit_bytes(), hardware.available_bytes()) == (300, 10)


def test_without_any_limit_there_is_none(cgroups: Path) -> None:
    (cgroups / "outer" / "memory.max").write_text("max\n")
    assert hardware.cgroup_limit_bytes() is None
    assert hardware.available_bytes() > 1 << 20


def test_version_1_writes_its_files_elsewhere_and_no_limit_as_a_number(cgroups: Path) -> None:
    hardware._OWN_CGROUP.write_text("4:memory:/job\n3:cpuset:/\n")
    group = cgroups / "memory" / "job"
    group.mkdir(parents=True)
    (cgroups / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "memory.limit_in_bytes").write_text("700\n")
    (group / "memory.usage_in_bytes").write_text("600\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 50\n")
    assert (hardware.cgroup_limit_bytes(), hardware.available_bytes()) == (700, 150)


def test_a_group_whose_path_lies_outside_the_container_is_its_root(cgroups: Path) -> None:
    """Without a cgroup namespace the path is the host's, and only the root is mounted."""
    hardware._OWN_CGROUP.write_text("0::/kubepods/pod1\n")
    (cgroups / "memory.max").write_text("900\n")
    assert hardware.cgroup_limit_bytes() == 900
