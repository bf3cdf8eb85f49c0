"""Run what the plan asks for: trials that find each system's best ways, then rounds that visit all in turn."""

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
FINALIST_SHARE: Final = 0.6  # A trial is short: a way at this share of the best may still win.
OURS: Final = "ingot"


class RunFailed(Exception):
    """A measured run ended without figures."""


class Campaign:
    """Runs a plan on files below `folder`, telling `say` what it does."""

    def __init__(self, plan: Plan, folder: Path, say: Callable[[str], None]) -> None:
        self._plan, self._folder, self._say = plan, folder, say

    def table(self, part: ReportPart, known: Table | None = None) -> Table:
        """Measure a part. `known` is a table whose ways are taken over, in place of trials."""
        self._say(f"{part.title} ...")
        if known:
            rows = [Row(row.system, row.level, row.way) for row in known.rows]
        else:
            rows = [row for name in self._plan.systems for row in self._finalists(part, name)]
        for _ in range(self._plan.sizes.rounds):
            for row in rows:
                self._measure(part, row)
        return Table(part, best_rows(rows))

    def growth(self, ways: dict[Scenario, DriveOptions]) -> list[HistoryGrowth]:
        """Empty and filled files take turns, each round in another order, so that all see the same machine."""
        found = [HistoryGrowth(count) for count in (0, *self._plan.history)]
        with self._fresh_files() as scratch:
            for growth in found[1:]:
                self._say(f"Filling a file with {growth.finished_jobs:,} finished jobs ...")
                (scratch / str(growth.finished_jobs)).mkdir()
                make_history(scratch / str(growth.finished_jobs), growth.finished_jobs)
            for turn in range(self._plan.sizes.rounds):
                self._say(f"Ingot with finished jobs in its file, round {turn + 1} ...")
                for scenario, way in ways.items():
                    for place in range(len(found)):
                        growth = found[(place + turn) % len(found)]
                        growth.runs[scenario].append(self._grown(scenario, way, scratch / str(growth.finished_jobs)))
        return found

    def _grown(self, scenario: Scenario, way: DriveOptions, filled: Path) -> RunResult:
        part, row = ReportPart("history", scenario, busy=False, title=""), Row(OURS, "FULL", way)
        if filled.is_dir():
            return run_order(replace(self._order(part, row, filled), drain_after=True))
        with self._fresh_files() as folder:
            return run_order(self._order(part, row, folder))

    def _finalists(self, part: ReportPart, name: str) -> list[Row]:
        found: list[Row] = []
        for level in load(name).levels:
            if any(row.is_full for row in found):
                self._say(f"  {name}: its default is FULL already, so it has one row")
                continue
            found += self._try_ways(part, name, level)
        return found

    def _try_ways(self, part: ReportPart, name: str, level: Level) -> list[Row]:
        """The best ways of short trials; without trials, the first way that suits the part.

        Beside a busy loop only a short switch interval is tried: at Python's own, every statement waits 5 ms.
        """
        ways = load(name).ways[part.scenario]
        rows = [Row(name, level, way) for way in ways if way.suits_busy or not part.busy]
        if not self._plan.sizes.trial_seconds:
            return rows[:1]
        trials = {row.way: rate for row in rows if (rate := self._try(part, row)) is not None}
        if not trials:
            return rows[:1]  # Its measured runs will fail too, and the table will say so.
        enough = max(trials.values()) * FINALIST_SHARE
        ranked = sorted((row for row in rows if row.way in trials), key=lambda row: -trials[row.way])
        finalists = [row for row in ranked[:FINALISTS_MAX] if trials[row.way] >= enough]
        for row in finalists:
            self._say(f"  {name} {level}: {row.way.label}; about {trials[row.way]:,.0f} jobs/s in a trial")
        return finalists

    def _try(self, part: ReportPart, row: Row) -> float | None:
        sizes = self._plan.sizes
        with self._fresh_files() as folder:
            order = replace(
                self._order(part, row, folder),
                warm_seconds=TRIAL_WARM_SECONDS,
                seconds_max=sizes.trial_seconds,
                jobs_max=sizes.trial_jobs,
            )
            try:
                row.trial = run_order(order)
            except RunFailed as error:
                self._say(f"  {row.system} {row.level}: {row.way.label}; its trial failed: {error}")
                return None
        return row.trial.rate

    def _measure(self, part: ReportPart, row: Row) -> None:
        with self._fresh_files() as folder:
            try:
                row.runs.append(run_order(self._order(part, row, folder)))
            except RunFailed as error:
                row.failure = str(error)
                self._say(f"  {row.system} {row.level}: {row.way.label}; a run failed: {error}")

    def _order(self, part: ReportPart, row: Row, folder: Path) -> RunRequest:
        sizes = self._plan.sizes
        return RunRequest(
            system=row.system,
            level=row.level,
            scenario=part.scenario,
            busy=part.busy,
            way=row.way,
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


def run_order(order: RunRequest) -> RunResult:
    """Run one order in a process of its own. Raises `RunFailed` with the last thing that process said."""
    command = [sys.executable, "-m", "benchmarks.queue.measured_run", msgspec.json.encode(order).decode()]
    others = OtherLoad()
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=CHILD_SECONDS_MAX
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no figures within {CHILD_SECONDS_MAX} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RunFailed(lines[-1])
    figures = msgspec.json.decode(done.stdout.splitlines()[-1], type=RunResult)
    return replace(figures, others_share=others.share())
