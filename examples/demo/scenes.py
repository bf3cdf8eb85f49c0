"""What the demo asks for, what it does to its workers meanwhile, and what has to come out."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, Final

import msgspec

from ingot import Client
from ingot.client.synchronous.job import SyncJob
from ingot.jobs.lifecycle import FINISHED
from ingot.jobs.model import JobStatus

TYPES: Final = ("thumbnail", "convert", "report", "misprint", "listen")
REPORTS: Final = 8
MISPRINTS: Final = 3
FAILS: Final = (0, 0, 0, 1, 0, 0, 2)  # How often pages cannot be read before they can, in turn.
BACKOFF: Final = {"first_seconds": 0.2, "factor": 2.0}


class Figure(msgspec.Struct, frozen=True):
    """Something that was asked for, and how much of it there is."""

    what: str
    asked: int
    found: int

    @property
    def right(self) -> bool:
        """Whether all of it is there, and no more."""
        return self.asked == self.found


class Play:
    """The jobs of one demo, all under one tag."""

    def __init__(self, client: Client, jobs: int) -> None:
        self.client = client
        self.tag = f"demo-{secrets.token_hex(4)}"
        self.orders = orders_of(jobs)
        self.jobs = sum(map(len, self.orders.values()))
        self.unlucky: SyncJob | None = None
        self.endless: SyncJob | None = None

    def ask(self) -> None:
        """Ask for all of it."""
        self.client.admin.define("convert", backoff=BACKOFF)
        for type, payloads in self.orders.items():
            made = self.client.submit_many(type, payloads, tags=[self.tag])
            if type == "report":
                self.unlucky = made[0]
            if type == "listen":
                self.endless = made[0]

    def counts(self) -> dict[str, Counter[JobStatus]]:
        """Where the jobs of each type stand."""
        return {type: Counter(self.client.summary(tag=self.tag, type=type).counts) for type in TYPES}

    def victim(self) -> int | None:
        """The process of the worker at which the unlucky report runs, once it does."""
        assert self.unlucky is not None
        if self.unlucky.refresh().status is not JobStatus.RUNNING:
            return None
        return self.unlucky.attempts()[-1].pid

    def cancel(self) -> bool:
        """Cancel what has no end, once it runs; whether it did."""
        assert self.endless is not None
        if self.endless.refresh().status is not JobStatus.RUNNING:
            return False
        self.endless.cancel()
        return True

    def figures(self) -> list[Figure]:
        """What was asked for beside what there is."""
        found = [job.data for job in self.client.jobs(tag=self.tag)]
        done = [job for job in found if job.status is JobStatus.SUCCEEDED]
        unlucky = [job for job in found if self.unlucky is not None and job.id == self.unlucky.id]
        status = Counter(job.status for job in found)
        crashes = sum(job.crashes for job in done)
        fails = sum(payload["fails"] for payload in self.orders["convert"])
        return [
            Figure("jobs", self.jobs, len(found)),
            Figure("succeeded", self.jobs - MISPRINTS - 1, status[JobStatus.SUCCEEDED]),
            Figure("dead, told not to retry", MISPRINTS, status[JobStatus.DEAD]),
            Figure("canceled while it ran", 1, status[JobStatus.CANCELED]),
            Figure("failures that were retried", fails, sum(job.failures for job in done)),
            Figure("report whose worker was killed, done by another", 1, sum(job.crashes > 0 for job in unlucky)),
            Figure(
                f"attempts of what succeeded: {len(done)}, the failures, {crashes} that were killed",
                len(done) + sum(job.failures for job in done) + crashes,
                sum(job.attempts for job in done),
            ),
        ]


def orders_of(jobs: int) -> dict[str, list[Any]]:
    """About so many jobs, by type."""
    quick = max(2, jobs - REPORTS - MISPRINTS - 1)
    return {
        "listen": [None],
        "report": [{"unlucky": number == 0} for number in range(REPORTS)],
        "misprint": [{"page": number} for number in range(MISPRINTS)],
        "thumbnail": [{"page": number} for number in range(quick // 2)],
        "convert": [{"page": number, "fails": FAILS[number % len(FAILS)]} for number in range(quick - quick // 2)],
    }


def finished(counts: dict[str, Counter[JobStatus]]) -> int:
    """How many have come to their end."""
    return sum(count[status] for count in counts.values() for status in FINISHED)
