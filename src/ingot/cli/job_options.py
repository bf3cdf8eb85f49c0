"""Options that commands share for the jobs they submit."""

from __future__ import annotations

from typing import Annotated

import typer

from ingot.cli.completion import priorities

PriorityOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Priority: critical, high, normal, low or background, or 1 to 5.",
        autocompletion=priorities,
    ),
]
TagsOption = Annotated[list[str] | None, typer.Option(metavar="TAG", help="Tag. Can be repeated.")]
BatchOption = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the batch.")]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Run the job even if an existing job with the same input could be reused.")
]
TimeoutOption = Annotated[
    str | None, typer.Option(metavar="DURATION", help="With --wait: maximum time to wait, such as 30s or 10m.")
]
