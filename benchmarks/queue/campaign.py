"""Runs a plan: trials that select the best options of each system, then rounds that run all systems in turn."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.queue.adapter import DriveOptions, Level, RunRequest, RunResult, Scenario
from benchmarks.queue.folders import REPOSITORY
from benchmarks.queue.history import make_history
from benchmarks.queue.other_load import OtherLoad
from benchmarks.queue.plan import Plan, ReportPart
from benchmarks.queue.result_rows import HistoryGrowth, Row, Table, best_rows
from benchmarks.queue.systems import load

CHILD_SECONDS_MAX: Final = 120
TRIAL_WARM_SECONDS: Final = 0.1
FINALISTS_MAX: Final = 2
FINALIST_SHARE: Final = 0.6  # Trials are short: options with this share of the best rate may still be faster.
OURS: Final = "ingot"


class RunFailed(Exception):
    """A measured run ended without a result."""


class Campaign:
    """Runs a plan on files in `folder`, and reports progress with `print_line`."""

    def __init__(self, plan: Plan, folder: Path, print_line: Callable[[str], None]) -> None:
        self._plan, self._folder, self._print = plan, folder, print_line

    def table(self, part: ReportPart, earlier: Table | None = None) -> Table:
        """Measure a part. The options of an `earlier` table are used instead of trials."""
        self._print(f"{part.title} ...")
        if earlier:
            rows = [Row(row.system, row.level, row.options) for row in earlier.rows]
        else:
            rows = [row for name in self._plan.systems for row in self._finalists(part, name)]
        for _ in range(self._plan.sizes.rounds):
            for row in rows:
                self._measure(part, row)
        return Table(part, best_rows(rows))

    def growth(self, options_by_scenario: dict[Scenario, DriveOptions]) -> list[HistoryGrowth]:
        """Measure empty and filled files in turn, each round in another order."""
        growths = [HistoryGrowth(count) for count in (0, *self._plan.history)]
        with self._fresh_files() as scratch:
            for growth in growths[1:]:
                self._print(f"Filling a file with {growth.finished_jobs:,} finished jobs ...")
                (scratch / str(growth.finished_jobs)).mkdir()
                make_history(scratch / str(growth.finished_jobs), growth.finished_jobs)
            for round_number in range(self._plan.sizes.rounds):
                self._print(f"Ingot with finished jobs in its file, round {round_number + 1} ...")
                for scenario, options in options_by_scenario.items():
                    for index in range(len(growths)):
                        growth = growths[(index + round_number) % len(growths)]
                        folder = scratch / str(growth.finished_jobs)
                        growth.runs[scenario].append(self._run_with_history(scenario, options, folder))
        return growths

    def _run_with_history(self, scenario: Scenario, options: DriveOptions, filled: Path) -> RunResult:
        part, row = ReportPart("history", scenario, busy=False, title=""), Row(OURS, "FULL", options)
        if filled.is_dir():
            return run_request(replace(self._request(part, row, filled), drain_after=True))
        with self._fresh_files() as folder:
            return run_request(self._request(part, row, folder))

    def _finalists(self, part: ReportPart, name: str) -> list[Row]:
        rows: list[Row] = []
        for level in load(name).levels:
            if any(row.is_full for row in rows):
                self._print(f"  {name}: its default is already FULL, so it has one row")
                continue
            rows += self._try_options(part, name, level)
        return rows

    def _try_options(self, part: ReportPart, name: str, level: Level) -> list[Row]:
        """Return rows with the best options of short trials, or without trials the first options that fit the part.

        Beside a busy loop, only the short switch interval is tried: with Python's default, every statement waits 5 ms.
        """
        candidates = load(name).options[part.scenario]
        rows = [Row(name, level, options) for options in candidates if options.suits_busy or not part.busy]
        if not self._plan.sizes.trial_seconds:
            return rows[:1]
        trials = {row.options: rate for row in rows if (rate := self._try(part, row)) is not None}
        if not trials:
            return rows[:1]  # Its measured runs will fail too, and the table reports it.
        rate_min = max(trials.values()) * FINALIST_SHARE
        ranked = sorted((row for row in rows if row.options in trials), key=lambda row: -trials[row.options])
        finalists = [row for row in ranked[:FINALISTS_MAX] if trials[row.options] >= rate_min]
        for row in finalists:
            self._print(f"  {name} {level}: {row.options.label}; about {trials[row.options]:,.0f} jobs/s in a trial")
        return finalists

    def _try(self, part: ReportPart, row: Row) -> float | None:
        sizes = self._plan.sizes
        with self._fresh_files() as folder:
            request = replace(
                self._request(part, row, folder),
                warm_seconds=TRIAL_WARM_SECONDS,
                seconds_max=sizes.trial_seconds,
                jobs_max=sizes.trial_jobs,
            )
            try:
                row.trial = run_request(request)
            except RunFailed as error:
                self._print(f"  {row.system} {row.level}: {row.options.label}; its trial failed: {error}")
                return None
        return row.trial.rate

    def _measure(self, part: ReportPart, row: Row) -> None:
        with self._fresh_files() as folder:
            try:
                row.runs.append(run_request(self._request(part, row, folder)))
            except RunFailed as error:
                row.failure = str(error)
                self._print(f"  {row.system} {row.level}: {row.options.label}; a run failed: {error}")

    def _request(self, part: ReportPart, row: Row, folder: Path) -> RunRequest:
        sizes = self._plan.sizes
        return RunRequest(
            system=row.system,
            level=row.level,
            scenario=part.scenario,
            busy=part.busy,
            options=row.options,
            folder=str(folder),
            warm_seconds=sizes.warm_seconds,
            seconds_max=sizes.seconds_max,
            jobs_max=sizes.jobs_max,
            wave_jobs=part.wave_jobs,
        )

    @contextmanager
    def _fresh_files(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as scratch:
            yield Path(scratch)


def run_request(request: RunRequest) -> RunResult:
    """Run a request in a new process. Raises `RunFailed` with the last line of its error output."""
    command = [sys.executable, "-m", "benchmarks.queue.measured_run", msgspec.json.encode(request).decode()]
    other_load = OtherLoad()
    try:
        process = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=CHILD_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no result within {CHILD_SECONDS_MAX} s") from None
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
        raise RunFailed(lines[-1])
    result = msgspec.json.decode(process.stdout.splitlines()[-1], type=RunResult)
    return replace(result, others_share=other_load.share())
