"""Published figures as records: the committed files are what the manifest gives, and a bad manifest says where."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import pytest

from nooom.benchmarks import published
from nooom.benchmarks.journal import read
from nooom.benchmarks.models.zoo import names
from nooom.benchmarks.published import COLUMNS, as_journal, as_readme, figures, measurements
from nooom.benchmarks.shipped import RESULTS
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.profiler.measurement import Measurement

PUBLIC = RESULTS / "measured" / "public"
MANIFEST = PUBLIC / "manifest.csv"


@pytest.fixture(scope="module")
def records() -> list[Measurement]:
    return measurements(MANIFEST)


def of(records: list[Measurement], figure: str) -> Measurement:
    return next(record for record in records if figure in record.fingerprint["published"])


def test_the_committed_files_are_what_the_manifest_gives(records: list[Measurement]) -> None:
    assert (PUBLIC / "measurements.jsonl").read_text(encoding="utf-8") == as_journal(records)
    assert (PUBLIC / "README.md").read_text(encoding="utf-8") == as_readme(figures(MANIFEST))
    assert list(read(PUBLIC)) == records


def test_every_figure_has_a_use_and_a_reason(records: list[Measurement]) -> None:
    found = figures(MANIFEST)
    assert len({figure["id"] for figure in found}) == len(found) == 257
    assert Counter(figure["use"] for figure in found) == {"accuracy": 65, "end": 13, "no": 179}
    assert all(figure["why"].endswith(".") for figure in found)
    assert len(records) == 65


def test_each_record_is_another_case_of_a_zoo_model(records: list[Measurement]) -> None:
    assert len({record.case_id for record in records}) == len(records)
    for record in records:
        case = Case.from_dict(record.case)
        assert case.case_id() == record.case_id
        assert case.model in names()
        assert record.weights == ("pretrained" if case.pretrained else "random")
        assert (record.source, record.device, record.status) == ("measured", "cuda", "ok")
        assert record.gpu is not None
        assert record.gpu["total_bytes"] is None
    assert Counter(record.case["workload"] for record in records) == {"inference": 52, "sft": 4, "lora": 9}


def test_a_full_fine_tuning_run_has_its_peak_and_its_end(records: list[Measurement]) -> None:
    """fms-acceleration's a100_80gb.csv: mem_peak_torch_mem_alloc_in_bytes and mem_torch_mem_alloc_in_bytes."""
    run = of(records, "M1176")
    (phase,) = run.phases
    assert (phase.name, phase.peak_allocated_bytes, phase.end_allocated_bytes) == ("peak", 72434837504, 43467876352)
    assert run.fingerprint["published"] == ["M1176", "M1177"]
    assert run.fingerprint["rounding_bytes"] == 0
    case = Case.from_dict(run.case)
    assert case.label() == (
        "Mistral-7B-v0.1 sft 4x4096 attention=flash_attention_2 optimizer=adamw-foreach checkpointing pretrained"
    )


def test_gib_with_two_decimals(records: list[Measurement]) -> None:
    """QwenLM's speed_benchmark.rst: 15.38 for Qwen2.5-7B-Instruct in BF16, 6144 tokens and 2048 more."""
    run = of(records, "M0197")
    assert run.peak_allocated_bytes == round(15.38 * 1024**3) == 16514149253
    assert run.fingerprint["rounding_bytes"] == round(0.005 * 1024**3)
    assert run.fingerprint["published_model"] == "Qwen/Qwen2.5-7B-Instruct"
    assert (run.case["model"], run.case["seq"], run.case["new_tokens"]) == ("Qwen/Qwen2.5-7B", 6144, 2048)
    # Weights alone are 14.19 GiB: the unit can't be 10^9 bytes where one token and 2048 more print 14.38.
    assert 2 * 7615616512 > 14.38 * 10**9


def test_mb_that_were_cut_off(records: list[Measurement]) -> None:
    """optimum-benchmark's full_report.csv: 13738 in forward.max_memory_allocated(MB), which int() cut off."""
    run = of(records, "M0809")
    assert run.peak_allocated_bytes == 13_738_500_000
    assert run.fingerprint["rounding_bytes"] == 500_000
    assert [phase.name for phase in run.phases] == ["prefill"]
    assert (run.case["logits"], run.case["attention"], run.weights) == ("all", "eager", "random")


def test_the_modules_that_an_adapter_was_put_on(records: list[Measurement]) -> None:
    assert of(records, "M1204").case["lora_targets"] == "c_attn"
    assert of(records, "M1212").case["lora_targets"] == "k_proj,o_proj,q_proj,v_proj"
    assert of(records, "M1212").case["quantization"] == "nf4"


ROW = {
    "id": "A1", "use": "accuracy", "why": "Known.", "repository": "a/b", "path": "c.csv", "commit": "0123456",
    "gpu": "A100", "metric": "max_memory_allocated", "printed": "1.50", "unit": "GiB", "rounding": "nearest",
    "published_model": "gpt2", "phase": "peak", "model": "openai-community/gpt2", "workload": "sft", "batch": "1",
    "seq": "64",
}  # fmt: skip
END = {**ROW, "id": "A2", "use": "end", "record": "A1", "printed": "1.25"}


def write(folder: Path, *rows: dict[str, str]) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file = folder / "manifest.csv"
    file.write_text(text.getvalue(), encoding="utf-8")
    return file


def test_an_end_joins_the_record_it_names(tmp_path: Path) -> None:
    (record,) = measurements(write(tmp_path, END, ROW))
    (phase,) = record.phases
    assert (phase.peak_allocated_bytes, phase.end_allocated_bytes) == (3 << 29, 5 << 28)
    assert record.fingerprint["as_printed"] == ["1.50 GiB", "1.25 GiB"]
    assert record.fingerprint["transformers"] is None


@pytest.mark.parametrize(
    ("rows", "line", "says"),
    [
        ([ROW, ROW], 3, "id A1 stands at"),
        ([{**ROW, "use": "maybe"}], 2, "use is 'maybe'; valid: accuracy, end, no"),
        ([{**ROW, "why": ""}], 2, "why is empty"),
        ([{**ROW, "commit": ""}], 2, "commit is empty"),
        ([{**ROW, "unit": "gb"}], 2, "unit is 'gb'; did you mean GB"),
        ([{**ROW, "rounding": ""}], 2, "rounding is ''; valid: down, nearest, none"),
        *(
            ([{**ROW, "printed": odd}], 2, f"printed is '{odd}'; a positive decimal number")
            for odd in ("", "much", "nan", "-1", "0", "1e99", "inf")
        ),
        ([{**ROW, "rounding": "none", "printed": "1.51"}], 2, "1.51 GiB is no whole number of bytes"),
        ([{**ROW, "model": "openai-community/gpt3"}], 2, "is not in the zoo; did you mean openai-community/gpt2"),
        ([{**ROW, "batch": "many"}], 2, "--batch must be a number, not 'many'"),
        ([{**ROW, "checkpointing": "True"}], 2, "--checkpointing must be true or false"),
        ([{**ROW, "new_tokens": "4"}], 2, "--new-tokens does not apply to sft"),
        ([{**ROW, "seq": "4096"}], 2, "1024 learned positions"),
        ([ROW, {**ROW, "id": "A2"}], 3, "the same case under the same versions as A1"),
        ([ROW, {**END, "record": "A9"}], 3, "record is 'A9'; the id of the same run's accuracy row"),
        ([ROW, {**END, "batch": "2"}], 3, "not the same run as A1: batch"),
        ([ROW, END, {**END, "id": "A3"}], 4, "A2 is the end of A1 too"),
        ([{**ROW, "record": "A1"}], 2, "only an end belongs to another row's record"),
    ],
)
def test_a_bad_row_is_one_line_with_its_place(tmp_path: Path, rows: list[dict[str, str]], line: int, says: str) -> None:
    file = write(tmp_path, *rows)
    with pytest.raises(UsageError) as caught:
        measurements(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"id,use\nA1,no\n", ":1: not the columns of a manifest"),
        (b"", ":1: not the columns of a manifest"),
        (b"\xff", "not UTF-8 text"),
        (",".join(COLUMNS).encode() + b"\nA1,no\n", f":2: 2 cells; {len(COLUMNS)}"),
        (",".join(COLUMNS).encode() + b'\n"A1\n', "not CSV"),
    ],
)
def test_a_file_that_is_no_manifest(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "manifest.csv"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        measurements(file)
    assert str(caught.value).startswith(f"{file}:")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_ends_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        published.main([str(tmp_path)])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"published: {tmp_path / 'manifest.csv'}: No such file or directory\n"


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    write(tmp_path, ROW)
    published.main([str(tmp_path)])
    assert len(list(read(tmp_path))) == 1
    assert "| a/b@0123456:c.csv | A100 | -, - | 1 | 0 | 0 |" in (tmp_path / "README.md").read_text(encoding="utf-8")
