"""The pytest plugin: limits and baselines of GPU memory as marks, blocks measured by a fixture.  docs/pytest.md.

pytest loads it in every environment that has nooom, so nothing heavy is imported before a test asks for a measurement,
and nothing at all happens to tests that don't.  ``-p no:nooom`` switches it off.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from nooom.benchmarks.pytest_plugin import marks
from nooom.benchmarks.pytest_plugin.results import CARRIED, Results
from nooom.formulas.errors import NooomError

if TYPE_CHECKING:
    from nooom.benchmarks.pytest_plugin.fixture import GpuMemory
    from nooom.benchmarks.pytest_plugin.rows import Row
    from nooom.benchmarks.pytest_plugin.runs import Machine, Run  # noqa: F401 (in a string)

_MACHINE = pytest.StashKey["Machine"]()
_RUN = pytest.StashKey["Run"]()
_BLOCKS = pytest.StashKey["GpuMemory"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nooom", "GPU memory (nooom)")
    group.addoption(
        "--gpu-memory-out",
        metavar="DIR",
        help="append the record of every measured test to DIR/measurements.jsonl, for nooom check and nooom baseline",
    )
    group.addoption(
        "--gpu-memory-strict",
        action="store_true",
        help="a test that its baseline has no comparable line of fails",
    )
    group.addoption(
        "--gpu-memory-attribute",
        action="store_true",
        help="run each marked test once more, and say in its record what its peaks are made of",
    )
    group.addoption(
        "--gpu-memory-share",
        action="store_true",
        help="measure on a GPU that another process measures on, too",
    )
    parser.addini(
        "gpu_memory_baselines",
        "where gpu_memory_baseline looks: a folder or a file of measurements, from the root (gpu-memory-baselines)",
        default="",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in marks.LINES:
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers send what they measured to their controller
        config.pluginmanager.register(Results(config), "nooom-results")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures are made: a mark that can't be followed is an error of the test, in one line."""
    # What an earlier try left, where a plugin runs flaky tests again.
    if _RUN in item.stash:
        del item.stash[_RUN]
    if _BLOCKS in item.stash:
        del item.stash[_BLOCKS]
    try:
        asked = marks.asked(item)
        if asked is not None:
            from nooom.benchmarks.pytest_plugin import runs

            item.stash[_RUN] = runs.Run(item, asked, _machine(item.config))
    except NooomError as error:  # without it, as pytest would show both
        raise pytest.fail.Exception(f"{error} ({item.nodeid})", pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    run = item.stash.get(_RUN, None)
    if run is None:
        return (yield)
    with run.measured():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "call" and (rows := _rows(item)):
        # Before the report is made, which copies them: into junit's XML, and past xdist.
        for name, row in rows.items():
            item.user_properties.append((f"{name}_peak_bytes", row.peak_bytes))
            item.user_properties.append((f"{name}_evidence", row.evidence))
        report = yield
        setattr(report, CARRIED, [row.to_json() for row in rows.values()])
        return report
    return (yield)


def pytest_unconfigure(config: pytest.Config) -> None:
    machine = config.stash.get(_MACHINE, None)
    if machine is not None:
        machine.locks.release()


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """Measures blocks inside a test by phase, names the phases of a marked one, finds leaks (nooom)."""
    from nooom.benchmarks.pytest_plugin.fixture import GpuMemory

    item: pytest.Item = request.node
    item.stash[_BLOCKS] = GpuMemory(item.nodeid, _machine(item.config), item.stash.get(_RUN, None))
    return item.stash[_BLOCKS]


def _machine(config: pytest.Config) -> Machine:
    from nooom.benchmarks.pytest_plugin.runs import Machine

    if _MACHINE not in config.stash:
        config.stash[_MACHINE] = Machine(config)
    return config.stash[_MACHINE]


def _rows(item: pytest.Item) -> dict[str, Row]:
    """What was measured in a test, by what it is called among the test's properties."""
    run, blocks = item.stash.get(_RUN, None), item.stash.get(_BLOCKS, None)
    found = {} if run is None or run.row is None else {"gpu_memory": run.row}
    return found | {f"gpu_memory::{name}": row for name, row in (blocks.rows if blocks is not None else {}).items()}
