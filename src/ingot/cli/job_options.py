"""Options that say how a job is to be, of all commands that ask for some."""

from __future__ import annotations

from typing import Annotated

import typer

from ingot.cli.completion import priorities

PriorityOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="critical, high, normal, low or background; or 1 to 5.", autocompletion=priorities
    ),
]
TagsOption = Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag; may be given more than once.")]
BatchOption = Annotated[str | None, typer.Option(metavar="NAME", help="The batch it is part of.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Run it, where a result could be used again.")]
TimeoutOption = Annotated[str | None, typer.Option(metavar="SPAN", help="With --wait: no longer than this.")]
