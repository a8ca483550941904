"""Where measured tests come together: this process, or pytest-xdist's controller.

Writes records, and shows the summary.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nooom.benchmarks.pytest_plugin.rows import BASELINES, NEW, Row, summary
from nooom.formulas.errors import NooomError, UsageError

if TYPE_CHECKING:
    from nooom.benchmarks.journal import Journal

CARRIED = "nooom_gpu_memory"
"""The attribute of a report that holds a test's rows: reports come from workers as JSON, and so do they."""
_OUT = "--gpu-memory-out"
_FINISHED = ("ok", "oom")


class Results:
    """A plugin of its own, which only the process that shows results registers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._journal: Journal | None = None
        self._rows: list[Row] = []
        self._finished: set[str] = set()
        self._lost: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        folder = self._config.getoption("gpu_memory_out")
        if not folder or self._config.getoption("collectonly"):
            return
        from nooom.benchmarks.journal import Journal

        path = self._config.invocation_params.dir / Path(folder)  # from there, as every path on a command line
        if path.exists() and _OUT in self._config.invocation_params.args and self._config.inipath is None:
            # pytest looks for its root before it knows this option, and takes the folder for one of tests: then
            # tests have other ids than in the run before, in which the folder was not there.
            raise pytest.UsageError(f"write {_OUT}={folder}, or pytest takes that folder for the root of the tests")
        try:
            self._journal = Journal(path)
        except UsageError as error:
            raise pytest.UsageError(str(error).replace("--out", _OUT)) from error

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for text in getattr(report, CARRIED, ()):
            row = Row.from_json(text)
            self._rows.append(row)
            if self._journal is not None and row.record is not None:
                self._write(row, self._journal)

    def _write(self, row: Row, journal: Journal) -> None:
        from nooom.profiler.measurement import Measurement

        if row.name in self._finished:  # a plugin runs flaky tests again: a set of measurements has each once
            self._lost.append(f"{row.name} was measured again: the first record is kept")
            return
        try:
            record = Measurement.from_json(row.record)
            journal.append(record)
        except NooomError as error:
            self._lost.append(f"{row.name} is not in {journal.path}: {error}")
            return
        if record.status in _FINISHED:
            self._finished.add(row.name)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._journal is not None:
            self._journal.__exit__()
        if self._lost and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._rows and not self._lost:
            return
        terminalreporter.section("gpu memory")
        for line in summary(self._rows):
            terminalreporter.line(line)
        if any(NEW in row.states for row in self._rows):
            terminalreporter.line(
                "new: to record what they take, pytest --gpu-memory-out=DIR, then "
                f"nooom baseline update DIR --suite tests --to {BASELINES}"
            )
        for line in self._lost:
            terminalreporter.line(line)
