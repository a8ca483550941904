"""``predict``, ``validate`` and ``calibrate`` on good input: what they print and what they write."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.cli import main
from nooom.formulas import article
from nooom.formulas.case import FLAGS, Case
from nooom.formulas.gpus import GPUS
from nooom.profiler.measurement import Measurement, Phase

SMOL = "HuggingFaceTB/SmolLM2-135M"
LORA_7B = ["--model", "Qwen/Qwen2.5-7B", "--workload", "lora", "--batch", "8", "--seq", "2048", "--checkpointing"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def call(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        shown = capsys.readouterr()
        assert (ended.value.code or 0) == code, shown.err
        return shown.out

    return call


def measured(batch: int, seq: int, factor: float = 1.0, **change: Any) -> dict[str, Any]:
    """A record of inference whose figures are the article's times a factor."""
    from nooom.benchmarks.models.zoo import resolve_case

    case = Case(model=SMOL, workload="inference", batch=batch, seq=seq)
    said = article.by_phase(case, resolve_case(case)[1])
    phases = [
        Phase(name=name, peak_allocated_bytes=round(sum(parts.values()) * factor)) for name, parts in said.items()
    ]
    facts: dict[str, Any] = dict(source="measured", device="cpu", status="ok", phases=phases)
    facts |= dict(fingerprint={"torch": "2.13.0", "transformers": "5.24.0"})
    return Measurement(case_id=case.case_id(), case=case.to_dict(), **(facts | change)).to_json()


def write(*records: Any) -> None:
    Path("results").mkdir()
    Path("results/measurements.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_predict_answers_the_articles_lora_question(run: Callable[..., str]) -> None:
    document = json.loads(run("predict", *LORA_7B, "--gpu", "h100-80gb", "--json"))
    assert document["schema_version"] == 1
    assert set(document["case"]) == set(FLAGS)
    assert document["gpu"]["total_bytes"] == GPUS["h100-80gb"].total_bytes
    (said,) = document["predictions"]
    assert said["source"] == "article"
    parts = {name: size for name, size in said["components"].items() if size is not None}
    assert parts == {"parameters": 15_231_233_024, "activations": 2 * 28 * 3584 * 2048 * 8 * 2}
    assert said["allocated_bytes"] == sum(parts.values())
    assert (said["fits"], said["oom"]) == (True, None)
    assert said["headroom_bytes"] == GPUS["h100-80gb"].usable_bytes - said["allocated_bytes"]
    assert said["reserved_bytes"] is None
    assert any("says nothing of" in line and "logits" in line for line in said["uncertainties"])


def test_predict_says_no_and_exits_0(run: Callable[..., str]) -> None:
    flags = ["--model", "Qwen/Qwen2.5-7B", "--workload", "sft", "--checkpointing", "--gpu", "h100-80gb"]
    (said,) = json.loads(run("predict", *flags, "--json"))["predictions"]
    assert said["fits"] is False
    assert said["headroom_bytes"] < 0
    assert said["oom"] == {"phase": "peak", "op": None, "tried_bytes": None}
    assert "no," in run("predict", *flags)


def test_predict_plays_a_gpu_with_another_capacity(run: Callable[..., str]) -> None:
    document = json.loads(run("predict", *LORA_7B, "--gpu", "h100-80gb", "--gpu-memory", "16GiB", "--json"))
    assert document["gpu"]["total_bytes"] == 16 << 30
    assert document["predictions"][0]["fits"] is False


def test_predict_without_a_gpu_does_not_judge(run: Callable[..., str]) -> None:
    document = json.loads(run("predict", *LORA_7B, "--json"))
    assert document["gpu"] is None
    assert document["predictions"][0]["fits"] is None
    assert "--gpu NAME says whether it fits" in run("predict", *LORA_7B)


def test_validate_holds_each_phase_against_its_measurement(run: Callable[..., str]) -> None:
    write(measured(1, 64, factor=2.0), measured(2, 64, factor=0.8))
    document = json.loads(run("validate", "results", "--json"))
    assert len(document["comparisons"]) == 2 * 3  # load, prefill and the peak
    errors = {(row["case"], row["phase"]): row["error"] for row in document["comparisons"]}
    assert {round(error, 6) for error in errors.values()} == {-0.5, 0.25}
    summary = document["summary"]["article"]
    assert (summary["n"], summary["under_predicted"], summary["worst_error"]) == (2, 0.5, pytest.approx(-0.5))
    assert (summary["pef"], summary["mcp"]) == (0.5, None)  # a CPU has no capacity that a verdict could miss
    assert [group["evidence"] for group in summary["groups"]] == ["measured on cpu"]
    assert "claims" in document


def test_validate_keeps_evidence_apart(run: Callable[..., str]) -> None:
    cuda: dict[str, Any] = {"device": "cuda", "gpu": {"name": "A100-80GB", "total_bytes": None}}
    write(measured(1, 64), measured(1, 64, factor=2.0, **cuda), measured(2, 64, source="emulated", **cuda))
    summary = json.loads(run("validate", "results", "--json"))["summary"]["article"]
    groups = {group["evidence"]: group["median_abs_error"] for group in summary["groups"]}
    assert groups == pytest.approx({"measured on cpu": 0, "measured on cuda": 0.5, "emulated on cuda": 0}, abs=1e-6)
    shown = run("validate", "results")
    for evidence in groups:
        assert f"article, {evidence}" in shown


def test_validate_shows_what_ran_out_of_memory_and_lets_it_judge_the_verdicts(run: Callable[..., str]) -> None:
    cuda: dict[str, Any] = {"device": "cuda", "gpu": {"name": "A100-80GB", "total_bytes": None}}
    write(measured(1, 64, status="oom", phases=[], **cuda))
    document = json.loads(run("validate", "results", "--json"))
    (row,) = document["comparisons"]
    assert (row["status"], row["measured_bytes"], row["error"]) == ("oom", None, None)
    assert document["summary"]["article"]["pef"] == 1.0  # the article says that so small a case fits


def test_validate_takes_recorded_dry_runs_as_predictions(run: Callable[..., str]) -> None:
    dry: dict[str, Any] = {"source": "dryrun", "device": "dryrun"}
    gpu: dict[str, Any] = {"gpu": {"name": "NVIDIA A100-SXM4-80GB", "total_bytes": 85_100_068_864}}
    others = {"gpu": {"name": "Tesla T4", "total_bytes": None}}
    write(
        measured(1, 64, device="cuda", **gpu),
        measured(2, 64, device="cuda", **gpu),
        measured(1, 64, factor=9.0, **dry, **others),
        measured(1, 64, factor=9.0, **dry, **gpu),
        measured(1, 64, factor=0.5, **dry, **gpu),
        measured(2, 64, status="oom", **dry, **gpu),
    )
    document = json.loads(run("validate", "results", "--by", "dryrun", "--json"))
    assert {row["evidence"] for row in document["comparisons"]} == {"measured on cuda"}
    said = {(row["case"].partition(" inference ")[2], row["error"]) for row in document["comparisons"]}
    # The last one of the same case on the same GPU; of what ran out of memory nothing is said.
    assert said == {("1x64", -0.5), ("2x64", None)}
    assert document["summary"]["dryrun"]["n"] == 1
    assert list(json.loads(run("validate", "results", "--json"))["summary"]) == ["article"]
    assert "dryrun" in json.loads(run("validate", "results", "--by", "all", "--json"))["summary"]


def test_validate_without_dry_runs_says_how_to_make_them(run: Callable[..., str]) -> None:
    write(measured(1, 64))
    run("validate", "results", "--by", "dryrun", code=2)
    assert "dryrun" not in json.loads(run("validate", "results", "--by", "all", "--json"))["summary"]


def test_a_prediction_by_all_without_a_gpu_leaves_the_dry_run_out(run: Callable[..., str]) -> None:
    said = json.loads(run("predict", *LORA_7B, "--by", "all", "--json"))["predictions"]
    assert "dryrun" not in [one["source"] for one in said]


def test_calibrate_writes_three_files_with_the_same_figures(run: Callable[..., str]) -> None:
    write(*(measured(batch, seq, factor=1.5) for batch in (1, 4) for seq in (64, 512)))
    document = json.loads(run("calibrate", "results", "--out", "out", "--json"))
    folder = Path("out/cpu/torch-2.13.0_transformers-5.24.0")
    assert [Path(file) for file in document["files"]] == [folder / f"constants.{end}" for end in ("json", "csv", "md")]
    (fitted,) = [one for one in document["constants"] if one["name"] == "kv_values" and one["phase"] == "prefill"]
    assert (fitted["article"], fitted["identified"], fitted["n"]) == (2, True, 4)
    assert fitted["fitted"] == pytest.approx(3.0, rel=1e-5)
    assert {"low", "high", "residual", "why"} <= set(fitted)
    written = json.loads((folder / "constants.json").read_text())
    assert written["provenance"]["files"] == ["results/measurements.jsonl"]
    assert len(written["provenance"]["case_ids"]) == 4
    with (folder / "constants.csv").open() as file:
        rows = {(row["phase"], row["name"]): row["fitted"] for row in csv.DictReader(file)}
    assert float(rows["prefill", "kv_values"]) == pytest.approx(3.0, rel=1e-5)
    text = (folder / "constants.md").read_text()
    assert "| `kv_values` | 2 | 3 |" in text
    assert "Not identified: no row depends on them" in text
    assert "`adam_moment_bytes`" in text


def test_calibrate_never_mixes_gpus_evidence_or_versions(run: Callable[..., str]) -> None:
    cuda: dict[str, Any] = {"device": "cuda", "gpu": {"name": "A100-80GB", "total_bytes": None}}
    old: dict[str, Any] = {"fingerprint": {"torch": "2.11.0", "transformers": "5.17.0"}}
    kinds: list[dict[str, Any]] = [{}, cuda, {"source": "emulated", **cuda}, old]
    write(*(measured(batch, 64, **kind) for kind in kinds for batch in (1, 2, 4)))
    document = json.loads(run("calibrate", "results", "--out", "out", "--json"))
    folders = {str(Path(file).parent.relative_to("out")) for file in document["files"]}
    new = "torch-2.13.0_transformers-5.24.0"
    assert folders == {
        f"cpu/{new}", f"a100-80gb/{new}", f"a100-80gb-emulated/{new}", "cpu/torch-2.11.0_transformers-5.17.0",
    }  # fmt: skip


def test_a_gpus_name_never_leads_out_of_the_folder(run: Callable[..., str]) -> None:
    gpu = {"name": "../../../etc/../x y", "total_bytes": None}
    torch: dict[str, Any] = {"fingerprint": {"torch": "../../2.13", "transformers": None}}
    write(*(measured(batch, 64, device="cuda", gpu=gpu, **torch) for batch in (1, 2, 4)))
    document = json.loads(run("calibrate", "results", "--out", "out", "--json"))
    for file in document["files"]:
        assert Path(file).resolve().is_relative_to(Path("out").resolve())


def test_calibrating_twice_writes_the_same_bytes(run: Callable[..., str]) -> None:
    write(*(measured(batch, seq, factor=1.1) for batch in (1, 4) for seq in (64, 512)))
    run("calibrate", "results", "--out", "one")
    shown = run("calibrate", "results", "--out", "two")
    texts = [{f.name: f.read_bytes() for f in Path(out).rglob("constants.*")} for out in ("one", "two")]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 3
    assert "written: two/cpu" in shown
