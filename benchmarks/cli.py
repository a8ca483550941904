"""The command: parses, calls one function per command, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from nooom.benchmarks.commands.case_flags import with_case_flags
from nooom.benchmarks.streams import silence
from nooom.formulas.errors import NooomError, UsageError, nearest

app = typer.Typer(
    name="nooom",
    help="No Out Of Memory: what LLM inference, fine-tuning and GRPO really take on a GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_INTERRUPTED = 130
_ESTIMATOR = "anyone's estimator as one more source: (Case, ModelShape) -> components in bytes; may be repeated"

# Options that several commands have alike.
_Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout")]
_Capacity = Annotated[str | None, typer.Option(metavar="200GiB", help="that GPU with another capacity")]
_Played = Annotated[str | None, typer.Option(help="the GPU to play, by its name: h100-80gb, a100-80gb, ...")]
_Estimators = Annotated[list[str] | None, typer.Option(metavar="MODULE:FUNCTION", help=_ESTIMATOR)]
_Sources = Annotated[
    str | None, typer.Option(help="sources with commas: article, an estimator's name, or all", show_default=False)
]


@app.callback()
def _root() -> None:
    """Keeps `nooom run` a subcommand whatever the number of commands."""


@app.command()
@with_case_flags
def run(
    suite: Annotated[
        str | None, typer.Argument(help="demo, smoke, article, h100, or a .toml file; none: one case by its flags")
    ] = None,
    *,
    flags: Mapping[str, Any],
    device: Annotated[
        str, typer.Option(help="auto (the GPU when there is one), cuda, cpu, phantom or dryrun")
    ] = "auto",
    gpu: _Played = None,
    gpu_memory: _Capacity = None,
    gpus: Annotated[str | None, typer.Option(metavar="N|all", help="one case per GPU at a time, on N of them")] = None,
    out: Annotated[Path, typer.Option(help="where measurements.jsonl is kept; appended to")] = Path("nooom-results"),
    resume: Annotated[bool, typer.Option("--resume", help="skip cases that the out folder has finished")] = False,
    shard: Annotated[str | None, typer.Option(metavar="K/N", help="only the K-th of N parts")] = None,
    budget: Annotated[str | None, typer.Option(metavar="9m", help="be over by then; what is left waits")] = None,
    timeout: Annotated[str, typer.Option(metavar="30m", help="limit for one case's process")] = "30m",
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="run a model's own code")] = False,
    attribute: Annotated[
        bool, typer.Option("--attribute", help="run each case once more to name the tensors at each peak")
    ] = False,
    as_json: _Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="show what the cases' processes print")] = False,
) -> int:
    """Measure the peaks of our cases, each in a fresh process, beside what the formulas say.

    Example: nooom run --model HuggingFaceTB/SmolLM2-135M --workload lora --batch 2 --seq 128 --device cpu
    """
    from nooom.benchmarks.commands import run as command

    request = command.Request(
        suite=suite,
        flags=flags,
        device=device,
        gpu=gpu,
        gpu_memory=gpu_memory,
        gpus=gpus,
        out=out,
        resume=resume,
        shard=shard,
        budget=budget,
        timeout_s=command.seconds(timeout, "--timeout"),
        trust_remote_code=trust_remote_code,
        attribute=attribute,
        as_json=as_json,
        verbose=verbose,
    )
    return command.run(request)


@app.command(context_settings={"allow_interspersed_args": False})
def measure(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="as you would run it", show_default=False)
    ] = None,
    *,
    device: Annotated[str, typer.Option(help="auto, cuda or phantom (auto: by --gpu, or what is there)")] = "auto",
    gpu: _Played = None,
    gpu_memory: _Capacity = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="how many of them (default: 1)")] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PyTorch's memory snapshot; FILE.PID with several processes")
    ] = None,
    as_json: _Json = False,
) -> int:
    """Measure anyone's command, unmodified: the peaks of each of its processes; exits as the command does.

    Example: nooom measure --gpu a100-80gb -- python train.py --batch-size 8
    """
    from nooom.benchmarks.commands import measure as command

    return command.measure(
        command.Request(
            words=words or (),
            device=device,
            gpu=gpu,
            gpu_memory=gpu_memory,
            gpus=gpus,
            snapshot=snapshot,
            as_json=as_json,
        )
    )


@app.command()
@with_case_flags
def predict(
    *,
    flags: Mapping[str, Any],
    gpu: Annotated[str | None, typer.Option(help="does it fit there? h100-80gb, a100-80gb, ...")] = None,
    gpu_memory: _Capacity = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="sources with commas: article, dryrun, phantom, an estimator's name, or all", show_default=False
        ),
    ] = None,
    estimator: _Estimators = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="the dry run as a memory snapshot, for PyTorch's viewers")
    ] = None,
    as_json: _Json = False,
) -> int:
    """Predict what a case takes, component by component, and whether it fits.

    Example: nooom predict --model Qwen/Qwen2.5-7B --workload lora --batch 8 --checkpointing --gpu h100-80gb --by dryrun
    """
    from nooom.benchmarks.commands import predict as command

    return command.predict(
        command.Request(
            flags=flags,
            gpu=gpu,
            gpu_memory=gpu_memory,
            by=by,
            estimators=estimator or (),
            snapshot=snapshot,
            as_json=as_json,
        )
    )


@app.command()
def validate(
    results: Annotated[
        list[Path] | None, typer.Argument(help="measurements.jsonl files or folders of them (none: what ships)")
    ] = None,
    *,
    claims: Annotated[bool, typer.Option("--claims", help="the article's claims and their verdicts")] = False,
    by: Annotated[
        str | None,
        typer.Option(
            help="sources with commas: article, dryrun (as recorded), an estimator's name, or all", show_default=False
        ),
    ] = None,
    estimator: _Estimators = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit code 1 where a claim is broken")] = False,
    as_json: _Json = False,
) -> int:
    """Hold predictions against measurements: errors by case and phase, and each source's scores.

    Example: nooom validate nooom-results --by article,accelerate
    """
    from nooom.benchmarks.commands import validate as command

    return command.validate(
        command.Request(
            results=results or (), claims=claims, by=by, estimators=estimator or (), strict=strict, as_json=as_json
        )
    )


@app.command()
def replay(
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT", help="of torch.cuda.memory._dump_snapshot, or JSON")],
    *,
    alloc_conf: Annotated[
        list[str] | None,
        typer.Option(metavar="CONF", help="other allocator settings, as PYTORCH_ALLOC_CONF; may be repeated"),
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="does it fit there? h100-80gb, a100-80gb, ...")] = None,
    gpu_memory: _Capacity = None,
    device_index: Annotated[
        int | None, typer.Option(metavar="N", help="which device's events (none: the most)")
    ] = None,
    against: Annotated[Path | None, typer.Option(metavar="OTHER", help="a snapshot of before: what grew since")] = None,
    as_json: _Json = False,
) -> int:
    """Replay a PyTorch memory snapshot through the simulated allocator, as it was set and under other settings.

    Example: nooom replay snapshot.pickle --alloc-conf expandable_segments:True --gpu a100-80gb
    """
    from nooom.benchmarks.commands import replay as command

    return command.replay(
        command.Request(
            snapshot=snapshot,
            alloc_confs=alloc_conf or (),
            gpu=gpu,
            gpu_memory=gpu_memory,
            device_index=device_index,
            against=against,
            as_json=as_json,
        )
    )


@app.command()
def calibrate(
    results: Annotated[
        list[Path] | None, typer.Argument(help="measurements.jsonl files or folders of them", show_default=False)
    ] = None,
    *,
    by: _Sources = None,
    estimator: _Estimators = None,
    out: Annotated[Path, typer.Option(help="where <gpu>/<versions>/constants.* go")] = Path("results/calibration"),
    as_json: _Json = False,
) -> int:
    """Fit a source's constants to measurements, and say which of them the measurements can't tell.

    Example: nooom calibrate nooom-results --out calibration
    """
    from nooom.benchmarks.commands import calibrate as command

    return command.calibrate(
        command.Request(results=results or (), by=by, estimators=estimator or (), out=out, as_json=as_json)
    )


@app.command()
@with_case_flags
def check(
    suite: Annotated[
        str | None, typer.Argument(help="what to run (smoke, a .toml file, ...); none: the baseline's cases")
    ] = None,
    *,
    flags: Mapping[str, Any],
    baseline: Annotated[
        Path | None, typer.Option(metavar="PATH", help="measurements: a file, or a folder of them")
    ] = None,
    current: Annotated[Path | None, typer.Option(metavar="PATH", help="the same, of now")] = None,
    device: Annotated[
        str | None,
        typer.Option(help="run the cases here and now: auto, cuda, cpu, phantom or dryrun", show_default=False),
    ] = None,
    gpu: _Played = None,
    gpu_memory: _Capacity = None,
    env: Annotated[
        list[Path] | None,
        typer.Option(metavar="REQUIREMENTS", help="run them in an environment of this file; may be repeated"),
    ] = None,
    out: Annotated[Path, typer.Option(help="where the report goes")] = Path("nooom-check"),
    confirm: Annotated[
        bool, typer.Option("--confirm", help="run what looks worse twice more; the median decides")
    ] = False,
    require_gpu: Annotated[bool, typer.Option("--require-gpu", help="fail unless a GPU was measured")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="what can't be compared fails too")] = False,
    timeout: Annotated[str, typer.Option(metavar="30m", help="limit for one case's process")] = "30m",
    as_json: _Json = False,
) -> int:
    """The gate: compare measurements with their baseline; exit 1 where a peak grew, and say what grew.

    Example: nooom check --baseline results/baselines --device phantom --gpu a100-80gb
    """
    from nooom.benchmarks.commands import check as command
    from nooom.benchmarks.commands.run import seconds

    return command.check(
        command.Request(
            suite=suite,
            flags=flags,
            baseline=baseline,
            current=current,
            device=device,
            gpu=gpu,
            gpu_memory=gpu_memory,
            environments=env or (),
            out=out,
            confirm=confirm,
            require_gpu=require_gpu,
            strict=strict,
            timeout_s=seconds(timeout, "--timeout"),
            as_json=as_json,
        )
    )


_baseline = typer.Typer(name="baseline", help="Baselines: what the gate compares with, in git.", no_args_is_help=True)
app.add_typer(_baseline)


@_baseline.command()
def update(
    results: Annotated[list[Path], typer.Argument(help="measurements.jsonl files or folders of them")],
    *,
    suite: Annotated[str, typer.Option(help="whose cases they are; names the file")],
    to: Annotated[Path, typer.Option(help="where baselines lie")] = Path("results/baselines"),
    band: Annotated[
        str | None, typer.Option(metavar="64MiB", help="growth of these cases that passes, instead of the usual")
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="drop cases that the measurements have not")] = False,
    as_json: _Json = False,
) -> int:
    """Write baselines from measurements; refuses what failed, ran out of memory or was measured in a dirty tree.

    Example: nooom baseline update nooom-results --suite smoke
    """
    from nooom.benchmarks.commands import baseline as command

    return command.update(command.Update(results=results, suite=suite, to=to, band=band, prune=prune, as_json=as_json))


@_baseline.command()
def log(
    case: Annotated[str, typer.Argument(help="a case_id, or words of its label")],
    *,
    where: Annotated[Path, typer.Option("--in", help="a baseline file, or the folder of them")] = Path(
        "results/baselines"
    ),
    as_json: _Json = False,
) -> int:
    """Show a case's figures in every commit that changed its baseline.

    Example: nooom baseline log "sft checkpointing" --in results/baselines
    """
    from nooom.benchmarks.commands import baseline as command

    return command.log(command.Log(case=case, where=where, as_json=as_json))


@app.command()
def doctor(as_json: _Json = False) -> int:
    """Say what is here: GPU, driver, NVML, versions, and what would stop a run, each with its remedy.

    Example: nooom doctor --json
    """
    from nooom.benchmarks.commands import doctor as command

    return command.doctor(as_json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``nooom`` and ``python -m benchmarks``; never returns."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        _known_command(arguments, list(command.commands))  # type: ignore[attr-defined]
        code = command.main(args=arguments, prog_name="nooom", standalone_mode=False)
        sys.stdout.flush()
        if code == _INTERRUPTED:  # Typer turns ^C into this exit code and says nothing
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except NooomError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted; everything finished so far is kept", _INTERRUPTED)
    except BrokenPipeError:
        silence(sys.stdout)
        return 0
    except OSError as error:
        if error.filename is not None:  # a path that was given, too long or not to be looked at, and no output
            return _fail(f"{error.filename}: {error.strerror}", UsageError.exit_code)
        silence(sys.stdout)
        return _fail(f"can't write the output: {error.strerror}", 1)
    except Exception as error:
        # Typer carries its own copy of click in some versions: its errors are known by what they can do.
        if type(error).__name__ == "Abort":
            return _fail("interrupted; everything finished so far is kept", _INTERRUPTED)
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message()
        # No arguments at all: that "error" is the help text itself.
        return _fail(" ".join(message.split()) if type(error).__name__ != "NoArgsIsHelpError" else message, 2)


def _known_command(arguments: Sequence[str], known: Sequence[str]) -> None:
    word = next((word for word in arguments if not word.startswith("-")), None)
    if word is not None and arguments[0] == word and word not in known:
        raise UsageError(f"no command {word!r}; {nearest(word, known)}")


def _fail(message: str, code: int) -> int:
    if message:  # none where the help text was all that was asked for
        try:
            print(message if message.startswith("Usage") else f"nooom: {_plain(message)}", file=sys.stderr, flush=True)
        except OSError:
            silence(sys.stderr)
    return code


def _plain(message: str) -> str:
    """One line that nothing in it can break or colour: a name from outside may stand in it."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in message)
