"""`ingot events`: what happened, in order."""

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
    typer.Option(metavar="NAME", help="Only events whose name begins so, as in job or job.failed; more than once too."),
]
After = Annotated[str | None, typer.Option(metavar="ID", help="Begin behind this event.")]

app = command_group("Read what happened, follow what happens, and tell of something yourself.")


@app.command(
    "list", epilog=examples_epilog("ingot events list --name job.failed", "ingot events list --after 0000000000000a42")
)
@server_command
def list_events(
    ask: CommandContext,
    name: Name = None,
    after: After = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = LIST_EVENTS_DEFAULT,
    every: Annotated[bool, typer.Option("--all", help="As many as there are.")] = False,
) -> None:
    """List events that are kept, oldest first."""
    found: list[Event] = []
    more = False
    for event in ask.client.past_events(after=after):
        if not _matches_names(event, name):
            continue
        if more := len(found) == limit and not every:
            break
        found.append(event)
    ask.out.list(found, COLUMNS, _row)
    if more and not ask.out.json:
        ask.out.message(f"There are more: --after {found[-1].id} shows those behind these, --all shows them all.")


@app.command(
    epilog=examples_epilog("ingot events tail --name job.dead --json", "ingot events tail --after 0000000000000a42")
)
@server_command
def tail(
    ask: CommandContext,
    name: Name = None,
    after: After = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="End after so many.")] = None,
) -> None:
    """Follow events as they happen, from now on, until Ctrl-C."""
    for event in islice(ask.client.events(name=",".join(name) if name else None, after=after), limit):
        ask.out.item(event, "  ".join(_row(event)) + "\n")


@app.command(epilog=examples_epilog("""ingot events publish order.placed --data '{"order": 7}' --key order-7"""))
@server_command
def publish(
    ask: CommandContext,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Its name, with dots between the parts.", show_default=False)
    ],
    data: Annotated[str | None, typer.Option(metavar="JSON", help="What it tells.")] = None,
    data_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, from a file; - is stdin.", allow_dash=True)
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A dedupe key: the same again makes no second event.")
    ] = None,
) -> None:
    """Append an event of your own, and write its id."""
    made = ask.client.publish(name, read_json_option(data, data_file, "data"), dedupe_key=key)
    ask.out.result({"id": made}, made)


def _matches_names(event: Event, names: list[str] | None) -> bool:
    """Whether it has one of these names, or one below them."""
    return not names or any(f"{event.name}.".startswith(f"{name.removesuffix('.*')}.") for name in names)


def _row(event: Event) -> tuple[str, str, str, str]:
    data = bytes(event.data).decode(errors="replace")
    cut = data if len(data) <= DATA_CHARS_MAX else f"{data[:DATA_CHARS_MAX]}…"
    return event.id, event.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), event.name, cut
