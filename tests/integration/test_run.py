"""``nooom run`` as a user types it, on the CPU: four workloads, JSON, files, resuming, repeatability."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

SMOL = "HuggingFaceTB/SmolLM2-135M"
PHASES = {
    "inference": ["load", "prefill", "decode"],
    "sft": ["load", "forward", "backward", "optimizer"],
    "lora": ["load", "forward", "backward", "optimizer"],
    "grpo": ["load", "rollout", "reference", "update"],
}
FLAGS = {
    "inference": ["--batch", 2, "--seq", 16, "--new-tokens", 3],
    "sft": ["--batch", 2, "--seq", 16],
    "lora": ["--batch", 2, "--seq", 16],
    "grpo": ["--batch", 4, "--group-size", 2, "--seq", 8, "--new-tokens", 4],
}


def document(completed: Any) -> dict[str, Any]:
    assert completed.returncode == 0, completed.stderr
    read: dict[str, Any] = json.loads(completed.stdout)
    return read


def peaks(measurement: dict[str, Any], figure: str = "peak_allocated_bytes") -> dict[str, int]:
    return {phase["name"]: phase[figure] for phase in measurement["phases"]}


@pytest.mark.parametrize("workload", PHASES)
def test_each_workload_gives_its_phases_with_peaks(nooom: Any, tiny_model: Path, workload: str) -> None:
    flags = ["--model", tiny_model, "--workload", workload, *FLAGS[workload], "--steps", 1, "--device", "cpu"]
    told = document(nooom("run", *flags, "--json"))
    assert told["schema_version"] == 1
    (measurement,) = told["measurements"]
    assert (measurement["status"], measurement["weights"], measurement["source"]) == ("ok", "random", "measured")
    assert list(peaks(measurement)) == PHASES[workload]
    assert all(peak > 0 for peak in peaks(measurement).values())
    assert all(peak > 100_000_000 for peak in peaks(measurement, "rss_peak_bytes").values())
    assert [phase["name"] for phase in measurement["first"]["phases"]] == PHASES[workload][1:]
    assert measurement["fingerprint"]["cpu_threads"] == 2
    assert measurement["case"]["batch"] == FLAGS[workload][1]


def test_two_runs_of_a_case_agree(nooom: Any, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "lora", *FLAGS["lora"], "--device", "cpu", "--json"]
    first, second = (document(nooom("run", *flags))["measurements"][0] for _ in range(2))
    assert first["case_id"] == second["case_id"]
    for phase, peak in peaks(first).items():
        assert peaks(second)[phase] == pytest.approx(peak, rel=0.001), phase


def test_a_suite_is_saved_resumed_and_shown(nooom: Any, tiny_model: Path, tmp_path: Path) -> None:
    suite, out = tmp_path / "mine.toml", tmp_path / "out"
    suite.write_text(f'[defaults]\nmodel = "{tiny_model}"\nsteps = 1\nworkload = "sft"\n[[case]]\nseq = [8, 16, 32]\n')
    first = nooom("run", suite, "--device", "cpu", "--out", out, "--shard", "1/2")
    assert first.returncode == 0, first.stderr
    journal = out / "measurements.jsonl"
    assert [json.loads(line)["case"]["seq"] for line in journal.read_text().splitlines()] == [8, 32]
    # A run that was killed while writing its third record:
    with journal.open("a") as file:
        file.write('{"schema_version": 1, "case_')
    second = nooom("run", suite, "--device", "cpu", "--out", out, "--resume")
    assert second.returncode == 0, second.stderr
    assert "2 of 3 cases were finished before" in second.stderr
    assert [json.loads(line)["case"]["seq"] for line in journal.read_text().splitlines()] == [8, 32, 16]
    for word in ("forward", "backward", "optimizer", "(measured on cpu)", "article", "error"):
        assert word in second.stdout


def test_the_table_names_every_case_with_nothing_cut_off(nooom: Any, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "grpo", *FLAGS["grpo"], "--steps", 1, "--device", "cpu"]
    shown = nooom("run", *flags, env={"COLUMNS": "100"}).stdout
    assert "rollout" in shown
    assert "TRL's configs turn it on" in shown
    assert "…" not in shown


def test_a_checkpoint_on_disk_goes_through_from_pretrained(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    """Sharded safetensors, written here; the load phase is from_pretrained's own."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**tiny_config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "checkpoint", max_shard_size="100KB")
    assert len(list((tmp_path / "checkpoint").glob("*.safetensors"))) > 1
    flags = ["--model", tmp_path / "checkpoint", "--workload", "inference", "--seq", 8, "--new-tokens", 2]
    told = document(nooom("run", *flags, "--pretrained", "--device", "cpu", "--steps", 1, "--json"))
    (measurement,) = told["measurements"]
    assert (measurement["status"], measurement["weights"]) == ("ok", "pretrained")
    weights = sum(p.numel() for p in model.parameters()) * 2
    assert measurement["phases"][0]["end_allocated_bytes"] == pytest.approx(weights, rel=0.01)


def test_a_checkpoint_that_is_converted_while_loading_is_counted_too(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    """transformers converts in threads, which the profiler would not see; two checkpoints are two cases."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**tiny_config), dtype=torch.float32)
    model.save_pretrained(tmp_path / "good")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_bytes((tmp_path / "good" / "config.json").read_bytes())
    whole = (tmp_path / "good" / "model.safetensors").read_bytes()
    (tmp_path / "torn" / "model.safetensors").write_bytes(whole[:-1000])
    suite = tmp_path / "mine.toml"
    models = ", ".join(f'"{tmp_path / name}"' for name in ("torn", "good"))
    suite.write_text(
        f'[defaults]\nworkload = "inference"\nseq = 8\nsteps = 1\npretrained = true\n[[case]]\nmodel = [{models}]\n'
    )
    completed = nooom("run", suite, "--device", "cpu", "--json")
    assert completed.returncode == 1, completed.stderr
    torn, good = json.loads(completed.stdout)["measurements"]
    assert [torn["status"], good["status"]] == ["crashed", "ok"]
    weights = sum(p.numel() for p in model.parameters()) * 2
    assert good["phases"][0]["end_allocated_bytes"] == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "> /dev/full", "| head -c 0", "<&-"])
def test_streams_that_are_closed_or_full_give_no_traceback(tiny_model: Path, tmp_path: Path, closed: str) -> None:
    """Of a command that fails at once: what it says has to go somewhere, or nowhere."""
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    for arguments in ("doctor --json", "run --model nobody --workload sft"):
        completed = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m nooom {arguments} {closed}"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in completed.stderr + completed.stdout


def test_an_allocation_that_fails_is_an_oom_and_exit_0(nooom: Any, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "inference", "--batch", 900_000, "--seq", 500, "--device", "cpu"]
    told = document(nooom("run", *flags, "--steps", 1, "--json"))
    (measurement,) = told["measurements"]
    assert measurement["status"] == "oom"
    assert measurement["error"]["phase"] == "prefill"
    assert measurement["error"]["tried_bytes"] > 1 << 30
    assert peaks(measurement)["load"] > 0


def test_a_case_that_times_out_is_exit_1(nooom: Any, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "sft", "--seq", 400, "--batch", 50, "--steps", 1000]
    completed = nooom("run", *flags, "--device", "cpu", "--timeout", "3s", "--json")
    assert completed.returncode == 1
    assert json.loads(completed.stdout)["measurements"][0]["status"] == "timeout"


def test_a_disk_that_fills_up_loses_nothing(nooom: Any, tiny_model: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the second record does not fit."""
    resource = pytest.importorskip("resource")
    suite, out = tmp_path / "mine.toml", tmp_path / "out"
    suite.write_text(f'[defaults]\nmodel = "{tiny_model}"\nsteps = 1\nworkload = "sft"\n[[case]]\nseq = [8, 16]\n')
    flags = ["run", suite, "--device", "cpu", "--out", out]
    assert nooom(*flags, "--shard", "1/2").returncode == 0
    size = (out / "measurements.jsonl").stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))

    full = nooom(*flags, "--resume", "--json", preexec_fn=limit)
    assert full.returncode == 1
    assert "run again with --resume" in full.stderr
    assert [m["status"] for m in json.loads(full.stdout)["measurements"]] == ["ok", "ok"]
    assert (out / "measurements.jsonl").stat().st_size == size
    again = nooom(*flags, "--resume")
    assert again.returncode == 0, again.stderr
    assert "1 of 2 cases were finished before" in again.stderr


def test_a_budget_that_is_spent_stops_cleanly(nooom: Any, tiny_model: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text(f'[defaults]\nmodel = "{tiny_model}"\nsteps = 1\nworkload = "sft"\n[[case]]\nseq = [8, 16]\n')
    completed = nooom("run", suite, "--device", "cpu", "--budget", "0.001s", "--json")
    assert completed.returncode == 0
    assert json.loads(completed.stdout)["measurements"] == []
    assert "2 cases left" in completed.stderr


def test_it_runs_from_a_plain_checkout(tmp_path: Path, tiny_model: Path) -> None:
    """``python -m benchmarks`` with nothing installed: only the checkout on the path."""
    import subprocess
    import sys

    root = Path(__file__).resolve().parents[2]
    flags = ["--model", str(tiny_model), "--workload", "inference", "--seq", "8", "--steps", "1", "--device", "cpu"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "run", *flags, "--json", "--out", str(tmp_path / "out")],
        cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert document(completed)["measurements"][0]["status"] == "ok"
