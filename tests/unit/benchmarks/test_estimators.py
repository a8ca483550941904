"""Anyone's estimator as a source: found, asked, and held to what an estimator gives."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nooom.benchmarks.estimators import registry
from nooom.benchmarks.models.zoo import resolve_case
from nooom.benchmarks.sources import sources
from nooom.formulas.case import Case
from nooom.formulas.errors import UsageError
from nooom.formulas.shape import ModelShape

CASE = Case(model="HuggingFaceTB/SmolLM2-135M", workload="inference", batch=2, seq=64)
SHAPE = resolve_case(CASE)[1]
FIGURE = "def estimate(case, shape):\n    return {'parameters': 2 * shape.parameters}\n"

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module of a new name to the current folder, which is on nobody's path; gives its name."""
    numbers = itertools.count()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])

    def written(text: str) -> str:
        name = f"estimator_{tmp_path.name}_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return name

    return written


def ask(estimator: registry.Estimator) -> dict[str, int] | None:
    return registry.estimate("mine", estimator, CASE, SHAPE)


# --- found -------------------------------------------------------------------------------------------------------


def test_the_adapters_are_known_where_nothing_is_installed_for_them() -> None:
    assert set(registry.ADAPTERS) <= set(registry.names())
    assert "accelerate" in registry.installed()
    assert set(registry.installed()) <= set(registry.names())


def test_knowing_the_names_imports_none_of_them() -> None:
    code = (
        "import sys\n"
        "from nooom.benchmarks.estimators import registry\n"
        "assert 'importlib.metadata' not in sys.modules\n"
        "registry.names(), registry.installed()\n"
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    packages = {adapter.package for adapter in registry.ADAPTERS.values()}
    assert not {"torch", "transformers", *packages} & set(run.stdout.split())


def test_a_module_in_the_current_folder_is_found_and_the_path_stays_as_it_was(write: Write) -> None:
    module = write(FIGURE)
    before = list(sys.path)
    estimator = registry.find(f"{module}:estimate")
    assert sys.path == before
    assert ask(estimator) == {"parameters": 2 * SHAPE.parameters}


def test_what_it_imports_only_when_it_is_asked_is_found_too(write: Write) -> None:
    helper = write("SIZE = 7\n")
    module = write(f"def estimate(case, shape):\n    from {helper} import SIZE\n    return {{'other': SIZE}}\n")
    estimator = registry.find(f"{module}:estimate")
    assert ask(estimator) == {"other": 7}


def test_the_current_folder_is_not_added_where_it_is_on_the_path_already(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write("import sys\nSEEN = list(sys.path)\n" + FIGURE)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    registry.find(f"{module}:estimate")
    assert sys.path == sys.modules[module].SEEN


def test_an_estimator_may_be_a_method_of_something(write: Write) -> None:
    module = write("class Mine:\n    @staticmethod\n    def estimate(case, shape):\n        return {'other': 1}\n")
    assert ask(registry.find(f"{module}:Mine.estimate")) == {"other": 1}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:estimate", "no module no_such_module, installed or in this folder"),
        ("no_such_package.inner:estimate", "no module no_such_package.inner"),
        ("json:no_such_function", "json has no no_such_function"),
        ("json:__name__", "__name__ is no function, but a value of type str"),
        ("json:", "must read module:function"),
        (":dumps", "must read module:function"),
        ("my-estimator.py:estimate", "must read module:function"),
        ("json:dumps:loads", "must read module:function"),
        ("nobody", "no estimator is named 'nobody'"),
        ("acelerate", "did you mean accelerate"),
    ],
)
def test_what_is_no_estimator_is_refused_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.find(name)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("raise RuntimeError('one\\ntwo')", "can't be imported: RuntimeError: one two"),
        ("import a_package_that_is_missing", "can't be imported: ModuleNotFoundError: No module named 'a_package"),
        ("raise SystemExit(3)", "can't be imported: SystemExit: 3"),
        ("def estimate(", "can't be imported: SyntaxError"),
    ],
)
def test_a_module_that_fails_when_it_is_imported_says_with_what(write: Write, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.find(f"{write(text)}:estimate")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = registry.Adapter(distribution="hf-mem", package="a_package_that_is_missing", module="none")
    monkeypatch.setattr(registry, "ADAPTERS", {"hf-mem": missing})
    with pytest.raises(UsageError, match="hf-mem is not installed here: pip install hf-mem"):
        registry.find("hf-mem")
    assert "hf-mem" in registry.names()
    assert "hf-mem" not in registry.installed()


def test_a_package_that_is_installed_and_broken_says_with_what(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = write("raise ImportError('no httpx')")
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr(
        registry, "ADAPTERS", {"hf-mem": registry.Adapter(distribution="hf-mem", package=broken, module="none")}
    )
    with pytest.raises(UsageError, match=f"hf-mem: {broken} can't be imported: ImportError: no httpx"):
        registry.find("hf-mem")


def distribution(folder: Path, name: str, entries: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entries}", encoding="utf-8")


def test_a_distribution_registers_its_estimator_by_an_entry_point(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write(FIGURE)
    lost = "lost = a_package_that_is_missing:estimate\n"
    distribution(tmp_path, "theirs", f"theirs = {module}:estimate\n{lost}of, two = {module}:estimate\n")
    distribution(tmp_path, "thief", f"accelerate = {module}:estimate\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.names().count("accelerate") == 1
    assert {"theirs", "lost"} <= set(registry.names())
    assert "theirs" in registry.installed()
    assert "lost" not in registry.installed()
    assert "of, two" not in registry.names()
    assert ask(registry.find("theirs")) == {"parameters": 2 * SHAPE.parameters}
    said = sources("article,theirs")["theirs"](CASE, SHAPE)
    assert said is not None
    assert said.allocated_bytes == 2 * SHAPE.parameters
    with pytest.raises(UsageError, match="lost: no module a_package_that_is_missing"):
        registry.find("lost")


# --- asked -------------------------------------------------------------------------------------------------------


class Whole:
    """An integer that isn't an int, as numpy's are."""

    def __index__(self) -> int:
        return 5


def giving(value: Any) -> registry.Estimator:
    return lambda case, shape: value


def test_it_may_say_nothing() -> None:
    assert ask(giving(None)) is None


def test_whole_numbers_of_any_type_are_bytes() -> None:
    numpy = pytest.importorskip("numpy")
    said = ask(giving({"parameters": numpy.int64(3), "other": Whole(), "rounding": 0}))
    assert said == {"parameters": 3, "other": 5, "rounding": 0}
    assert said is not None
    assert {type(size) for size in said.values()} == {int}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (5, "gave a value of type int, not bytes by component"),
        ([("other", 5)], "gave a value of type list"),
        ({}, "gave no components"),
        ({"other": 1.0}, "a value of type float for 'other', not a whole number of bytes"),
        ({"other": float("nan")}, "a value of type float"),
        ({"other": True}, "a value of type bool"),
        ({"other": "5"}, "a value of type str"),
        ({"other": None}, "a value of type NoneType"),
        ({"other": -1}, "less than no bytes for 'other'"),
        ({"other": 1 << 63}, "more than 2**63 bytes for 'other'"),
        ({"other": 1 << 62, "logits": 1 << 62}, "more than 2**63 bytes in all"),
        ({"": 1}, "a short word is wanted"),
        ({"  ": 1}, "a short word is wanted"),
        ({"two\nlines": 1}, "a short word is wanted"),
        ({"x" * 1000: 1}, "a short word is wanted"),
        ({5: 1}, "named a component with a value of type int"),
    ],
)
def test_what_are_no_components_is_refused(value: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(giving(value))
    assert str(caught.value).startswith("mine on SmolLM2-135M inference 2x64: ")
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError


def raising(error: BaseException) -> registry.Estimator:
    def estimate(case: Case, shape: ModelShape) -> dict[str, int]:
        raise error

    return estimate


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("one\n two"), "ValueError: one two"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (SystemExit(2), "SystemExit: 2"),
        (GeneratorExit("x"), "GeneratorExit: x"),
        (BaseException(), "BaseException"),
        (ValueError("\x1b[31mred\0"), "ValueError: \\x1b[31mred\\x00"),
        (Wordless(), "Wordless"),
        (RuntimeError("x" * 10_000), "RuntimeError: xxx"),
    ],
)
def test_what_it_raises_names_the_estimator_the_case_and_the_exception(error: BaseException, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        ask(raising(error))
    assert str(caught.value).startswith(f"mine on SmolLM2-135M inference 2x64 failed: {says}")
    assert len(str(caught.value)) < 400


def test_an_attribute_that_fails_when_it_is_asked_for_is_one_line(write: Write) -> None:
    module = write("def __getattr__(name):\n    raise KeyError(name)\n")
    with pytest.raises(UsageError, match=f"{module}'s estimate failed: KeyError: 'estimate'"):
        registry.find(f"{module}:estimate")


def test_the_keyboard_still_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(raising(KeyboardInterrupt()))


def test_what_it_prints_goes_where_notes_go(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    module = write("print('at import')\ndef estimate(case, shape):\n    print('when asked')\n    return {'other': 1}\n")
    ask(registry.find(f"{module}:estimate"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "at import\nwhen asked\n"


# --- the adapters ------------------------------------------------------------------------------------------------


def adapted(name: str, **flags: Any) -> dict[str, int] | None:
    """What an adapter says of a case; skips where its estimator isn't installed."""
    if name not in registry.installed():
        pytest.skip(f"{name} is not installed; make peers puts it into build/peers, for PYTHONPATH")
    case = Case.from_dict({"model": CASE.model, "workload": "inference", "batch": 2, "seq": 64, **flags})
    return registry.estimate(name, registry.find(name), case, resolve_case(case)[1])


def test_accelerate_says_the_weights_and_their_buffers() -> None:
    buffers = 2 * 32  # rotary frequencies of a head of 64, and the copy that transformers keeps of them
    fp32 = 4 * (134_515_008 + buffers)
    assert adapted("accelerate", dtype="fp32") == {"parameters": fp32}
    assert adapted("accelerate") == {"parameters": fp32 // 2}
    assert adapted("accelerate", quantization="int8") == {"parameters": fp32 // 4}


def test_accelerate_says_four_copies_of_fp32_and_two_of_mixed_precision() -> None:
    fp32 = 4 * (134_515_008 + 2 * 32)
    assert adapted("accelerate", workload="sft", dtype="fp32") == {"training": 4 * fp32}
    assert adapted("accelerate", workload="sft", dtype="fp32", autocast="bf16") == {"training": 2 * fp32}
    assert adapted("accelerate", workload="sft") == {"training": 2 * fp32}


@pytest.mark.parametrize("flags", [{"workload": "lora"}, {"workload": "grpo", "batch": 8}])
def test_accelerate_says_nothing_of_adapters_and_grpo(flags: dict[str, Any]) -> None:
    assert adapted("accelerate", **flags) is None
    assert adapted("accelerate", workload="sft", optimizer="sgd") is None


def test_accelerate_leaves_the_head_away_that_is_not_tied() -> None:
    said = adapted("accelerate", model="TinyLlama/TinyLlama-1.1B-Chat-v1.0", dtype="fp32")
    assert said == {"parameters": 4 * (1_100_048_384 - 32_000 * 2048 + 2 * 32)}


def test_hf_mem_says_the_weights_and_the_cache() -> None:
    cache = 2 * 30 * 3 * 64 * (64 + 8) * 2 * 2  # key and value, layers, heads, width, tokens, bytes, sequences
    assert adapted("hf-mem", new_tokens=8) == {"parameters": 2 * 134_515_008, "kv_cache": cache}
    assert adapted("hf-mem", workload="sft") is None


def test_hf_mem_says_the_weights_alone_of_a_config_that_it_can_not_read() -> None:
    assert adapted("hf-mem", model="openai-community/gpt2") == {"parameters": 2 * 124_439_808}


def test_hf_vram_calc_multiplies_the_weights() -> None:
    weights = 2 * 134_515_008
    for flags, factor in (({}, 1.2), ({"workload": "sft"}, 5.2), ({"workload": "lora"}, 1.2)):
        said = adapted("hf-vram-calc", **flags)
        assert said is not None
        assert said["parameters"] == weights
        assert sum(said.values()) == pytest.approx(factor * weights, rel=0.02)  # LoRA's own part is 0.6 % here


def test_llm_analysis_counts_two_matrices_of_four_times_the_width() -> None:
    said = adapted("llm-analysis", workload="sft")
    assert said is not None
    h, kv = 576, 192
    layer = 2 * h * h + 2 * h * kv + 2 * h * 4 * h + 2 * h
    parameters = 30 * layer + 49_152 * h + h
    assert said["parameters"] == 2 * parameters
    assert (said["gradients"], said["optimizer"]) == (4 * parameters, 12 * parameters)
    assert said["logits"] == 49_152 * 2 * 64 * 2


def test_llm_analysis_bounds_no_gpu_and_knows_no_fp32() -> None:
    assert adapted("llm-analysis", model="Qwen/Qwen2.5-72B", batch=512, seq=32768) is not None
    said = adapted("llm-analysis", new_tokens=100)
    assert said is not None
    assert set(said) <= {"parameters", "kv_cache", "activations"}
    assert adapted("llm-analysis", dtype="fp32") is None


def test_alloc_gives_half_precision_a_master_copy() -> None:
    said = adapted("alloc", workload="sft")
    assert said is not None
    hundredth = 2**30 / 100
    assert said["parameters"] == pytest.approx(2 * 134_515_008, abs=hundredth)
    assert said["optimizer"] == pytest.approx(12 * 134_515_008, abs=hundredth)
    assert adapted("alloc") is None


def test_deepspeed_gives_twenty_bytes_a_parameter() -> None:
    assert adapted("deepspeed", workload="sft") == {"training": 20 * 134_515_008}
    assert adapted("deepspeed", workload="sft", dtype="fp32") is None
    assert adapted("deepspeed") is None
