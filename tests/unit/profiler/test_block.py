"""``nooom.measure()``: a block of anyone's code, and every tensor at its peak by the module and line that made it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

import nooom
from nooom.benchmarks.journal import Journal, read
from nooom.formulas.errors import CannotMeasureError, UsageError
from nooom.profiler.fingerprint import checkout_around
from nooom.profiler.journal import append
from nooom.profiler.measurement import own_code

VOCABULARY, WIDTH, ROWS = 5000, 64, 32
LOGITS_BYTES = 4 * ROWS * VOCABULARY


class Config:
    vocab_size = VOCABULARY


class Model(nn.Module):
    """A head on two layers, told by its config how large its vocabulary is, as transformers' models are."""

    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.down(functional.silu(self.up(x))))
        return logits


class Hoarder(Model):
    """Keeps what it should let go."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        self.kept.append(logits * 2)
        return logits


def labels() -> torch.Tensor:
    return torch.zeros(ROWS, dtype=torch.long)


def named(phase: Any, category: str) -> list[dict[str, Any]]:
    return [tensor for tensor in phase.tensors if tensor["category"] == category]


def test_components_sum_to_the_peak_and_each_is_what_it_says() -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with nooom.measure("cpu", attribute=True) as measured:
        model(torch.randn(ROWS, WIDTH)).log_softmax(-1).mean().backward()
        measured.phase("optimizer")
        optimizer.step()
    block, step = measured.phases
    assert [block.name, step.name] == ["block", "optimizer"]
    for phase in measured.phases:
        assert phase.components is not None
        assert sum(phase.components.values()) == phase.peak_allocated_bytes
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert step.components is not None
    assert step.components["gradients"] == weights
    assert step.components["optimizer"] >= 2 * weights  # the step's temporaries too
    moments = {tensor["what"] for tensor in named(step, "optimizer")}
    assert {"exp_avg of head.weight", "exp_avg_sq of head.weight"} <= moments
    assert measured.peak_allocated_bytes == max(p.peak_allocated_bytes or 0 for p in measured.phases)


def test_a_tensor_that_is_kept_alive_is_named_by_its_module_and_line() -> None:
    model = Hoarder()
    with torch.no_grad(), nooom.measure("cpu", attribute=True) as measured:
        for _ in range(3):
            model(torch.randn(ROWS, WIDTH))
        measured.phase("afterwards")
    (kept,) = named(measured.phases[-1], "logits")
    assert (kept["count"], kept["bytes"], kept["module"], kept["op"]) == (3, LOGITS_BYTES, "Hoarder", "aten.mul.Tensor")
    assert kept["site"].startswith("profiler/test_block.py:")


def test_a_forgotten_no_grad_keeps_the_layers_activations() -> None:
    def held(context: Any) -> dict[str, int]:
        model = Model()
        with nooom.measure("cpu", attribute=True) as measured, context:
            output = model(torch.randn(ROWS, WIDTH))
            measured.phase("afterwards")
        assert output is not None
        return {tensor["module"]: tensor["bytes"] for tensor in named(measured.phases[-1], "activations")}

    assert held(torch.no_grad()) == {}
    forgotten = held(torch.enable_grad())
    assert {"up", "down", "Model"} <= set(forgotten)
    assert forgotten["up"] == 4 * ROWS * 4 * WIDTH


def test_a_second_copy_of_the_logits_is_named() -> None:
    model = Model()
    with nooom.measure("cpu", attribute=True) as measured:
        logits = model(torch.randn(ROWS, WIDTH))
        functional.cross_entropy(logits.double(), labels())
    copies = named(measured.phases[0], "logits")
    assert [(copy["op"], copy["dtype"]) for copy in copies] == [
        ("aten._to_copy.default", "float64"), ("aten._log_softmax.default", "float64"), ("aten.mm.default", "float32"),
    ]  # fmt: skip
    assert {copy["module"] for copy in copies} == {"head", None}


def test_in_the_backward_pass_a_tensor_belongs_to_the_module_that_is_undone() -> None:
    model = Model()
    with nooom.measure("cpu", attribute=True) as measured:
        loss = functional.cross_entropy(model(torch.randn(ROWS, WIDTH)), labels())
        measured.phase("backward")
        loss.backward()
    backward = measured.phases[1]
    gradients = {tensor["what"] for tensor in named(backward, "gradients")}
    assert "head.weight" in gradients
    assert {tensor["site"] for tensor in named(backward, "gradients")} == {None}


def test_parameters_are_named_when_the_block_builds_the_model() -> None:
    with nooom.measure("cpu", attribute=True) as measured:
        model = Model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    (phase,) = measured.phases
    assert phase.components is not None
    assert phase.components["parameters"] == weights
    assert {"up.weight", "down.weight", "head.weight"} == {tensor["what"] for tensor in named(phase, "parameters")}


def test_without_attribution_there_are_the_peaks_alone() -> None:
    with nooom.measure("cpu") as measured:
        kept = torch.empty(1000)
    (phase,) = measured.phases
    assert (phase.peak_allocated_bytes, phase.components) == (kept.nbytes, None)


def test_an_error_in_the_block_is_raised_and_the_hooks_are_gone() -> None:
    from torch.nn.modules import module

    before = len(module._global_forward_pre_hooks)
    with pytest.raises(ZeroDivisionError), nooom.measure("cpu", attribute=True) as measured:
        torch.empty(10)
        _ = 1 / 0
    assert len(module._global_forward_pre_hooks) == before
    assert measured.phases[0].peak_allocated_bytes == 40


def test_another_device_is_refused() -> None:
    with pytest.raises(UsageError, match="auto, cuda or cpu"):
        nooom.measure("tpu")


def peaks(measured: Any) -> list[tuple[str, int | None, int | None]]:
    return [(phase.name, phase.peak_allocated_bytes, phase.end_allocated_bytes) for phase in measured.phases]


def test_a_decorated_function_is_measured_at_each_call_and_stays_what_it_is() -> None:
    @nooom.measure("cpu")
    def work(size: int, *, twice: bool = False) -> int:
        """Takes memory."""
        kept = torch.empty(size)
        nooom.phase("second")
        if twice:
            torch.empty(size)
        return kept.nbytes

    figures = cast("Any", work)
    assert (work.__name__, work.__doc__, figures.measured) == ("work", "Takes memory.", None)
    assert work(10) == 40
    first = figures.measured
    assert work(1000, twice=True) == 4000
    assert peaks(first) == [("block", 40, 40), ("second", 40, 0)]
    assert [peak for _, peak, _ in peaks(figures.measured)] == [4000, 8000]


def test_a_recursive_function_is_one_measurement_and_methods_and_coroutines_are_measured_too(tmp_path: Path) -> None:
    @nooom.measure("cpu", out=tmp_path)
    def countdown(number: int) -> int:
        kept = torch.empty(10)
        return kept.nbytes + (countdown(number - 1) if number else 0)

    class Owner:
        @nooom.measure("cpu", name="a method", out=tmp_path)
        def method(self) -> Owner:
            return self

    @nooom.measure("cpu", name="a coroutine", out=tmp_path)
    async def coroutine() -> int:
        await asyncio.sleep(0)
        return torch.empty(100).nbytes

    owner = Owner()
    assert (countdown(3), owner.method(), asyncio.run(coroutine())) == (160, owner, 400)
    found = [(record.case["name"].rpartition(".")[2], record.peak_allocated_bytes) for record in read(tmp_path)]
    assert found == [("countdown", 160), ("a method", 0), ("a coroutine", 400)]


def test_a_generator_and_a_decorator_without_parentheses_are_refused() -> None:
    with pytest.raises(UsageError, match="is a generator"):

        @nooom.measure("cpu")
        def pieces() -> Iterator[int]:
            yield 1

    with pytest.raises(UsageError, match="with parentheses"):
        nooom.measure(cast("Any", len))


def test_a_phase_belongs_to_the_innermost_measurement_and_needs_one() -> None:
    with pytest.raises(UsageError, match="nothing is being measured"):
        nooom.phase("backward")
    with nooom.measure("cpu") as outer:
        held = torch.empty(100)
        with nooom.measure("cpu") as inner:
            torch.empty(10)
            nooom.phase("of the inner")
        nooom.phase("of the outer")
        torch.empty(1000)
    with pytest.raises(UsageError, match="outside of the measured block"):
        outer.phase("late")
    assert held.nbytes == 400
    # What the outer block holds is there for the inner one too, as it is on a GPU.
    assert peaks(inner) == [("block", 440, 400), ("of the inner", 400, 400)]
    assert peaks(outer) == [("block", 440, 400), ("of the outer", 4400, 400)]


def test_on_the_cpu_one_thread_is_measured_at_a_time() -> None:
    refused = []

    def elsewhere() -> None:
        for attempt in (lambda: nooom.phase("from a thread"), nooom.measure("cpu").__enter__):
            try:
                attempt()
            except CannotMeasureError as error:
                refused.append(str(error))

    with nooom.measure("cpu") as measured:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        torch.empty(10)
    assert len(refused) == 2
    assert refused[0].startswith("another thread is being measured")
    assert peaks(measured) == [("block", 40, 0)]


def test_blocks_may_end_in_any_order_and_attribution_stands_alone() -> None:
    first, second = nooom.measure("cpu"), nooom.measure("cpu")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    torch.empty(10)
    second.__exit__(None, None, None)
    assert (first.peak_allocated_bytes, second.peak_allocated_bytes) == (0, 40)
    with nooom.measure("cpu"), pytest.raises(UsageError, match="stands alone"), nooom.measure("cpu", attribute=True):
        pass
    with pytest.raises(UsageError, match="of one block"), first:
        pass


def test_beside_another_profiler_nothing_wrong_is_said() -> None:
    from torch.profiler import ProfilerActivity, profile

    with (
        profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(CannotMeasureError, match=r"torch\.profiler runs already"),
        nooom.measure("cpu"),
    ):
        pass
    with (
        pytest.warns(UserWarning, match="figures are unknown"),
        nooom.measure("cpu") as measured,
        profile(activities=[ProfilerActivity.CPU]),
    ):
        torch.empty(10)
    assert measured.peak_allocated_bytes is None
    with nooom.measure("cpu") as measured:
        torch.empty(10)
    assert measured.peak_allocated_bytes == 40


def test_a_block_with_a_name_and_a_folder_leaves_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with nooom.measure("cpu", name="two tensors", out=tmp_path / "new") as measured:
        torch.empty(10)
        with pytest.raises(UsageError, match="has not ended"):
            measured.record()
    (record,) = read(tmp_path)
    assert record == measured.record()
    assert {"case_id": record.case_id, "case": record.case} == own_code("two tensors")
    assert (record.source, record.device, record.status, record.gpu, record.error) == (
        "measured",
        "cpu",
        "ok",
        None,
        None,
    )
    assert (record.label, record.peak_allocated_bytes) == ("two tensors", 40)
    assert record.fingerprint["allocator"] == "expandable_segments:True"
    assert record.fingerprint["cpu_threads"] == torch.get_num_threads()
    assert measured.record("another").case == {"name": "another"}


def test_the_commit_of_a_record_is_the_checkouts_that_the_program_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
        return subprocess.run(["git", *who, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    def code() -> tuple[Any, Any]:
        checkout_around.cache_clear()
        with nooom.measure("cpu", name="nothing") as measured:
            pass
        found = measured.record().fingerprint
        return found["commit"], found["dirty"]

    monkeypatch.chdir(tmp_path)
    assert code() == (None, None)
    git("init", "--quiet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "train.py").write_text("x = 1\n")
    git("add", "train.py")
    git("commit", "--quiet", "--message", "one")
    monkeypatch.chdir(tmp_path / "folder")
    (tmp_path / "measurements.jsonl").write_text("")  # a result beside the code does not change it
    assert code() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "train.py").write_text("x = 2\n")
    assert code() == (git("rev-parse", "HEAD"), True)


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "oom", {"tried_bytes": 2 << 30}),
        (ZeroDivisionError("division\nby zero"), "crashed", {"message": "ZeroDivisionError: division by zero"}),
        (SystemExit(0), "ok", None),
        (SystemExit(3), "crashed", {"kind": "SystemExit"}),
    ],
    ids=["oom", "error", "exit", "failure"],
)
def test_how_a_block_was_left_is_the_records_status(
    tmp_path: Path, error: BaseException, status: str, says: dict[str, Any] | None
) -> None:
    with pytest.raises(type(error)), nooom.measure("cpu", name="left", out=tmp_path) as measured:
        torch.empty(10)
        measured.phase("second")
        raise error
    (record,) = read(tmp_path)
    assert (record.status, [phase.name for phase in record.phases]) == (status, ["block", "second"])
    if says is None:
        assert record.error is None
    else:
        assert says.items() <= cast("Any", record.error).items()
        assert cast("Any", record.error)["phase"] == "second"


def test_what_takes_no_record_is_said_before_the_block_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, says in (
        ({"out": tmp_path}, "needs a name"),
        ({"out": tmp_path / "file", "name": "x"}, "^out=.*can't write"),
    ):
        with pytest.raises(UsageError, match=says), nooom.measure("cpu", **cast("Any", options)):
            pytest.fail("the block ran")
    with pytest.raises(UsageError, match="not printable"):
        nooom.measure("cpu", name="two\nlines")
    with nooom.measure("cpu") as measured:
        pass
    with pytest.raises(UsageError, match="needs a name"):
        measured.record()


def test_a_record_that_finds_no_room_costs_the_program_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nooom.profiler.journal._PATIENCE_S", 0.05)

    @nooom.measure("cpu", name="beside a run", out=tmp_path)
    def work() -> int:
        return 7

    with Journal(tmp_path), pytest.warns(UserWarning, match="another run is writing") as caught:
        assert work() == 7
    kept = Path(str(caught[0].message).rpartition("the record is in ")[2])
    assert json.loads(kept.read_text())["case"] == {"name": "beside a run"}
    kept.unlink()


def test_threads_append_their_records_one_after_another(tmp_path: Path) -> None:
    with nooom.measure("cpu", name="x") as measured:
        pass
    record = measured.record()
    threads = [threading.Thread(target=append, args=(tmp_path, record)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(read(tmp_path)) == [record] * 8


@pytest.mark.parametrize("name", [5, None, "", "\x1b[31m", "a\nb", "x" * 101, b"x"])
def test_a_phase_that_no_record_could_hold_is_refused_at_once(name: Any) -> None:
    with nooom.measure(device="cpu") as measured:
        with pytest.raises(UsageError, match="a name is 1 to 100 characters that print"):
            measured.phase(name)
        measured.phase("fine")
    assert [phase.name for phase in measured.phases] == ["block", "fine"]


def test_each_call_of_a_function_is_a_record_of_its_own_name(tmp_path: Path) -> None:
    from nooom.benchmarks import gate

    @nooom.measure(device="cpu", name="step", out=tmp_path)
    def step(size: int) -> torch.Tensor:
        return torch.ones(size)

    step(1 << 10)
    step(1 << 12)
    assert [entry.measurement.label for entry in gate.read_set(tmp_path)] == ["step", "step (2)"]


def test_what_runs_later_is_not_measured_as_nothing() -> None:
    async def later() -> None:
        torch.ones(1 << 20)

    @nooom.measure(device="cpu")
    def started() -> Any:
        return later()

    @nooom.measure(device="cpu")
    def pieces() -> Any:
        return (torch.ones(1 << 20) for _ in range(2))

    for function, kind in ((started, "coroutine"), (pieces, "generator")):
        with pytest.raises(UsageError, match=f"returns a {kind}, which runs later"):
            function()
