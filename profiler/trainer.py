"""``nooom.TrainerCallback``: the phases of anyone's ``transformers.Trainer``, as a record like those of our own cases.

Trainer(..., callbacks=[nooom.TrainerCallback(out="nooom-results")]).train()

The Trainer says when a step begins, when its optimizer steps and when the step is over; where forward ends and backward
begins is told by hooks on the model.  They hold nothing, so the peaks are those of a training without them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
import transformers

from nooom.formulas.errors import CannotMeasureError, NooomError, UsageError
from nooom.profiler.block import ended, facts, kept
from nooom.profiler.fingerprint import checkout_around
from nooom.profiler.instruments import Instrument
from nooom.profiler.instruments.running import RunningCpu, RunningCuda
from nooom.profiler.journal import refuse_what_takes_no_record
from nooom.profiler.measurement import Measurement, own_code, phase_to_json
from nooom.profiler.recorder import Recorder
from nooom.profiler.trainer_case import Inexpressible, Seen, case_of

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
EVALUATION = "evaluation"
"""Forward passes between steps."""
NO_GRAD = "no_grad"
"""Forward passes inside a step that keep nothing for a backward pass: a rollout, a reference."""

_TRAINER_MODULE = "transformers.trainer"


class TrainerCallback(transformers.TrainerCallback):
    """Measures a training by its phases: forward, backward, optimizer, and evaluation where there is one.

    ``forward`` is from the step's begin, or from the end of the micro-batch before, to the model's output; ``backward``
    until the optimizer steps, and so what the Trainer makes of the output, and clipping; ``optimizer`` until the step
    ends.  What happens between steps is in no phase but evaluation.  As everywhere the first step is kept apart
    (``first``), and a phase is the worst of the others.

    The record is that of a case (``sft`` or ``lora``) where a case can say what was trained; else it is of anyone's own
    code, by ``name``, and its fingerprint's ``no_case`` says what a case can't.

    A training that ends by an error tells its callbacks nothing.  What was measured until then becomes a record with
    the next use: ``record``, another training, a call of the model, or the interpreter's end; its status is ``oom``
    where the error that is then at hand says so, and ``crashed`` otherwise.

    Args:
        out: the folder to whose ``measurements.jsonl`` the record is appended, by rank 0 where there are several.
        name: of the record, where no case says what was trained.
    """

    def __init__(self, *, out: str | os.PathLike[str] | None = None, name: str | None = None) -> None:
        """Raises UsageError: a name that can't be one, or a folder that takes no record."""
        if name is not None:
            own_code(name)
        self._out = None if out is None else Path(out)
        self._name = name
        if self._out is not None:
            refuse_what_takes_no_record(self._out)
        self._training: _Training | None = None

    @property
    def record(self) -> Measurement:
        """Of the last training, once it has ended.

        Raises:
            UsageError: none has begun, or it has not ended.
        """
        if self._training is None:
            raise UsageError("TrainerCallback has seen no training: give it to a Trainer, and train")
        if self._training.record is None:
            if self._training.is_alive():
                raise UsageError("the training has not ended: its record is complete when it has")
            self._training.died(sys.exc_info()[1])
        assert self._training.record is not None
        return self._training.record

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None and self._training.record is None:
            # Another batch size is tried where the last one took too much: that attempt is no result.
            self._training.died(None, keep=not getattr(args, "auto_find_batch_size", False))
        self._training = training = _Training(args, given["model"], self._name, self._writes(state))
        weakref.finalize(self, training.died_unseen)

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.step_begins()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.enter(FORWARD)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.enter(OPTIMIZER)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.step_ends()

    def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._training is not None:
            self._training.ends(given["model"], given.get("optimizer"))

    def _writes(self, state: Any) -> Path | None:
        return self._out if state.is_world_process_zero else None


class _Training:
    """One training: its hooks, its recorder, and in the end its record.

    It holds neither the model nor the Trainer: a training that died must not keep them.
    """

    def __init__(self, args: Any, model: Any, name: str | None, out: Path | None) -> None:
        if args.n_gpu > 1:
            raise UsageError(
                "TrainerCallback can't tell phases under DataParallel: start one process per GPU, as torchrun does, or "
                "show one GPU with CUDA_VISIBLE_DEVICES"
            )
        self.record: Measurement | None = None
        self._args = args
        self._name = name or f"training of {_class_name(model)}"
        self._out = out
        self._seen = Seen()
        self._step: Any = None
        self._depth = 0
        self._thread = threading.get_ident()
        self._trainer, self._code = _trainer_above(sys._getframe(1))
        self._sizes = {
            "parameters": sum(each.numel() for each in model.parameters()),
            "trained_parameters": sum(each.numel() for each in model.parameters() if each.requires_grad),
        }
        checkout_around(Path.cwd())  # now: what is committed meanwhile is not what ran
        gc.collect()
        instrument = _instrument(args.device, model)
        instrument.open()
        self._recorder = Recorder(instrument)
        self._hooks = self._hooked(model)

    def _hooked(self, model: Any) -> list[Any]:
        # A training whose callback is gone must not live on in the model's hooks.
        here = weakref.ref(self)

        def before(_module: Any, args: Any, kwargs: Any) -> None:
            training = here()
            if training is not None:
                training._forward_begins(args, kwargs)

        def after(_module: Any, _args: Any, output: Any) -> None:
            training = here()
            if training is not None:
                training._forward_ends(failed=output is None)

        if getattr(self._args, "torch_compile", False):
            before, after = torch.compiler.disable(before), torch.compiler.disable(after)
        return [
            model.register_forward_pre_hook(before, with_kwargs=True),
            model.register_forward_hook(after, always_call=True),
        ]

    def _forward_begins(self, args: Any, kwargs: Any) -> None:
        if self._is_not_ours():
            return
        self._depth += 1
        if self._depth > 1:
            return
        if not self.is_alive():
            self.died(sys.exc_info()[1])
            return
        if self._step is None:
            self.enter(EVALUATION)
        elif not torch.is_grad_enabled():
            self.enter(NO_GRAD)
        else:
            self.enter(FORWARD)
            self._look_at(args, kwargs)

    def _forward_ends(self, *, failed: bool) -> None:
        if self._is_not_ours():
            return
        self._depth = max(self._depth - 1, 0)
        if self._depth or failed or self._step is None or not torch.is_grad_enabled():
            return
        self.enter(BACKWARD)

    def _is_not_ours(self) -> bool:
        """In another thread, in a backward pass that computes the forward pass again, or after the end."""
        return (
            self.record is not None or threading.get_ident() != self._thread or torch._C._current_graph_task_id() != -1
        )

    def _look_at(self, args: Any, kwargs: Any) -> None:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2:
            return
        self._seen.rows = max(self._seen.rows, int(tokens.shape[0]))
        self._seen.length = max(self._seen.length, int(tokens.shape[1]))
        mask = kwargs.get("attention_mask")
        if isinstance(mask, torch.Tensor) and not self._seen.padded:
            self._seen.padded = not bool(mask.cpu().all())  # on the host: nothing is put on the device

    def step_begins(self) -> None:
        if self.record is not None:
            return
        self._step = self._recorder.step()
        self._step.__enter__()
        self.enter(FORWARD)

    def step_ends(self) -> None:
        if self._step is None or self.record is not None:
            return
        self._step.__exit__(None, None, None)
        self._step = None
        self._seen.steps += 1

    def enter(self, phase: str) -> None:
        if self.record is None and self._recorder.current != phase:
            self._recorder.enter(phase)

    def leave(self) -> None:
        if self.record is None:
            self._recorder.leave()

    def is_alive(self) -> bool:
        """Whether the Trainer still trains: its method is in the stack, or it was never found there."""
        if self.record is not None:
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._code is not None:
            if frame.f_code is self._code:
                return True
            frame = frame.f_back
        return self._code is None

    def ends(self, model: Any, optimizer: Any) -> None:
        """The training has ended as it should."""
        if self.record is not None:
            return
        self._recorder.leave()
        self._seen.steps = max(self._seen.steps - 1, 0)  # without the first
        note: dict[str, Any] = {}
        try:
            trainer = self._trainer() if self._trainer is not None else None
            case, _ = case_of(trainer, self._args, model, optimizer, self._seen)
            if not getattr(self._recorder.instrument, "alone", True):
                raise Inexpressible("on the CPU, a training inside another measured block")
        except Inexpressible as reason:
            case, note = own_code(self._name), {"no_case": str(reason)}
        self._finish(case, note, None)

    def died(self, error: BaseException | None, *, keep: bool = True) -> None:
        """The training has ended by an error, which may be at hand, or be another by now."""
        if self.record is not None:
            return
        failed_in = self._recorder.current
        with contextlib.suppress(Exception):  # a GPU that has crashed answers no more questions
            self._recorder.leave()
        status, said = ended(error, failed_in)
        if status == "ok":
            message = "the training did not come to its end, and tells a callback no reason"
            status, said = "crashed", {"kind": "unknown", "message": message, "phase": failed_in}
        self._out = self._out if keep else None
        self._finish(own_code(self._name), {"no_case": "the training did not come to its end"}, (status, said))

    def died_unseen(self) -> None:
        """The callback is gone, or the interpreter ends: by the error that it has just shown, if by any."""
        error = getattr(sys, "last_value", None)
        with contextlib.suppress(NooomError):
            self.died(error if isinstance(error, BaseException) else None)

    def _finish(
        self, case: dict[str, Any], note: dict[str, Any], failure: tuple[str, dict[str, Any] | None] | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        notes: dict[str, Any] = {}
        with contextlib.suppress(*((Exception,) if failure else ())):
            notes = self._recorder.instrument.describe()
        with contextlib.suppress(*((Exception,) if failure else ())):
            self._recorder.instrument.close()
        steps = {"trainer_steps": self._seen.steps}
        status, error = failure or ("ok", None)
        first = self._recorder.first()
        self.record = Measurement(
            **case,
            **facts(self._recorder, {**notes, **self._sizes, **steps, **note}),
            status=status,
            phases=self._recorder.phases(),
            first={"phases": [phase_to_json(phase) for phase in first]} if first else None,
            error=error,
        )
        if self._out is not None:
            kept(self._out, self.record)


def _instrument(device: torch.device, model: Any) -> Instrument:
    if device.type == "cuda":
        return RunningCuda()
    if device.type != "cpu":
        raise CannotMeasureError(f"TrainerCallback measures on cuda and on the cpu, not on {device.type}")
    return RunningCpu(before_bytes=_held_by(model))


def _held_by(model: Any) -> int:
    """Bytes of the weights and buffers, which the CPU's allocator gave out before anybody watched."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*model.parameters(), *model.buffers())
    }
    return sum(storages.values())


def _class_name(model: Any) -> str:
    return type(model.get_base_model() if hasattr(model, "get_base_model") else model).__name__


def _trainer_above(frame: FrameType | None) -> tuple[weakref.ref[Any] | None, CodeType | None]:
    """The Trainer that calls, and the code of the method of it that runs as long as the training does."""
    found: weakref.ref[Any] | None = None
    code: CodeType | None = None
    while frame is not None:
        if frame.f_globals.get("__name__") == _TRAINER_MODULE and "self" in frame.f_code.co_varnames[:1]:
            code = frame.f_code
            if found is None and isinstance(trainer := frame.f_locals.get("self"), transformers.Trainer):
                found = weakref.ref(trainer)
        frame = frame.f_back
    return found, code
