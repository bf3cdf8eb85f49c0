"""Runs a plan: trials that select the best options of each system, then rounds that run all systems in turn."""

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
    """Runs a plan on a server, and reports progress with `print_line`."""

    def __init__(self, plan: Plan, server: PostgresServer, print_line: Callable[[str], None]) -> None:
        self._plan, self._server, self._print = plan, server, print_line
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
        """Measure databases with less and more history in turn, each round in another order."""
        growths = [HistoryGrowth(count) for count in self._plan.history]
        filled = {growth.finished_jobs: self._server.make() for growth in growths}
        try:
            for growth in growths:
                self._print(f"Filling a database with {growth.finished_jobs:,} finished jobs ...")
                make_history(filled[growth.finished_jobs], growth.finished_jobs)
            for round_number in range(self._plan.sizes.rounds):
                self._print(f"Ingot with finished jobs in its database, round {round_number + 1} ...")
                for scenario in GROWING:
                    options = options_by_scenario[scenario]
                    for index in range(len(growths)):
                        growth = growths[(index + round_number) % len(growths)]
                        url = filled[growth.finished_jobs]
                        result = self._run_with_history(scenario, options, url, growth.finished_jobs)
                        growth.runs[scenario].append(result)
        finally:
            for url in filled.values():
                self._server.drop(url)
        return growths

    def _run_with_history(
        self, scenario: Scenario, options: DriveOptions, filled: str, finished_jobs: int
    ) -> RunResult:
        """Run a scenario on a database with finished jobs. A small one is copied, because a run adds jobs to it."""
        request = replace(self._request(scenario, Row(OURS, "", options), filled, self._plan.sizes), drain_after=True)
        if finished_jobs >= COPIED_JOBS_MAX:
            return self._run(request)
        with self._server.database(like=filled) as url:
            return self._run(replace(request, url=url))

    def _row(self, part: ReportPart, name: str) -> Row:
        """Return the row of a system with its best options, or without trials the first."""
        try:
            system = load(name)
        except MissingDependency as error:
            return Row(name, "", DriveOptions(), failure=f"skipped: {error}")
        candidates = system.options[part.scenario]
        if len(candidates) == 1 or not self._plan.sizes.trials:
            return Row(name, system.version, candidates[0])
        scores = {options: score for options in candidates if (score := self._try(part, system, options)) is not None}
        # If all trials failed, the measured runs will fail too, and the table reports it.
        best = max(scores, key=lambda options: scores[options], default=candidates[0])
        self._print(f"  {name}: {best.label}; the best of {len(candidates)}")
        return Row(name, system.version, best)

    def _try(self, part: ReportPart, system: System, options: DriveOptions) -> float | None:
        row = Row(system.name, system.version, options)
        try:
            with self._server.database(like=self._template(system.name)) as url:
                result = self._run(self._request(part.scenario, row, url, TRIAL))
        except RunFailed as error:
            self._print(f"  {system.name}: {options.label}; its trial failed: {error}")
            return None
        return -result.p50_ms if part.name == "latency" else result.rate

    def _measure(self, part: ReportPart, row: Row) -> None:
        try:
            with self._server.database(like=self._template(row.system)) as url:
                row.runs.append(self._run(self._request(part.scenario, row, url, self._plan.sizes)))
        except RunFailed as error:
            row.failure = str(error)
            self._print(f"  {row.system}: {row.options.label}; a run failed: {error}")

    def _template(self, name: str) -> str:
        """Return a database in which the system is installed, or nothing for a system that installs itself."""
        if name not in self._installed:
            self._installed[name] = ""
            if load(name).install is not None:
                self._installed[name] = url = self._server.make()
                run_process([sys.executable, "-m", "benchmarks.postgres.install", name, url], CHILD_SECONDS_MAX)
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
        """Run a request in a new process. Raises `RunFailed` with the last line of its error output."""
        command = load(request.system).command
        measured_run = [sys.executable, "-m", "benchmarks.postgres.measured_run", msgspec.json.encode(request).decode()]
        other_load, began, server_seconds = OtherLoad(), time.monotonic(), self._server.cpu_seconds()
        seconds_max = CHILD_SECONDS_MAX + (request.seconds if request.scenario == "held" else 0)
        output = run_process(measured_run if command is None else command(request), seconds_max)
        share = other_load.share() - (self._server.cpu_seconds() - server_seconds) / (time.monotonic() - began)
        result = msgspec.json.decode(output, type=RunResult)
        return replace(result, others_share=max(0.0, share))


def run_process(command: list[str], seconds_max: float) -> str:
    """Run a command and return the last line that it prints. Raises `RunFailed` with the last line of its errors."""
    try:
        process = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=seconds_max
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no result within {seconds_max:.0f} s") from None
    if process.returncode:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip(" |+-")]
        raise RunFailed(lines[-1] if lines else f"exit code {process.returncode}")
    return process.stdout.splitlines()[-1] if process.stdout else ""
