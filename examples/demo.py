"""The demo: a few thousand jobs of three tenants on one queue, with failures, retries, cancels and a dead worker.

Runs in one process on a SQLite file in a temporary folder, shows what happens while it happens, and ends with a
summary that is checked against what was asked for. `python examples/demo.py --help` lists the options.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import ingot
from ingot.identity import Tenant
from ingot.jobs import Backoff, Claim, Definition, JobStatus, LeaseLost
from ingot.kernel.errors import IngotError
from ingot.settings import Settings

TENANTS = ("acme", "globex", "initech")
TYPES = ("thumbnail", "convert", "report")
JOBS_MAX = 1_000_000
WORKERS = 8
CLAIM_JOBS = 20
FAIL_SHARE = 0.10
HOPELESS_SHARE = 0.005
CANCEL_JOBS = 25
LEASE_SECONDS = 2.0
REFRESH_SECONDS = 0.1
MOST = 0.95
FINISHED = (JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED)


class DemoConsole(Console):
    """A console that tells its caller when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Demo:
    """The jobs, the workers, and what is to be seen of them."""

    def __init__(self, store: ingot.Ingot, tenants: list[Tenant], jobs: int, seed: int) -> None:
        self.store = store
        self.tenants = tenants
        self.jobs = jobs
        self.chance = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.started_at = time.monotonic()
        self.enqueued = False
        self.most_seconds: float | None = None

    async def enqueue(self) -> None:
        """Ask for all the work, in batches, and change our mind about a little of it."""
        await self.store.jobs.define(Definition(type="convert", backoff=Backoff(first_seconds=0.2), max_attempts=4))
        await self.store.jobs.define(Definition(type="thumbnail", backoff=Backoff(first_seconds=0.1)))
        await self.store.jobs.define(Definition(type="report", backoff=Backoff(first_seconds=0.1), priority=2))
        made = []
        for start in range(0, self.jobs, 200):
            numbers = range(start, min(start + 200, self.jobs))
            made += await self.store.jobs.enqueue_many([self._order(number) for number in numbers])
            await asyncio.sleep(0.02)
        for enqueued in self.chance.sample(made[len(made) // 2 :], min(CANCEL_JOBS, len(made) // 2)):
            job = await self.store.jobs.get(enqueued.job.tenant, enqueued.job.id)
            if job.status is JobStatus.QUEUED:
                await self.store.jobs.cancel(job.tenant, job.id)
        self.enqueued = True

    def _order(self, number: int) -> ingot.NewJob:
        tenant = self.tenants[number % len(self.tenants)]
        payload = {"page": number, "hopeless": self.chance.random() < HOPELESS_SHARE}
        delay = self.chance.uniform(0, 2) if number % 10 == 0 else None
        return ingot.new_job(tenant.id, self.chance.choice(TYPES), payload, delay=delay, idempotency_key=f"p{number}")

    async def work(self, name: str) -> None:
        """A worker: claim, do, settle, until nothing is left to do."""
        while not await self.finished():
            for claim in await self.store.jobs.claim(name, TYPES, limit=CLAIM_JOBS, wait_seconds=0.5):
                await self._settle(claim)

    async def vanish(self) -> None:
        """A worker that takes jobs and is never heard of again: their leases run out and others do them."""
        await asyncio.sleep(0.5)
        lost = await self.store.jobs.claim("vanishing", TYPES, limit=CLAIM_JOBS)
        self.ends["lost with a vanished worker"] += len(lost)

    async def _settle(self, claim: Claim) -> None:
        try:
            await self._do(claim)
        except LeaseLost:  # A slow machine: somebody else has the job now.
            self.ends["came too late"] += 1

    async def _do(self, claim: Claim) -> None:
        payload = claim.job.read("payload")
        if payload["hopeless"] or self.chance.random() < FAIL_SHARE:
            settled = await self.store.jobs.fail(claim, "the page could not be read")
            for_good = "failed for good" if settled.status is JobStatus.DEAD else "failed, the job was canceled"
            self.ends["failed, to be tried again" if settled.will_retry else for_good] += 1
        else:
            await self.store.jobs.complete(claim, {"page": payload["page"]})
            self.ends["completed"] += 1

    async def counts(self) -> dict[str, Counter[JobStatus]]:
        """Exact counts by tenant."""
        return {tenant.slug: Counter((await self.store.jobs.summary(tenant.id)).counts) for tenant in self.tenants}

    async def finished(self) -> bool:
        """Whether all that was asked for has ended."""
        total = sum((await self.counts()).values(), Counter())
        ended = sum(total[status] for status in FINISHED)
        if self.most_seconds is None and ended >= MOST * self.jobs:
            self.most_seconds = time.monotonic() - self.started_at
        return self.enqueued and ended == self.jobs


def draw(demo: Demo, counts: dict[str, Counter[JobStatus]]) -> Table:
    """Where the jobs of every tenant stand."""
    table = Table(title=None, expand=False)
    table.add_column("tenant")
    for status in JobStatus:
        if status is not JobStatus.BLOCKED:
            table.add_column(status.value, justify="right")
    for slug, count in counts.items():
        table.add_row(slug, *(str(count[status]) for status in JobStatus if status is not JobStatus.BLOCKED))
    total = sum(counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[status]) for status in JobStatus if status is not JobStatus.BLOCKED))
    return table


async def show(demo: Demo, console: Console) -> None:
    """The live view on a terminal; a line a second anywhere else."""
    if not console.is_terminal:
        while not await demo.finished():
            total = sum((await demo.counts()).values(), Counter())
            if total.total():
                console.print(", ".join(f"{total[status]} {status.value}" for status in JobStatus if total[status]))
            await asyncio.sleep(1)
        return
    progress = Progress(TextColumn("finished"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar: TaskID = progress.add_task("finished", total=demo.jobs)
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        done = False
        while not done:
            done = await demo.finished()
            counts = await demo.counts()
            total = sum(counts.values(), Counter())
            progress.update(bar, completed=sum(total[status] for status in FINISHED))
            live.update(Group(progress, draw(demo, counts)))
            await asyncio.sleep(REFRESH_SECONDS)


async def run(data: Path, jobs: int, seed: int) -> int:
    """Run the demo in a data folder and tell how it went; 0 when every job is accounted for."""
    console = DemoConsole()
    async with ingot.open(data, settings=Settings(lease_seconds=LEASE_SECONDS)) as store:
        tenants = [await store.tenants.create(slug) for slug in TENANTS]
        demo = Demo(store, tenants, jobs, seed)
        console.print(f"{jobs} jobs of {len(tenants)} tenants on {WORKERS} workers; every step is synced to disk.")
        async with asyncio.TaskGroup() as group:
            group.create_task(demo.enqueue())
            group.create_task(demo.vanish())
            for number in range(WORKERS):
                group.create_task(demo.work(f"worker-{number}"))
            group.create_task(show(demo, console))
        counts = await demo.counts()
        seconds = time.monotonic() - demo.started_at
    total = sum(counts.values(), Counter())
    attempts = sum(number for end, number in demo.ends.items() if end.startswith(("completed", "failed")))
    console.print(draw(demo, counts))
    for end, number in sorted((+demo.ends).items()):
        console.print(f"{number:6d} attempts {end}")
    console.print(f"{attempts} attempts were settled in {seconds:.1f} s.")
    if demo.most_seconds is not None:
        console.print(f"{MOST:.0%} of the jobs had finished after {demo.most_seconds:.1f} s; ", end="")
        console.print("the rest waited for a time to run at, a backoff or a lost lease.")
    accounted = sum(total.values()) == jobs and total[JobStatus.SUCCEEDED] == demo.ends["completed"]
    console.print("Every job is accounted for." if accounted else "The counts do not add up: please report this.")
    return 0 if accounted else 1


async def run_until_signal(data: Path | None, jobs: int, seed: int) -> int:
    """Run in this folder or in a temporary one; stop early, and clean up, on Ctrl-C and on SIGTERM."""
    stopped_by: list[signal.Signals] = []
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        stopped_by.append(number)
        if len(stopped_by) == 1:
            task.cancel()

    with tempfile.TemporaryDirectory(prefix="ingot-demo-") as folder:
        task = asyncio.create_task(run(data or Path(folder) / "data", jobs, seed))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        await asyncio.wait([task])
    if stopped_by and task.cancelled():
        print("Stopped.", file=sys.stderr)
        return 128 + stopped_by[0]
    code = 128 + signal.SIGPIPE
    try:
        code = task.result()
    except* BrokenPipeError:  # Nobody reads any more, as after `| head`: be quiet, at the last flush too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description="Run a few thousand jobs through an in-process Ingot queue.")
    parser.add_argument("--jobs", type=int, default=3000, help="how many jobs to enqueue (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7, help="what chance begins with (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="a new data folder to keep (default: a temporary one)")
    options = parser.parse_args()
    if not 1 <= options.jobs <= JOBS_MAX:
        parser.error(f"--jobs goes from 1 to {JOBS_MAX:,}")
    try:
        if options.data is not None and options.data.exists():
            parser.error(f"{options.data} exists already; name a new folder")
        return asyncio.run(run_until_signal(options.data, options.jobs, options.seed))
    except OSError as error:
        print(f"demo: cannot use {error.filename or 'the folder'}: {error.strerror}", file=sys.stderr)
    except IngotError as error:
        print(f"demo: {error.detail.rstrip('.')}. {error.hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    return 2


if __name__ == "__main__":
    sys.exit(main())
