"""A report of the time of a test run: the slowest files, the CPU time, and the wall time beside the budget.

A pytest plugin. It prints nothing unless INGOT_TEST_BUDGET_SECONDS is set, as `make check` and `make test` do. A run
over the budget prints a warning and does not fail: a busy machine is not a defect of a test.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from heapq import nlargest
from pathlib import Path
from typing import Final, Literal

import pytest

BUDGET_VARIABLE: Final = "INGOT_TEST_BUDGET_SECONDS"
STARTED_VARIABLE: Final = "INGOT_TEST_STARTED"  # Seconds since the epoch; set-up and lint count too.
FOLDER_VARIABLE: Final = "INGOT_TEST_RUN_FOLDER"
FILES_SHOWN: Final = 10
WHERE_TO_READ: Final = 'See "When the budget is exceeded" in CONTRIBUTING.md.'
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
Group = Literal["PostgreSQL", "Python", "other programs"]


# -- CPU time ---------------------------------------------------------------------------------------------------------


def record_postgres(pid: int) -> None:
    """Record the CPU time of a PostgreSQL server, before it is stopped; `pid` is that of its postmaster."""
    record("PostgreSQL", tree_seconds(pid))


def record_program(pid: int) -> None:
    """Record the CPU time of another server, before it is stopped."""
    record("other programs", tree_seconds(pid))


def record_python(pid: int) -> None:
    """Record the CPU time of a child that runs Python, with all that it started, before it is stopped."""
    global _python_children_seconds  # noqa: PLW0603
    seconds = tree_seconds(pid)
    record("Python", seconds)
    _python_children_seconds += seconds


def record(group: Group, seconds: float) -> None:
    """Record CPU time. Any process of the test run may do so."""
    if (folder := os.environ.get(FOLDER_VARIABLE)) is not None:
        with Path(folder, f"{group}.cpu").open("a") as file:
            file.write(f"{seconds:.2f}\n")


def recorded(folder: Path) -> dict[str, float]:
    """Return the recorded CPU time by group."""
    return {file.stem: sum(map(float, file.read_text().split())) for file in folder.glob("*.cpu")}


def tree_seconds(pid: int) -> float:
    """Return the CPU time of a process, of its descendants, and of those that have been reaped."""
    try:
        # The times are fields 14 to 17. Field 2, the name in parentheses, can contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # It has ended.
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND + sum(tree_seconds(int(child)) for child in children)


def _record_this_process() -> None:
    """Record the CPU time of this process as Python, and that of its children as other programs."""
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    record("Python", own.ru_utime + own.ru_stime)
    if os.environ.get("PYTEST_XDIST_WORKER") or not _has_workers:  # The children of the controller are the workers.
        record("other programs", max(0.0, ended.ru_utime + ended.ru_stime - _python_children_seconds))


# -- the plugin -------------------------------------------------------------------------------------------------------

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()
_started = time.time()
_has_workers = False
_python_children_seconds = 0.0  # Already recorded as Python's.


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder in which the processes of the run record CPU time."""
    global _has_workers  # noqa: PLW0603
    if not hasattr(config, "workerinput"):
        _has_workers = bool(config.getoption("numprocesses", None))
        folder = tempfile.mkdtemp(prefix="ingot-run-")
        os.environ[FOLDER_VARIABLE] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of each file: set-up, test and teardown, of all workers."""
    file = report.nodeid.partition("::")[0]
    _seconds[file] += report.duration
    _tests[file] += report.when == "setup"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Record the CPU time of this process, after `conftest.py` has stopped its programs."""
    _record_this_process()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the report."""
    if (budget := os.environ.get(BUDGET_VARIABLE)) is None:
        return
    wall = time.time() - float(os.environ.get(STARTED_VARIABLE, _started))
    terminalreporter.section("where the time went")
    for line in report_lines(_seconds, _tests, recorded(Path(os.environ[FOLDER_VARIABLE]))):
        terminalreporter.write_line(line)
    line, is_over = budget_line(wall, float(budget))
    terminalreporter.write_line(line, red=is_over, bold=is_over)


def report_lines(seconds: Mapping[str, float], tests: Mapping[str, int], cpu: Mapping[str, float]) -> Iterable[str]:
    """Yield the lines of the report: the slowest files, and the CPU time by group."""
    shown, total = min(FILES_SHOWN, len(seconds)), sum(seconds.values())
    yield f"The {shown} slowest of {len(seconds)} files; all files took {total:.0f} s, summed over the test processes:"
    for file, seconds_taken in nlargest(FILES_SHOWN, seconds.items(), key=lambda item: item[1]):
        yield f"{seconds_taken:8.1f} s  {tests[file]:5} tests  {file}"
    parts = ", ".join(
        f"{group} {seconds_taken:.0f} s" for group, seconds_taken in sorted(cpu.items(), key=lambda item: -item[1])
    )
    yield f"CPU time: {sum(cpu.values()):.0f} s ({parts})"


def budget_line(wall: float, budget: float) -> tuple[str, bool]:
    """Return a line with wall time and budget, and whether the budget is exceeded."""
    line = f"Budget: {wall:.0f} s of {budget:.0f} s."
    if wall <= budget:
        return line, False
    return f"WARNING: {line} The budget is exceeded by {wall - budget:.0f} s. {WHERE_TO_READ}", True
