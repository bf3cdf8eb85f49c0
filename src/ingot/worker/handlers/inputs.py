"""The one file that a handler reads, and the names of what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ingot.blobs.checks import NAME_CHARS_MAX
from ingot.worker.job import NoRetry


def only_input(names: Sequence[str]) -> str:
    """The name of a job's only input. Raises `NoRetry`."""
    if len(names) != 1:
        raise NoRetry(f"this handler reads one input file, and the job has {len(names)}")
    return names[0]


def output_name(source: str, suffix: str) -> str:
    """What the output is called: as the input, with another suffix, and not longer than a name may be."""
    return PurePath(source).stem[: NAME_CHARS_MAX - len(suffix)] + suffix
