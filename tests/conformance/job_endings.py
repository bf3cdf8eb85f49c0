"""Leading jobs to their ends, and seeing what follows."""

from __future__ import annotations

from ingot.events import Event
from ingot.jobs import Job, JobStatus
from ingot.kernel.ids import new_id
from tests.factories import Bench
from tests.waiting import eventually

BAD_ENDS = [JobStatus.DEAD, JobStatus.CANCELED]
STEPS_MAX = 1000


async def settle_down(bench: Bench) -> None:
    """Tend until what follows from the ends of jobs is done."""
    for _ in range(STEPS_MAX):
        await bench.jobs.maintain()
        if bench.store.seconds_to_maintenance() != 0:
            return
    raise AssertionError("there is no end to it")


async def end(bench: Bench, job: Job, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    """Lead a queued job, the only one of its type that is ready, to its end."""
    if status is JobStatus.CANCELED:
        await bench.jobs.cancel(job.tenant, job.id)
    else:
        (claim,) = await bench.jobs.claim("worker", [job.type])
        assert claim.job.id == job.id
        if status is JobStatus.SUCCEEDED:
            await bench.jobs.complete(claim)
        else:
            await bench.jobs.fail(claim, "broken", retry=False)
    await settle_down(bench)


async def statuses(bench: Bench, *jobs: Job) -> list[JobStatus]:
    """Where these jobs stand."""
    return [(await bench.reload(job)).status for job in jobs]


async def counted(bench: Bench, tenant: str | None = None) -> dict[JobStatus, int]:
    """How many jobs there are in each status, without those in which there is none."""
    counts = (await bench.jobs.summary(tenant or bench.tenant)).counts
    return {status: jobs for status, jobs in counts.items() if jobs}


async def all_events(bench: Bench) -> list[Event]:
    """The whole log of the tenant. On PostgreSQL, a transaction that still runs hides the newest events.

    When an event that was written last can be read, all events before it can be read too.
    """
    witness = await bench.tenants.create(f"witness-{new_id()}")
    await bench.make_job("witness", tenant=witness.id)
    await eventually(lambda: bench.events.read(witness.id))
    events: list[Event] = []
    while more := await bench.events.read(bench.tenant, after=events[-1].id if events else None, limit=1000):
        events += more
    return events
