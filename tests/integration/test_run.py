"""``nooom run`` as a user types it, on the CPU: four workloads, JSON, files, resuming, repeatability."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
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


SUITE = """
[defaults]
model = "{model}"
[[case]]
workload = "inference"
batch = 2
seq = 16
new_tokens = 3
[[case]]
workload = "sft"
batch = 2
seq = [8, 16]
[[case]]
workload = "lora"
batch = 2
seq = [8, 16]
[[case]]
workload = "grpo"
batch = 4
group_size = 2
seq = 8
new_tokens = 4
[[case]]
model = "{wide}"
workload = "inference"
batch = 1024
seq = 512
steps = 1
"""
"""Seven cases: the odd ones are the first half, the even ones the second."""
WIDE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "intermediate_size": 1 << 20}  # fmt: skip
"""An MLP whose first product is a TiB for the last case: until then, little has to be computed."""


@dataclass(frozen=True)
class Halves:
    """One suite, run in two halves into one folder: a run imports torch, so several tests look at these two."""

    suite: Path
    first: subprocess.CompletedProcess[str]
    saved_first: str
    """The journal between the two."""
    second: subprocess.CompletedProcess[str]
    out: Path
    witness: Path
    """What code that comes with the model would write."""

    def of(self, workload: str) -> dict[str, Any]:
        """The measurement of FLAGS."""
        seq = FLAGS[workload][FLAGS[workload].index("--seq") + 1]
        (found,) = [
            measurement
            for measurement in document(self.second)["measurements"]
            if (measurement["case"]["workload"], measurement["case"]["seq"]) == (workload, seq)
        ]
        return dict(found)


@pytest.fixture(scope="module")
def halves(
    nooom_in: Any, shared_model: Path, tiny_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Halves:
    folder = tmp_path_factory.mktemp("halves")
    suite, out, wide, witness = (folder / name for name in ("mine.toml", "out", "wide", "witness"))
    wide.mkdir()
    (wide / "config.json").write_text(json.dumps({**tiny_config, **WIDE}))
    code = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (shared_model / "config.json").write_text(json.dumps({**tiny_config, "auto_map": code}))
    (shared_model / "evil.py").write_text(f"open({str(witness)!r}, 'w').write('ran')\n")
    suite.write_text(SUITE.format(model=shared_model, wide=wide))
    first = nooom_in(folder, "run", suite, "--device", "cpu", "--out", out, "--shard", "1/2")
    journal = out / "measurements.jsonl"
    saved = journal.read_text()
    # A run that was killed while writing its next record:
    with journal.open("a") as file:
        file.write('{"schema_version": 1, "case_')
    second = nooom_in(folder, "run", suite, "--device", "cpu", "--out", out, "--resume", "--json")
    return Halves(suite=suite, first=first, saved_first=saved, second=second, out=out, witness=witness)


@pytest.mark.parametrize("workload", PHASES)
def test_each_workload_gives_its_phases_with_peaks(halves: Halves, workload: str) -> None:
    assert document(halves.second)["schema_version"] == 1
    measurement = halves.of(workload)
    assert (measurement["status"], measurement["weights"], measurement["source"]) == ("ok", "random", "measured")
    assert list(peaks(measurement)) == PHASES[workload]
    assert all(peak > 0 for peak in peaks(measurement).values())
    assert all(peak > 100_000_000 for peak in peaks(measurement, "rss_peak_bytes").values())
    assert [phase["name"] for phase in measurement["first"]["phases"]] == PHASES[workload][1:]
    assert measurement["fingerprint"]["cpu_threads"] == 2
    assert measurement["case"]["batch"] == FLAGS[workload][1]


def test_two_runs_of_a_case_agree(nooom: Any, halves: Halves, shared_model: Path) -> None:
    """One of the suite's, and the same case typed as flags."""
    flags = ["--model", shared_model, "--workload", "lora", *FLAGS["lora"], "--device", "cpu", "--json"]
    first, second = halves.of("lora"), document(nooom("run", *flags))["measurements"][0]
    assert first["case_id"] == second["case_id"]
    for phase, peak in peaks(first).items():
        assert peaks(second)[phase] == pytest.approx(peak, rel=0.001), phase


def test_a_suite_is_saved_resumed_and_shown(halves: Halves) -> None:
    def cases(journal: str) -> list[tuple[str, int]]:
        return [(case["workload"], case["seq"]) for case in (json.loads(line)["case"] for line in journal.splitlines())]

    assert halves.first.returncode == 0, halves.first.stderr
    first = [("inference", 16), ("sft", 16), ("lora", 16), ("inference", 512)]
    second = [("sft", 8), ("lora", 8), ("grpo", 8)]
    assert cases(halves.saved_first) == first
    assert halves.second.returncode == 0, halves.second.stderr
    assert "4 of 7 cases were finished before" in halves.second.stderr
    assert cases((halves.out / "measurements.jsonl").read_text()) == [*first, *second]
    for word in ("forward", "backward", "optimizer", "(measured on cpu)", "article", "error"):
        assert word in halves.first.stdout


def test_the_table_names_every_case_with_nothing_cut_off(nooom: Any, halves: Halves) -> None:
    flags = ["--device", "cpu", "--out", halves.out, "--resume"]
    shown = nooom("run", halves.suite, *flags, env={"COLUMNS": "100"})
    assert "7 of 7 cases were finished before" in shown.stderr
    assert "rollout" in shown.stdout
    assert "TRL's configs turn it on" in shown.stdout
    assert "…" not in shown.stdout


def test_checkpoints_on_disk_go_through_from_pretrained(
    nooom: Any, tmp_path: Path, tiny_config: dict[str, Any]
) -> None:
    """Sharded safetensors, written here; the load phase is from_pretrained's own.

    One in fp32 is converted, which transformers does in threads that the profiler would not see; a torn one fails, and
    is another case than the whole one.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**tiny_config), dtype=torch.float32)
    model.save_pretrained(tmp_path / "converted")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_bytes((tmp_path / "converted" / "config.json").read_bytes())
    whole = (tmp_path / "converted" / "model.safetensors").read_bytes()
    (tmp_path / "torn" / "model.safetensors").write_bytes(whole[:-1000])
    model.to(torch.bfloat16).save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    suite = tmp_path / "mine.toml"
    models = ", ".join(f'"{tmp_path / name}"' for name in ("torn", "converted", "sharded"))
    suite.write_text(
        '[defaults]\nworkload = "inference"\nseq = 8\nnew_tokens = 2\nsteps = 1\npretrained = true\n'
        f"[[case]]\nmodel = [{models}]\n"
    )
    completed = nooom("run", suite, "--device", "cpu", "--json")
    assert completed.returncode == 1, completed.stderr
    torn, converted, sharded = json.loads(completed.stdout)["measurements"]
    assert [torn["status"], converted["status"], sharded["status"]] == ["crashed", "ok", "ok"]
    weights = sum(p.numel() for p in model.parameters()) * 2
    for measurement in (converted, sharded):
        assert measurement["weights"] == "pretrained"
        assert measurement["phases"][0]["end_allocated_bytes"] == pytest.approx(weights, rel=0.01)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "> /dev/full", "| head -c 0", "<&-"])
def test_streams_that_are_closed_or_full_give_no_traceback(tiny_model: Path, tmp_path: Path, closed: str) -> None:
    """Of a command that fails at once: what it says has to go somewhere, or nowhere."""
    import sys

    root = Path(__file__).resolve().parents[2]
    for arguments in ("doctor --json", "run --model nobody --workload sft"):
        completed = subprocess.run(
            ["bash", "-c", f"{sys.executable} -m nooom {arguments} {closed}"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in completed.stderr + completed.stdout


def test_an_allocation_that_fails_is_an_oom_and_exit_0(halves: Halves) -> None:
    assert halves.first.returncode == 0, halves.first.stderr
    (measurement,) = [found for found in document(halves.second)["measurements"] if found["status"] != "ok"]
    assert measurement["status"] == "oom"
    assert measurement["error"]["phase"] == "prefill"
    assert measurement["error"]["tried_bytes"] == 1 << 40
    assert peaks(measurement)["load"] > 0


def test_code_that_comes_with_a_model_is_never_run_unasked(halves: Halves) -> None:
    assert (halves.of("inference")["status"], halves.of("sft")["status"]) == ("ok", "ok")
    assert not halves.witness.exists()


def test_a_case_that_times_out_is_exit_1(nooom: Any, tiny_model: Path) -> None:
    flags = ["--model", tiny_model, "--workload", "sft", "--seq", 400, "--batch", 50, "--steps", 1000]
    completed = nooom("run", *flags, "--device", "cpu", "--timeout", "1s", "--json")
    assert completed.returncode == 1
    assert json.loads(completed.stdout)["measurements"][0]["status"] == "timeout"


def test_a_disk_that_fills_up_loses_nothing(nooom: Any, halves: Halves, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: after six cases of an earlier run, a seventh does not fit."""
    resource = pytest.importorskip("resource")
    out = tmp_path / "out"
    out.mkdir()
    journal = out / "measurements.jsonl"
    journal.write_text("".join((halves.out / "measurements.jsonl").read_text().splitlines(keepends=True)[:6]))
    flags = ["run", halves.suite, "--device", "cpu", "--out", out]
    size = journal.stat().st_size

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))

    full = nooom(*flags, "--resume", "--json", preexec_fn=limit)
    assert full.returncode == 1
    assert "run again with --resume" in full.stderr
    assert [m["status"] for m in json.loads(full.stdout)["measurements"]].count("ok") == 6
    assert journal.stat().st_size == size
    again = nooom(*flags, "--resume", "--budget", "0.001s")
    assert again.returncode == 0, again.stderr
    assert "6 of 7 cases were finished before" in again.stderr


def test_a_budget_that_is_spent_stops_cleanly(nooom: Any, tiny_model: Path, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text(f'[defaults]\nmodel = "{tiny_model}"\nsteps = 1\nworkload = "sft"\n[[case]]\nseq = [8, 16]\n')
    completed = nooom("run", suite, "--device", "cpu", "--budget", "0.001s", "--json")
    assert completed.returncode == 0
    assert json.loads(completed.stdout)["measurements"] == []
    assert "2 cases left" in completed.stderr


def test_it_runs_from_a_plain_checkout(tmp_path: Path, tiny_model: Path) -> None:
    """``python -m benchmarks`` with nothing installed: only the checkout on the path."""
    import sys

    root = Path(__file__).resolve().parents[2]
    flags = ["--model", str(tiny_model), "--workload", "inference", "--seq", "8", "--steps", "1", "--device", "cpu"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "run", *flags, "--json", "--out", str(tmp_path / "out")],
        cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert document(completed)["measurements"][0]["status"] == "ok"
