"""The one file that a handler reads, and the names of what it makes of it."""

from __future__ import annotations

from pathlib import PurePath

from ingot.blobs.checks import NAME_CHARS_MAX
from ingot.worker.job import NoRetry, WorkerJob


def only_input(job: WorkerJob) -> str:
    """The name of the job's only input. Raises `NoRetry`."""
    names = job.inputs
    if len(names) != 1:
        raise NoRetry(f"a job of the type {job.type} has one input file, and this one has {len(names)}")
    return names[0]


def output_name(source: str, suffix: str) -> str:
    """What the output is called: as the input, with another suffix, and not longer than a name may be."""
    return PurePath(source).stem[: NAME_CHARS_MAX - len(suffix)] + suffix
