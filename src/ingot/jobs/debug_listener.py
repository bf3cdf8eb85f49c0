"""Debug log messages about jobs, for finding out what happened to one of them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.errors import IngotError

log = structlog.get_logger("ingot.jobs")


class DebugListener:
    """Logs what happens to jobs at the level `debug`, without their payloads, results or other content."""

    def enqueued(self, results: Sequence[Enqueued]) -> None:
        """See `Listener`."""
        for result in results:
            job = result.job
            log.debug("job_enqueued", tenant_id=job.tenant, job_id=job.id, job_type=job.type, created=result.created)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """See `Listener`."""
        for claim in claims:
            job = claim.job
            log.debug(
                "job_claimed",
                tenant_id=job.tenant,
                job_id=job.id,
                job_type=job.type,
                attempt_no=job.attempts,
                worker_id=job.worker_id,
            )

    def settled(self, results: Sequence[Settled | IngotError]) -> None:
        """See `Listener`."""
        for result in results:
            if isinstance(result, Settled):
                log.debug(
                    "job_settled",
                    tenant_id=result.tenant,
                    job_id=result.job_id,
                    attempt_no=result.attempts,
                    status=result.status.value,
                )

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, durations_micros: Sequence[int]) -> None:
        """See `Listener`. `settled` reports the same attempts, and `Jobs` logs lost ones."""

    def canceled(self, type: str, jobs: int) -> None:
        """See `Listener`."""
        log.debug("jobs_canceled", job_type=type, jobs=jobs)

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """See `Listener`."""
