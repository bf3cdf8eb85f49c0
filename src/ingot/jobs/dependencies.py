"""Dependencies between new jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import msgspec

from ingot.jobs.errors import DependencyCycle
from ingot.jobs.model import NewJob


def check_cycles(new_jobs: Sequence[NewJob]) -> None:
    """Raise `DependencyCycle` if new jobs of one call wait for each other. Existing jobs cannot wait for new ones."""
    parents_by_job = {job.id: job.after for job in new_jobs}
    new_parents_by_job = {
        job_id: [parent for parent in parents if parent in parents_by_job] for job_id, parents in parents_by_job.items()
    }
    try:
        tuple(TopologicalSorter(new_parents_by_job).static_order())
    except CycleError as error:
        raise DependencyCycle(f"the job {error.args[1][0]} would wait for itself") from None


def resolve_parents(new_jobs: Sequence[NewJob], replacements: Mapping[str, str]) -> list[NewJob]:
    """Replace the parents of new jobs that were answered with existing jobs. Raises `DependencyCycle`.

    `replacements` maps the ID of such a parent to the ID of the existing job.
    """
    resolved = [
        msgspec.structs.replace(job, after=tuple(sorted({replacements.get(parent, parent) for parent in job.after})))
        if any(replacements.get(parent, parent) != parent for parent in job.after)
        else job
        for job in new_jobs
    ]
    check_cycles(resolved)
    return resolved
