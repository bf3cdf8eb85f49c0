"""The options that filter jobs, and the filter built from them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from ingot.cli.completion import job_types
from ingot.cli.parsing import parse_past_time, without_none
from ingot.jobs.model import JobStatus, Source

FILTER_PANEL: Final = "Filter"

StatusOption = Annotated[
    JobStatus | None, typer.Option(help="Only jobs with this status.", rich_help_panel=FILTER_PANEL)
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type", metavar="TYPE", help="Only jobs of this type.", autocompletion=job_types, rich_help_panel=FILTER_PANEL
    ),
]
TagOption = Annotated[
    str | None, typer.Option(metavar="TAG", help="Only jobs with this tag.", rich_help_panel=FILTER_PANEL)
]
SourceOption = Annotated[
    Source | None, typer.Option("--source", help="Only jobs from this source.", rich_help_panel=FILTER_PANEL)
]
CreatedAfterOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only jobs created after this time: a timestamp, or an age such as 2h or 7d.",
        rich_help_panel=FILTER_PANEL,
    ),
]
CreatedBeforeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only jobs created before this time: a timestamp, or an age such as 2h or 7d.",
        rich_help_panel=FILTER_PANEL,
    ),
]


def build_filter(
    *,
    status: JobStatus | None,
    type: str | None,
    tag: str | None,
    source: Source | None,
    created_after: str | None,
    created_before: str | None,
) -> dict[str, Any]:
    """Return the fields of the filter that are set. Raises `InvalidInput`."""
    return without_none(
        status=status,
        type=type,
        tag=tag,
        source=source,
        created_after=parse_past_time(created_after, "--created-after"),
        created_before=parse_past_time(created_before, "--created-before"),
    )
