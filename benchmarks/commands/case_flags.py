"""The case flags as command-line options, made from the one table in ``formulas.case``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from nooom.formulas.case import FLAGS, UNBUILT_FLAGS, CaseError, Flag

_DEFAULTS = {
    "batch": "1; grpo: one group",
    "new_tokens": "0; grpo: 256",
    "micro_batch": "the batch",
    "logprob_micro_batch": "the micro-batch",
    "reference": "shared; with --full: separate",
    "checkpointing": "off",
}
"""Defaults that depend on other flags, in words."""


def with_case_flags(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command every case flag; it receives those that were given as the mapping ``flags``."""

    def wrapped(**options: Any) -> int:
        flags = {name: options.pop(name) for name in FLAGS}
        given = {name: _typed(name, value) for name, value in flags.items() if value is not None}
        for name in UNBUILT_FLAGS:
            if options.pop(name):
                given[name] = True
        return command(flags=given, **options)

    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    parameters = own + [_parameter(name, flag) for name, flag in FLAGS.items()] + [_unbuilt(n) for n in UNBUILT_FLAGS]
    wrapped.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
    return wrapped


def _parameter(name: str, flag: Flag) -> inspect.Parameter:
    option = "--" + name.replace("_", "-")
    names = (option, f"--no-{name.replace('_', '-')}") if flag.kind is bool else (option,)
    metavar = None if flag.kind is bool else {int: "INTEGER", float: "NUMBER", str: "TEXT"}[flag.kind]
    declared = typer.Option(
        "/".join(names), help=_help(name, flag), metavar=metavar, show_default=False, rich_help_panel="The case"
    )
    kind = bool if flag.kind is bool else str
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, declared]
    )


def _typed(name: str, value: Any) -> Any:
    """Numbers are read here and not by the command-line library, whose message leaves out what was typed."""
    kind = FLAGS[name].kind
    if kind not in (int, float):
        return value
    if not re.fullmatch(r"-?[0-9]{1,18}" if kind is int else r"-?[0-9]*\.?[0-9]+(e-?[0-9]{1,3})?", value):
        what = "an integer" if kind is int else "a number"
        raise CaseError(f"--{name.replace('_', '-')} must be {what}, not {value[:40]!r}")
    return kind(value)


def _unbuilt(name: str) -> inspect.Parameter:
    """Hidden: understood only to say by name that it is not built yet."""
    declared = typer.Option("--" + name.replace("_", "-"), hidden=True)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, declared])


def _help(name: str, flag: Flag) -> str:
    text = flag.help
    if flag.choices:
        text += f": {', '.join(flag.choices)}"
    if len(flag.workloads) < 4:
        text += f" ({', '.join(flag.workloads)})"
    default = _DEFAULTS.get(name, flag.default)
    if default not in (None, "", False):
        text += f" \\[default: {default}]"  # escaped: square brackets are markup in help texts
    return text
