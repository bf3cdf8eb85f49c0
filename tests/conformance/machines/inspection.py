"""Reading a whole store and holding it against the model: after each step, everything that can be seen."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

import msgspec

from ingot.jobs import Batch, BatchNotFound, JobStatus
from ingot.jobs.model import JobEventData
from ingot.kernel.clock import MICROS
from tests.conformance.machines import batch_model
from tests.conformance.machines.job_model import News, Record
from tests.conformance.machines.model import Model
from tests.factories import Bench
from tests.job_transitions import TRANSITIONS

PAGE = 1000
EVENTS_SECONDS_MAX = 20.0  # Events stay hidden while any transaction on the server runs that is older.


class Inspection:
    """Remembers how far each log was read, and what each job looked like when its attempts were last compared."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._cursors: dict[str, str] = {}
        self._told: Counter[str] = Counter()
        self._replayed: dict[str, JobStatus] = {}
        self._completed: defaultdict[batch_model.Name, list[Batch]] = defaultdict(list)
        self._compared: dict[str, tuple[object, ...]] = {}

    async def inspect(self, bench: Bench) -> None:
        """Compare jobs, attempts, counts, events and batches of every tenant.

        One read follows the other: threads that read at the same time take CPU from each other.
        """
        for tenant in sorted(self._model.tenants):
            await self._inspect_tenant(bench, tenant)

    async def _inspect_tenant(self, bench: Bench, tenant: str) -> None:
        jobs = [job for job in self._model.jobs.values() if job.tenant == tenant]
        await self._jobs(bench, tenant, jobs)
        await self._counts(bench, tenant, jobs)
        await self._events(bench, tenant)
        pauses = {pause.type: pause for pause in await bench.jobs.pauses(tenant)}
        assert pauses == {type: pause for (owner, type), pause in self._model.pauses.items() if owner == tenant}
        await self._batches(bench, tenant)

    async def _batches(self, bench: Bench, tenant: str) -> None:
        """Compare what is counted and what was told of every batch that any tenant has."""
        counted = self._model.batches.count(self._model.ever())
        for batch in sorted({name for _, name in counted}):
            found: Batch | None
            try:
                found = await bench.jobs.batch(tenant, batch)
            except BatchNotFound:
                found = None
            assert found == counted.get((tenant, batch))
            assert self._completed[tenant, batch] == self._model.batches.told[tenant, batch]

    async def _jobs(self, bench: Bench, tenant: str, jobs: list[Record]) -> None:
        page = await bench.jobs.list(tenant, limit=PAGE)
        assert page.next_cursor is None
        assert page.items == [job.job() for job in sorted(jobs, key=lambda job: job.id, reverse=True)]
        for job in jobs:
            mark = (job.status, job.fence, len(job.news))
            if self._compared.get(job.id) != mark:
                self._compared[job.id] = mark
                await self._one_job(bench, job)

    async def _one_job(self, bench: Bench, job: Record) -> None:
        assert await bench.jobs.get(job.tenant, job.id) == job.job()
        attempts = await bench.jobs.attempts(job.tenant, job.id)
        assert list(attempts) == [run.attempt(job.id) for run in job.runs.values()]
        fences = [attempt.fence for attempt in attempts]
        assert fences == sorted(set(fences))

    async def _counts(self, bench: Bench, tenant: str, jobs: list[Record]) -> None:
        summary = await bench.jobs.summary(tenant)
        counts = Counter(job.status for job in jobs)
        assert summary.counts == {status: counts[status] for status in JobStatus}
        assert summary.running == counts[JobStatus.RUNNING]
        by_type: defaultdict[str, Counter[JobStatus]] = defaultdict(Counter)
        for job in jobs:
            by_type[job.type][job.status] += 1
        found = await bench.jobs.counts(tenant)
        assert found == by_type
        assert list(found) == sorted(by_type)
        ready = [job.run_at for job in jobs if job.status is JobStatus.QUEUED and not job.apart]
        if not ready:
            assert summary.oldest_queued_seconds is None
        else:
            assert summary.oldest_queued_seconds == (self._model.time(bench.clock.micros()) - min(ready)) / MICROS

    async def _events(self, bench: Bench, tenant: str) -> None:
        """Compare what was told of all jobs, those that are gone too."""
        known = {job.id: job for job in self._model.ever() if job.tenant == tenant}
        deadline = time.monotonic() + EVENTS_SECONDS_MAX
        while True:
            events = await bench.events.read(tenant, after=self._cursors.get(tenant), limit=PAGE)
            told = all(self._told[job.id] == len(job.news) for job in known.values())
            if not events and (told or time.monotonic() > deadline):
                break
            for event in events:
                assert event.id > self._cursors.get(tenant, "")
                self._cursors[tenant] = event.id
                if event.name == "blob.stored":  # The inputs that jobs are given.
                    continue
                if event.name == "batch.completed":
                    self._one_completion(tenant, msgspec.json.decode(event.data, type=Batch))
                    continue
                news = msgspec.json.decode(event.data, type=JobEventData)
                self._one_event(known[news.id], event.name, news)
        for job in known.values():
            assert self._told[job.id] == len(job.news)
            assert self._replayed[job.id] is job.status

    def _one_completion(self, tenant: str, batch: Batch) -> None:
        """It comes after the last end that it tells of."""
        self._completed[tenant, batch.batch].append(batch)
        ever = [job for job in self._model.ever() if (job.tenant, job.batch) == (tenant, batch.batch)]
        standing = [self._replayed.get(job.id) for job in ever]
        ends = Counter(status for status in standing if status is not None)
        assert (ends[JobStatus.SUCCEEDED], ends[JobStatus.DEAD], ends[JobStatus.CANCELED]) == (
            batch.succeeded,
            batch.dead,
            batch.canceled,
        )

    def _one_event(self, job: Record, name: str, news: JobEventData) -> None:
        standing = (news.status, news.attempts, news.failures, news.crashes, news.fence, news.cancel_requested)
        assert News(name, *standing) == job.news[self._told[job.id]]
        self._told[job.id] += 1
        before = self._replayed.get(job.id)
        assert before in (None, news.status) or news.status in TRANSITIONS[before]
        self._replayed[job.id] = news.status
