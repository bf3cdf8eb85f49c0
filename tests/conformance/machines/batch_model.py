"""What the model knows of batches: nothing that the jobs in them do not say, and what was told of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from ingot.jobs import Batch, JobStatus
from tests.conformance.machines.job_model import Record

ENDS = {"job.completed", "job.dead", "job.canceled"}

Name = tuple[str, str]  # Of a batch: its tenant, and what it is called there.


class Batches:
    """Tells of a batch whenever the last of its jobs that was unfinished has ended."""

    def __init__(self) -> None:
        self.told: defaultdict[Name, list[Batch]] = defaultdict(list)
        self._ends: Counter[Name] = Counter()

    def count(self, jobs: Iterable[Record]) -> dict[Name, Batch]:
        """Every batch in numbers."""
        counts: defaultdict[Name, Counter[JobStatus]] = defaultdict(Counter)
        for job in jobs:
            if job.batch is not None:
                counts[job.tenant, job.batch][job.status] += 1
        return {name: _numbers(name[1], count) for name, count in counts.items()}

    def tell(self, jobs: Iterable[Record]) -> None:
        """A command is over: some batches in which something ended are complete now."""
        jobs = list(jobs)
        ends: Counter[Name] = Counter()
        for job in jobs:
            if job.batch is not None:
                ends[job.tenant, job.batch] += sum(news.name in ENDS for news in job.news)
        for name, batch in self.count(jobs).items():
            if batch.unfinished == 0 and ends[name] > self._ends[name]:
                self.told[name].append(batch)
        self._ends = ends


def _numbers(batch: str, count: Counter[JobStatus]) -> Batch:
    succeeded, dead, canceled = count[JobStatus.SUCCEEDED], count[JobStatus.DEAD], count[JobStatus.CANCELED]
    total = count.total()
    return Batch(
        batch=batch,
        total=total,
        unfinished=total - succeeded - dead - canceled,
        succeeded=succeeded,
        dead=dead,
        canceled=canceled,
    )
