"""Run what the plan asks for: trials that find each system's best way, then rounds that visit all in turn."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from benchmarks.postgres.adapter import DriveOptions, RunRequest, RunResult, Scenario, System
from benchmarks.postgres.goals import OURS
from benchmarks.postgres.history import make_history
from benchmarks.postgres.plan import HELD_WARM_SECONDS, RUN_SECONDS_MAX, TRIAL, Plan, ReportPart, RunSizes
from benchmarks.postgres.result_rows import GROWING, HistoryGrowth, Row, Table
from benchmarks.postgres.server import PostgresServer
from benchmarks.postgres.systems import load
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.campaign import RunFailed
from benchmarks.queue.folders import REPOSITORY
from benchmarks.queue.other_load import OtherLoad

CHILD_SECONDS_MAX: Final = 120.0
COPIED_JOBS_MAX: Final = 500_000


class Campaign:
    """Runs a plan on a server, telling `say` what it does."""

    def __init__(self, plan: Plan, server: PostgresServer, print_line: Callable[[str], None]) -> None:
        self._plan, self._server, self._print = plan, server, say
        self._installed: dict[str, str] = {}

    def table(self, part: ReportPart) -> Table:
        """Measure a part."""
        self._print(f"{part.title} ...")
        rows = [self._row(part, name) for name in self._plan.systems]
        for _ in range(1 if part.name == "held" else self._plan.sizes.rounds):
            for row in rows:
                if not row.failure:
                    self._measure(part, row)
        return Table(part, rows)

    def growth(self, options_by_scenario: dict[Scenario, DriveOptions]) -> list[HistoryGrowth]:
        """Databases with less and more history take turns, each round in another request."""
        found = [HistoryGrowth(count) for count in self._plan.history]
        filled = {growth.finished_jobs: self._server.make() for growth in found}
        try:
            for growth in found:
                self._print(f"Filling a database with {growth.finished_jobs:,} finished jobs ...")
                make_history(filled[growth.finished_jobs], growth.finished_jobs)
            for turn in range(self._plan.sizes.rounds):
                self._print(f"Ingot with finished jobs in its database, round {turn + 1} ...")
                for scenario in GROWING:
                    for place in range(len(found)):
                        growth = found[(place + turn) % len(found)]
                        growth.runs[scenario].append(
                            self._grown(scenario, ways[scenario], filled[growth.finished_jobs], growth.finished_jobs)
                        )
        finally:
            for url in filled.values():
                self._server.drop(url)
        return found

    def _grown(self, scenario: Scenario, options: DriveOptions, filled: str, finished_jobs: int) -> RunResult:
        """A run leaves its own jobs behind: much where there is little, so that is copied for every run."""
        order = replace(self._request(scenario, Row(OURS, "", way), filled, self._plan.sizes), drain_after=True)
        if finished_jobs >= COPIED_JOBS_MAX:
            return self._run(order)
        with self._server.database(like=filled) as url:
            return self._run(replace(order, url=url))

    def _row(self, part: ReportPart, name: str) -> Row:
        """The system with the best of its ways; without trials, the first."""
        try:
            system = load(name)
        except MissingDependency as error:
            return Row(name, "", DriveOptions(), failure=f"left out: {error}")
        ways = system.options[part.scenario]
        if len(ways) == 1 or not self._plan.sizes.trials:
            return Row(name, system.version, ways[0])
        trials = {way: score for way in ways if (score := self._try(part, system, way)) is not None}
        # With no trial that worked, the measured runs will fail too, and the table will say so.
        best = max(trials, key=lambda way: trials[way], default=ways[0])
        self._print(f"  {name}: {best.label}; the best of {len(ways)} ways")
        return Row(name, system.version, best)

    def _try(self, part: ReportPart, system: System, options: DriveOptions) -> float | None:
        row = Row(system.name, system.version, way)
        try:
            with self._server.database(like=self._template(system.name)) as url:
                figures = self._run(self._request(part.scenario, row, url, TRIAL))
        except RunFailed as error:
            self._print(f"  {system.name}: {way.label}; its trial failed: {error}")
            return None
        return -figures.p50_ms if part.name == "latency" else figures.rate

    def _measure(self, part: ReportPart, row: Row) -> None:
        try:
            with self._server.database(like=self._template(row.system)) as url:
                row.runs.append(self._run(self._request(part.scenario, row, url, self._plan.sizes)))
        except RunFailed as error:
            row.failure = str(error)
            self._print(f"  {row.system}: {row.options.label}; a run failed: {error}")

    def _template(self, name: str) -> str:
        """A database in which the system was installed, made once; nothing for a system that installs itself."""
        if name not in self._installed:
            self._installed[name] = ""
            if load(name).install is not None:
                self._installed[name] = url = self._server.make()
                said([sys.executable, "-m", "benchmarks.postgres.install", name, url], CHILD_SECONDS_MAX)
        return self._installed[name]

    def _request(self, scenario: Scenario, row: Row, url: str, sizes: RunSizes) -> RunRequest:
        held = scenario == "held"
        return RunRequest(
            system=row.system,
            scenario=scenario,
            options=row.options,
            url=url,
            warm_seconds=min(HELD_WARM_SECONDS, self._plan.held_seconds) if held else sizes.warm_seconds,
            seconds=self._plan.held_seconds if held else RUN_SECONDS_MAX if scenario == "run" else sizes.seconds,
            jobs=round(load(row.system).run_jobs * sizes.jobs_share),
            samples=sizes.samples,
            window_seconds=min(sizes.window_seconds, self._plan.held_seconds) if held else sizes.window_seconds,
        )

    def _run(self, request: RunRequest) -> RunResult:
        """Run one order in a process of its own. Raises `RunFailed` with the last thing that process said."""
        command = load(request.system).command
        call = [sys.executable, "-m", "benchmarks.postgres.measured_run", msgspec.json.encode(request).decode()]
        others, began, served = OtherLoad(), time.monotonic(), self._server.cpu_seconds()
        limit = CHILD_SECONDS_MAX + (request.seconds if request.scenario == "held" else 0)
        answer = said(call if command is None else command(order), limit)
        share = others.share() - (self._server.cpu_seconds() - served) / (time.monotonic() - began)
        figures = msgspec.json.decode(answer, type=RunResult)
        return replace(figures, others_share=max(0.0, share))


def said(command: list[str], seconds_max: float) -> str:
    """The last line that a process printed. Raises `RunFailed` with its last complaint."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=seconds_max)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no figures within {seconds_max:.0f} s") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip(" |+-")]
        raise RunFailed(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout.splitlines()[-1] if done.stdout else ""
