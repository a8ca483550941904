"""Checkpoints of random weights: what is written, when, and that nothing of it stays."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks import checkpoints, devices, runner
from nooom.benchmarks.models.zoo import Model
from nooom.formulas.case import Case
from nooom.formulas.errors import CannotMeasureError, UsageError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def item(**flags: Any) -> runner.Planned:
    case = Case.from_dict({"model": "HuggingFaceTB/SmolLM2-135M", "workload": "inference", **flags})
    return runner.plan([case], devices.CPU, write_checkpoints=True)[0]


def test_what_is_written_loads_with_every_weight_in_its_dtype(tmp_path: Path, tiny_config: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from nooom.benchmarks.workloads.checkpoint import write

    for folder in ("one", "two"):
        write(tiny_config, "fp16", tmp_path / folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "one", output_loading_info=True)
    model, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    assert all(float(parameter.detach().std()) > 0.005 for parameter in matrices)
    first, second = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("one", "two"))
    assert first == second


def test_it_is_written_when_it_is_needed_once_and_goes_in_the_end(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "write", lambda model, dtype, folder: folder.mkdir())
    said: list[str] = []
    with checkpoints.Checkpoints(said.append) as own:
        plain = item()
        assert own.prepare(plain) is plain
        assert list(temporary.iterdir()) == []
        first, again = own.prepare(item(pretrained=True)), own.prepare(item(pretrained=True, seq=8))
        other = own.prepare(item(pretrained=True, dtype="fp32"))
        assert said == ["HuggingFaceTB/SmolLM2-135M in bf16", "HuggingFaceTB/SmolLM2-135M in fp32"]
        assert first.model.directory == again.model.directory != other.model.directory
        assert first.model.directory.is_dir()  # type: ignore[union-attr]
        assert first.case_id == item(pretrained=True).case_id  # wherever it lies
    assert list(temporary.iterdir()) == []


def test_what_a_killed_run_left_goes_and_what_a_living_one_uses_stays(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "write", lambda model, dtype, folder: folder.mkdir())
    for name in ("dead", "alive"):
        (temporary / f"nooom-checkpoints-{name}").mkdir()
    with (temporary / "nooom-checkpoints-alive" / "in-use").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with checkpoints.Checkpoints() as own:
            own.prepare(item(pretrained=True))
        assert [path.name for path in temporary.iterdir()] == ["nooom-checkpoints-alive"]


def test_one_that_can_not_be_written_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, [], stderr="Traceback\nOSError: No space left on device\n")

    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(CannotMeasureError, match="OSError: No space left on device"):
        checkpoints.write(Model(name="m", config={"model_type": "llama"}), "bf16", tmp_path / "m")


@pytest.mark.parametrize("words", [[], ["m"], ["m", "int8", "folder"]])
def test_wrong_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UsageError, match="three arguments are right"):
        checkpoints.main(words)
