"""Run the fault tests for hours instead of seconds: `python -m tests.soak --help`.

Every line reports progress. A failure prints the violation, the seed and the folder of the store, and ends the run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests import campaigns, event_loop
from tests.conformance.claimers import share_jobs, share_jobs_amid_trouble
from tests.conformance.machines.blob_rules import WHERE, live
from tests.factories import ENGINES, Bench, open_bench
from tests.faults import kill_points
from tests.faults.blob_kill_run import BlobKillRun
from tests.faults.blob_server_process import BUCKET_KILL_POINTS, KILL_POINTS
from tests.faults.invariants import Broken
from tests.faults.object_kill_run import ObjectKillRun
from tests.faults.paused_workers import run_paused_workers
from tests.faults.power_cut_run import PowerCutRun
from tests.faults.store_kill_run import StoreKillRun
from tests.postgres import shared_folder
from tests.s3 import shared_bucket_server
from tests.system.paused_workers import run_paused_workers as run_paused_worker_processes

KILLS = 5_000
CUTS = 2_000
POINT_KILLS = 1_000
OBJECT_KILLS = 3_000
BLOB_KILLS = 4_000
BLOB_LIVES = 1_000
CYCLES = 5_000
WORKER_STOPS = 300
CLAIMED_JOBS = 50_000
CAMPAIGNS = 1
WORKERS = 10
KILLS_PER_LIFE = 40
CUTS_PER_LIFE = 80
CYCLES_PER_LIFE = 250
LIVES_AT_ONCE = 20


class Soak:
    """One run: its seeds, its folder and its counts."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.seed = seed
        self.kills = self.cuts = self.acked = 0
        self._folder = folder
        self._random = random.Random(seed)
        self._lives = 0
        self._start = time.monotonic()

    def kill_at_random(self, kills: int) -> None:
        """Kill processes at random moments."""
        done = 0
        while done < kills:
            run = self._life()
            while run.kills < min(KILLS_PER_LIFE, kills - done):
                run.kill_at_random()
                run.check()
            run.drain()
            done += run.kills
            self._end(run, run.kills)
            self._report(f"killed at random {done}/{kills}")

    def kill_at_points(self, kills: int) -> None:
        """Kill processes at every named point in turn, on one store after another."""
        done = 0
        while done < kills:
            run = self._life()
            run.kill_at(self._random.choice(kill_points.CREATING), 1)
            for point in self._random.sample(kill_points.WORKING, len(kill_points.WORKING)):
                rare = point in kill_points.RARE
                run.check()
                run.kill_at(point, 1 + self._random.randrange(3 if rare else 200))
                run.check()
                run.kill_at(self._random.choice(kill_points.OPENING), 1)
                run.check()
                run.kill_at(self._random.choice(kill_points.CLOSING), 1, seconds=0.05)
            run.check()
            run.drain()
            done += run.kills
            self._end(run, run.kills)
            self._report(f"killed at named points {done}/{kills}")

    def kill_object_processes(self, kills: int) -> None:
        """Kill processes that store and delete objects in a blob folder."""
        done = 0
        while done < kills:
            run = ObjectKillRun(self._next_folder(), self._random.randrange(2**32))
            while run.kills < min(KILLS_PER_LIFE, kills - done):
                run.kill_at_random()
                run.check()
            done += run.kills
            self.kills += run.kills
            self.acked += run.acked
            shutil.rmtree(run.folder)
            self._report(f"killed while storing objects {done}/{kills}")

    def kill_blob_servers(self, kills: int) -> None:
        """Kill servers while clients put, upload and delete, on each engine with each object store in turn."""
        done = 0
        for store in itertools.cycle(WHERE):
            if done >= kills:
                break
            run = BlobKillRun(self._next_folder(), self._random.randrange(2**32), where=store)
            points = BUCKET_KILL_POINTS if store.endswith("s3") else list(KILL_POINTS)
            while run.kills < min(KILLS_PER_LIFE, kills - done):
                if self._random.random() < 0.5:
                    run.kill_at(self._random.choice(points), 1 + self._random.randrange(20))
                else:
                    run.kill_at_random()
                run.check()
            run.collect_all()
            run.close()
            done += run.kills
            self.kills += run.kills
            self.acked += run.acked
            shutil.rmtree(run.folder)
            unknown_objects = f" ({run.unknown_objects} objects without a row)" if run.unknown_objects else ""
            self._report(f"killed while serving blobs, now on {store}{unknown_objects}, {done}/{kills}")

    def run_blob_machines(self, lives: int) -> None:
        """Run random sequences of blob operations beside their model, on each engine with each object store."""
        for done in range(0, lives, LIVES_AT_ONCE):
            part = min(LIVES_AT_ONCE, lives - done)
            for store in WHERE:
                chance = self._random.randrange(2**32)
                try:
                    live(store, examples=part, chance=chance)
                except Exception as error:
                    text = "".join(traceback.format_exception(error))
                    raise Broken(f"{text}\nlive({store!r}, examples={part}, chance={chance})") from None
            self._report(f"ran blob machines {done + part}/{lives} times on each of {', '.join(WHERE)}")

    def share_jobs_among_claimers(self, jobs: int) -> None:
        """Let many claimers share jobs on each engine, with and without faults."""
        for engine in ENGINES if jobs else []:
            for share in (share_jobs, share_jobs_amid_trouble):
                folder = self._next_folder()
                event_loop.run(self._share_jobs_among_claimers(engine, folder, share, jobs))
                shutil.rmtree(folder, ignore_errors=True)
                self._report(f"shared {jobs} jobs among claimers on {engine} ({share.__name__})")

    async def _share_jobs_among_claimers(
        self, engine: str, folder: Path, share: Callable[[Bench, int], Awaitable[None]], jobs: int
    ) -> None:
        async with open_bench(engine, folder) as bench:
            try:
                await share(bench, jobs)
            except Exception as error:
                text = "".join(traceback.format_exception(error))
                raise Broken(f"{text}\n{share.__name__} of {jobs} jobs on {engine}, in {folder}") from None

    def cut_power(self, cuts: int) -> None:
        """Lose unsynced writes in power cuts."""
        done = 0
        while done < cuts:
            power_run = PowerCutRun(self._next_folder(), self._random.randrange(2**32))
            while power_run.cuts < min(CUTS_PER_LIFE, cuts - done):
                asyncio.run(power_run.run())
            done += power_run.cuts
            self.cuts += power_run.cuts
            self.acked += power_run.history.acked
            shutil.rmtree(power_run.folder)
            self._report(f"cut the power {done}/{cuts}")

    def run_paused_workers(self, cycles: int) -> None:
        """Pause workers for longer than their leases."""
        for done in range(0, cycles, CYCLES_PER_LIFE):
            folder = self._next_folder()
            part = min(CYCLES_PER_LIFE, cycles - done)
            asyncio.run(run_paused_workers(folder, cycles=part, seed=self._random.randrange(2**32)))
            shutil.rmtree(folder)
            self._report(f"paused workers {done + part}/{cycles}")

    def stop_workers(self, stops: int) -> None:
        """Pause worker processes of a real server for longer than their leases."""
        folder = self._next_folder()
        folder.mkdir()
        if stops:
            run_paused_worker_processes(folder, workers=WORKERS, rounds=-(-stops // WORKERS), report=self._report)
        shutil.rmtree(folder)

    def run_campaigns(self, times: int) -> None:
        """Run the campaigns in full, of which `make test` runs a sample."""
        environment = {**os.environ, campaigns.WHOLE_VARIABLE: "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-x", *campaigns.TESTS]
        for done in range(times):
            run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if run.returncode != 0:
                raise Broken(f"{run.stdout}{run.stderr}\n{campaigns.WHOLE_VARIABLE}=1 {' '.join(command)}")
            self._report(f"ran {', '.join(campaigns.TESTS)} {done + 1}/{times} times")

    def _life(self) -> StoreKillRun:
        return StoreKillRun(self._next_folder(), self._random.randrange(2**32))

    def _next_folder(self) -> Path:
        self._lives += 1
        return self._folder / f"{self._lives:04}"

    def _end(self, run: StoreKillRun, kills: int) -> None:
        self.kills += kills
        self.acked += run.history.acked
        shutil.rmtree(run.folder)

    def _report(self, progress: str) -> None:
        minutes = (time.monotonic() - self._start) / 60
        print(f"{minutes:6.1f} min  {progress}; {self.acked} calls acknowledged, none lost", flush=True)


def main() -> int:
    """Run everything, or the amounts in the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Crash and power tests, for hours.")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"processes killed at random ({KILLS})")
    parser.add_argument(
        "--point-kills", type=int, default=POINT_KILLS, help=f"processes killed at named points ({POINT_KILLS})"
    )
    parser.add_argument(
        "--object-kills",
        type=int,
        default=OBJECT_KILLS,
        help=f"processes killed while they store objects ({OBJECT_KILLS})",
    )
    parser.add_argument(
        "--blob-kills", type=int, default=BLOB_KILLS, help=f"servers killed while they serve blobs ({BLOB_KILLS})"
    )
    parser.add_argument("--blob-lives", type=int, default=BLOB_LIVES, help=f"runs of the blob machines ({BLOB_LIVES})")
    parser.add_argument("--cuts", type=int, default=CUTS, help=f"power cuts ({CUTS})")
    parser.add_argument("--cycles", type=int, default=CYCLES, help=f"cycles with a paused worker ({CYCLES})")
    parser.add_argument("--stops", type=int, default=WORKER_STOPS, help=f"paused worker processes ({WORKER_STOPS})")
    parser.add_argument(
        "--claimed-jobs", type=int, default=CLAIMED_JOBS, help=f"jobs shared among claimers ({CLAIMED_JOBS})"
    )
    parser.add_argument("--campaigns", type=int, default=CAMPAIGNS, help=f"full runs of the campaigns ({CAMPAIGNS})")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(2**32),
        help="seed of an earlier run to repeat, except for its timing",
    )
    parser.add_argument("--folder", type=Path, help="folder for the stores (a temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ingot-soak-", dir=arguments.folder))
    soak = Soak(folder, arguments.seed)
    print(f"seed {soak.seed}, in {folder}, process {os.getpid()}", flush=True)
    steps: list[tuple[Callable[[int], None], int]] = [
        (soak.share_jobs_among_claimers, arguments.claimed_jobs),
        (soak.run_paused_workers, arguments.cycles),
        (soak.stop_workers, arguments.stops),
        (soak.cut_power, arguments.cuts),
        (soak.kill_at_points, arguments.point_kills),
        (soak.kill_object_processes, arguments.object_kills),
        (soak.kill_blob_servers, arguments.blob_kills),
        (soak.run_blob_machines, arguments.blob_lives),
        (soak.run_campaigns, arguments.campaigns),
        (soak.kill_at_random, arguments.kills),
    ]
    try:
        with shared_folder(), shared_bucket_server():
            for step, count in steps:
                step(count)
    except Broken as broken:
        print(f"\n{broken}\nseed of the run: {soak.seed}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    print(f"{soak.kills} kills, {soak.cuts} cuts, {soak.acked} calls acknowledged, none lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
