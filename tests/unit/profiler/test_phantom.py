"""The phantom's builder, accounts and launcher, as far as they go without a CUDA build of torch."""

from __future__ import annotations

import glob
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.formulas.gpus import GPUS
from nooom.profiler import hardware
from nooom.profiler.hardware import TorchBuild
from nooom.profiler.phantom import accounts, builder, launcher
from nooom.profiler.phantom.program import prefers_cudnn

SOURCE = Path(builder.__file__).resolve().parent / "source"
CUDA_BUILD = TorchBuild(version="2.13.0+cu130", cuda="13.0")


def pretend(monkeypatch: pytest.MonkeyPatch, build: TorchBuild) -> None:
    monkeypatch.setattr(hardware, "torch_build", lambda: build)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (TorchBuild(version=None, cuda=None), "needs torch, which is not installed: pip install torch"),
        (TorchBuild(version="2.13.0+cpu", cuda=None), "make setup-cuda"),
        (TorchBuild(version="2.10.1", cuda="12.8"), "not known to work on torch 2.10.1; it was tried on 2.11 to 2.14"),
        (TorchBuild(version="3.0.0", cuda="14.0"), "NOOOM_PHANTOM_ANY_TORCH=1"),
        (TorchBuild(version="a0+git", cuda="13.0"), "not known to work"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch, build: TorchBuild, says: str) -> None:
    pretend(monkeypatch, build)
    with pytest.raises(CannotMeasureError, match=says.replace("+", r"\+").replace(".", r"\.")) as caught:
        builder.installed_torch()
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "aarch64")])
def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch, system: str, machine: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(CannotMeasureError, match=f"needs Linux on x86-64, and this is {system} on {machine}"):
        builder.installed_torch()


def a_torch(folder: Path) -> builder.Torch:
    (folder / "lib").mkdir()
    return builder.Torch(version="2.13.0", folder=folder / "lib", headers=folder)


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CannotMeasureError, match="no C compiler here; on Debian and Ubuntu: apt install gcc"):
        builder.build(a_torch(tmp_path))
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_compiler_that_fails_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    with pytest.raises(CannotMeasureError, match="does not compile") as caught:  # there are no headers of CUDA
        builder.build(a_torch(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_headers_are_said(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasureError, match="headers of torch's CUDA are not beside it"):
        builder._headers(tmp_path)


def test_a_real_driver_has_to_be_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glob, "glob", lambda pattern: [pattern])
    monkeypatch.delenv(launcher.BESIDE_A_DRIVER, raising=False)
    with pytest.raises(CannotMeasureError, match=r"has an NVIDIA driver .* NOOOM_PHANTOM_BESIDE_DRIVER=1") as caught:
        launcher.Phantom(GPUS["a100-80gb"])
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("count", [0, 17, -1])
def test_a_number_of_gpus_that_makes_no_sense_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"--gpus must lie between 1 and 16, not {count}"):
        launcher.Phantom(GPUS["a100-80gb"], count)


def test_the_accounts_have_the_layout_that_the_library_reads(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    program = tmp_path / "sizes.c"
    fields = ("gpu", "process")
    offsets = ", ".join(f"offsetof(struct phantom_accounts, {field})" for field in fields)
    program.write_text(
        '#include "phantom.h"\n#include <stdio.h>\n'
        f'int main(void) {{ printf("%zu %zu %zu", sizeof(struct phantom_accounts), {offsets}); }}\n'
    )
    subprocess.run([compiler, f"-I{SOURCE}", str(program), "-o", str(tmp_path / "sizes")], check=True)
    told = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True).stdout
    first = accounts._HEAD.size
    assert [int(size) for size in told.split()] == [
        len(accounts.written([GPUS["a100-80gb"]])), first, first + accounts.MAX_GPUS * accounts._GPU.size,
    ]  # fmt: skip


def test_fresh_accounts_have_the_gpus_and_no_process(tmp_path: Path) -> None:
    path = tmp_path / "accounts"
    path.write_bytes(accounts.written([GPUS["h100-80gb"]] * 2))
    assert accounts.read(path) == []
    content = path.read_bytes()
    assert content.count(b"NVIDIA H100 80GB HBM3\0") == 2


def test_stubs_succeed_but_for_nvmls() -> None:
    text = builder._stubs(["cudaFoo", "nvmlBar"])
    assert "int cudaFoo(void) { return 0; }" in text
    assert "int nvmlBar(void) { return 3; }" in text


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("cudaMalloc", True), ("__cudaRegisterFunction", True), ("cuMemCreate", True), ("cublasLtMatmul", True),
        ("ncclAllReduce", True), ("curandCreateGenerator", True), ("cusolverDnCreate", True),
        ("nvrtcCompileProgram", False), ("cuptiSubscribe", False), ("custom_op", False), ("malloc", False),
    ],
)  # fmt: skip
def test_what_counts_as_one_of_cudas_calls(name: str, is_one: bool) -> None:
    assert bool(builder._CALLS.fullmatch(name)) is is_one


def test_cudnn_is_preferred_on_hopper_and_blackwell_alone() -> None:
    assert {name for name, gpu in GPUS.items() if prefers_cudnn(gpu.compute_capability)} == {
        "h100-80gb", "h100-pcie-80gb", "h200-141gb", "b200-180gb",
    }  # fmt: skip


def test_the_environment_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(builder, "build", lambda: tmp_path)
    monkeypatch.setattr(launcher, "refuse_a_real_driver", lambda: None)
    with launcher.Phantom(GPUS["t4-16gb"]) as phantom:
        made = phantom.environment({"LD_PRELOAD": "theirs.so", "LD_LIBRARY_PATH": "/theirs", "HOME": "/h"})
        assert made["LD_PRELOAD"].split() == [str(tmp_path / "libphantom.so"), "theirs.so"]
        assert made["LD_LIBRARY_PATH"] == f"{tmp_path}:/theirs"
        assert made["HOME"] == "/h"
        assert Path(made[launcher.ACCOUNTS]).is_file()
        assert phantom.accounts() == []
    assert not Path(made[launcher.ACCOUNTS]).exists()


def test_the_command_refuses_a_cpu_build_with_exit_3(nooom: Any) -> None:
    from nooom.profiler.hardware import torch_build

    if sys.platform != "linux" or not torch_build().without_cuda:
        pytest.skip("this torch is a CUDA build, or the system another one")
    flags = ["--model", "HuggingFaceTB/SmolLM2-135M", "--workload", "sft"]
    for command in (["run", *flags, "--device", "phantom"], ["predict", *flags, "--by", "phantom"]):
        done = nooom(*command, "--gpu", "a100-80gb")
        assert done.returncode == 3, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert "CUDA build" in done.stderr
