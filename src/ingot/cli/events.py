"""`ingot events`: list, follow and publish events."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import typer

from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column
from ingot.cli.parsing import read_json_option
from ingot.events.model import Event

LIST_EVENTS_DEFAULT: Final = 50
DATA_CHARS_MAX: Final = 200
COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("AT", never_truncate=True),
    Column("NAME", never_truncate=True),
    Column("DATA"),
)
Name = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Only events with this name, or below it: job includes job.failed. Can be repeated."
    ),
]
After = Annotated[str | None, typer.Option(metavar="ID", help="Only events after this one.")]

app = command_group("List, follow and publish events.")


@app.command(
    "list",
    epilog=examples_epilog(
        "ingot events list --name job.failed", "ingot events list --after ssiBmzSv51MCc9g8g0e8B6V8aLYBMyxA"
    ),
)
@server_command
def list_events(
    context: CommandContext,
    name: Name = None,
    after: After = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of events.")] = LIST_EVENTS_DEFAULT,
    show_all: Annotated[bool, typer.Option("--all", help="List all events.")] = False,
) -> None:
    """List stored events, oldest first."""
    events: list[Event] = []
    more = False
    for event in context.client.past_events(after=after):
        if not _matches_names(event, name):
            continue
        if more := len(events) == limit and not show_all:
            break
        events.append(event)
    context.out.list(events, COLUMNS, _row)
    if more and not context.out.json:
        context.out.message(f"There are more events. Use --after {events[-1].id} for the next ones, or --all for all.")


@app.command(
    epilog=examples_epilog(
        "ingot events tail --name job.dead --json", "ingot events tail --after ssiBmzSv51MCc9g8g0e8B6V8aLYBMyxA"
    )
)
@server_command
def tail(
    context: CommandContext,
    name: Name = None,
    after: After = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of events after which to stop.")] = None,
) -> None:
    """Follow events as they happen, until Ctrl-C.

    Without --after, only new events are shown.
    """
    for event in islice(context.client.events(name=",".join(name) if name else None, after=after), limit):
        context.out.item(event, "  ".join(_row(event)) + "\n")


@app.command(epilog=examples_epilog("""ingot events publish order.placed --data '{"order": 7}' --key order-7"""))
@server_command
def publish(
    context: CommandContext,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Name of the event, with dots between its segments.", show_default=False),
    ],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="Data of the event.")] = None,
    data_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File that contains the data. - is stdin.", allow_dash=True)
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Dedupe key. Publishing the same key again creates no second event."),
    ] = None,
) -> None:
    """Publish an event of your own and print its ID."""
    event_id = context.client.publish(name, read_json_option(data, data_file, "data"), dedupe_key=key)
    context.out.result({"id": event_id}, event_id)


def _matches_names(event: Event, names: list[str] | None) -> bool:
    """Return whether the name of an event is one of these or below one of them. Without names, every event matches."""
    return not names or any(f"{event.name}.".startswith(f"{name.removesuffix('.*')}.") for name in names)


def _row(event: Event) -> tuple[str, str, str, str]:
    data = bytes(event.data).decode(errors="replace")
    truncated = data if len(data) <= DATA_CHARS_MAX else f"{data[:DATA_CHARS_MAX]}…"
    return event.id, event.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), event.name, truncated
