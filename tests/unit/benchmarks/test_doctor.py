"""Doctor: what it finds, what it recognises, and that it is instant."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nooom.benchmarks.commands import doctor as module
from nooom.benchmarks.commands.doctor import Check, doctor, examine
from nooom.formulas.errors import CannotMeasureError
from nooom.profiler import hardware
from nooom.profiler.hardware import TorchBuild
from nooom.profiler.phantom import builder, launcher
from nooom.profiler.phantom.builder import Torch

ROOT = Path(__file__).resolve().parents[3]


def found(name: str) -> Check:
    return next(check for check in examine() if check.name == name)


def test_what_is_here_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert "cpu" in told["devices"]
    assert {check["state"] for check in told["checks"]} <= {"ok", "note"}
    for name in ("Python", "torch", "transformers", "peft", "accelerate", "memory", "disk"):
        assert any(check["name"] == name for check in told["checks"]), name


def test_a_missing_library_is_a_problem_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = hardware.version
    monkeypatch.setattr(hardware, "version", lambda name: None if name == "peft" else real(name))
    assert found("peft") == Check(name="peft", state="problem", found="not installed", remedy="pip install peft")
    assert doctor(as_json=False) == 3
    assert module._devices(examine()) == []
    assert "pip install peft" in capsys.readouterr().out


def test_a_version_that_nobody_tried_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version="2.99.0+cu140", cuda="14.0"))
    assert found("torch").state == "note"
    assert "2.11 up to below 2.15" in found("torch").remedy


def test_the_deprecated_pynvml_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "version", lambda name: "11.5.3")
    monkeypatch.setattr(importlib.metadata, "files", lambda name: ["pynvml.py", "README.md"])
    check = found("NVML binding")
    assert (check.state, "deprecated" in check.found) == ("note", True)
    assert "pip uninstall pynvml" in check.remedy
    # Its last versions bring no module of their own.
    monkeypatch.setattr(importlib.metadata, "files", lambda name: ["pynvml_utils/__init__.py"])
    assert found("NVML binding").state == "ok"


def test_settings_that_cases_ignore_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert "--allocator" in found("PYTORCH_CUDA_ALLOC_CONF").remedy


def test_gpus_are_shown_and_a_cpu_build_beside_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = hardware.FoundGPU(index=0, name="NVIDIA H100", uuid="GPU-1", total_bytes=80 << 30, driver="580.1")
    monkeypatch.setattr(hardware, "find_gpus", lambda: [gpu])
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version="2.13.0+cpu", cuda=None))
    assert "NVIDIA H100, 80.0 GiB, driver 580.1" in found("GPU 0").found
    assert "CUDA build" in found("torch build").remedy
    assert module._devices(examine()) == ["cpu", "dryrun"]
    monkeypatch.setattr(hardware, "torch_build", lambda: TorchBuild(version="2.13.0+cu130", cuda="13.0"))
    assert module._devices(examine()) == ["cpu", "cuda", "dryrun"]


def test_others_on_the_gpu_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = hardware.FoundGPU(
        index=0, name="G", uuid="GPU-1", total_bytes=80 << 30, driver="580.1", processes={42: 3 << 30, 43: None}
    )
    monkeypatch.setattr(hardware, "find_gpus", lambda: [gpu])
    check = found("GPU 0 processes")
    assert (check.state, check.found) == ("note", "42 (3.00 GiB), 43 (unknown)")


def test_an_offline_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert found("HF_HUB_OFFLINE").state == "note"


def test_whether_a_phantom_can_be_played_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot() -> Torch:
        raise CannotMeasureError("the phantom GPU runs torch's CUDA build; make setup-cuda builds it")

    monkeypatch.setattr(builder, "check", cannot)
    assert (found("phantom GPU").state, found("phantom GPU").remedy) == ("note", "make setup-cuda builds it")
    assert "phantom" not in module._devices(examine())
    torch = Torch(version="2.13.0+cu130", folder=ROOT, headers=ROOT)
    monkeypatch.setattr(builder, "check", lambda: torch)
    monkeypatch.setattr(launcher, "refuse_a_real_driver", lambda: None)
    assert found("phantom GPU").found == "can be played, on torch 2.13.0+cu130"
    assert "phantom" in module._devices(examine())


def test_it_imports_no_torch() -> None:
    program = (
        "import sys; from nooom.benchmarks.commands.doctor import examine; list(examine()); "
        "sys.exit(bool({'torch', 'pandas', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
