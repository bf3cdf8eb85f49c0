"""Lines in the log about what jobs do, for those who look for one of them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ingot.jobs.model import AttemptOutcome, Claim, Enqueued, JobStatus, Settled
from ingot.kernel.errors import IngotError

log = structlog.get_logger("ingot.jobs")


class DebugListener:
    """Logs what it is told, at the level `debug`: never what is in a job."""

    def enqueued(self, made: Sequence[Enqueued]) -> None:
        """See `Listener`."""
        for one in made:
            job = one.job
            log.debug("job_enqueued", tenant_id=job.tenant, job_id=job.id, job_type=job.type, created=one.created)

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

    def settled(self, answers: Sequence[Settled | IngotError]) -> None:
        """See `Listener`."""
        for answer in answers:
            if isinstance(answer, Settled):
                log.debug(
                    "job_settled",
                    tenant_id=answer.tenant,
                    job_id=answer.job_id,
                    attempt_no=answer.attempts,
                    status=answer.status.value,
                )

    def ended(self, type: str, outcome: AttemptOutcome, status: JobStatus, micros: Sequence[int]) -> None:
        """See `Listener`. Those that were lost have nobody else who tells of them."""
        if outcome is AttemptOutcome.LOST:
            log.debug("leases_lost", job_type=type, status=status.value, jobs=len(micros))

    def canceled(self, type: str, jobs: int) -> None:
        """See `Listener`."""
        log.debug("jobs_canceled", job_type=type, jobs=jobs)

    def committed(self, engine: str, kind: str, commands: int) -> None:
        """See `Listener`."""
