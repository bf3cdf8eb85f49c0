"""The commands that every kind of records has: list, get, put and delete."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column
from ingot.cli.parsing import STDIN, open_input
from ingot.kernel.errors import InvalidInput
from ingot.records.kinds import RecordKind
from ingot.records.model import Record

COLUMNS: Final = (
    Column("NAME", never_truncate=True),
    Column("VERSION", align_right=True),
    Column("UPDATED"),
    Column("BY", optional=True),
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name.", show_default=False)]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", metavar="N", help="Only when this is its version; 0: only when there is none."),
]


def record_commands(kind: RecordKind[Any], what: str, *, raw: str | None = None) -> typer.Typer:
    """Return the commands of a kind. With `raw` the file is the value of that field as it is, and not a JSON body."""
    app = command_group(what)

    def records(ask: CommandContext) -> Any:
        return getattr(ask.client, kind.plural)

    def command(verb: str, title: str, *lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def register(function: Callable[..., None]) -> Callable[..., None]:
            function.__doc__ = title
            return app.command(verb, epilog=examples_epilog(*lines))(server_command(function))

        return register

    @command("list", f"List {kind.plural}, ordered by name.", f"ingot {kind.plural} list --prefix mail.")
    def list_records(
        ask: CommandContext,
        prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names that begin with this.")] = "",
    ) -> None:
        ask.out.list(records(ask).list(prefix=prefix), COLUMNS, _row)

    @command("get", f"Show a {kind.name}.", f"ingot {kind.plural} get mail")
    def get(ask: CommandContext, name: Name) -> None:
        ask.out.json_document(records(ask).get(name))

    @command(
        "put",
        f"Create or replace a {kind.name}.",
        f"ingot {kind.plural} put mail --file mail.{'txt' if raw else 'json'}",
        f"ingot {kind.plural} put mail < mail.{'txt' if raw else 'json'}",
    )
    def put(
        ask: CommandContext,
        name: Name,
        file: Annotated[
            Path, typer.Option("--file", "-f", metavar="FILE", help="Where to read it from; - is stdin.")
        ] = STDIN,
        if_version: IfVersion = None,
    ) -> None:
        made: Record[Any] = records(ask).put(name, if_version=if_version, **_read_body(file, raw))
        ask.out.outcome(made, f"The {kind.name} {made.name} has version {made.version}.")

    @command("delete", f"Delete a {kind.name}.", f"ingot {kind.plural} delete mail")
    def delete(ask: CommandContext, name: Name, if_version: IfVersion = None) -> None:
        deleted: Record[Any] = records(ask).delete(name, if_version=if_version)
        ask.out.outcome(deleted, f"The {kind.name} {deleted.name} is deleted.")

    return app


def _read_body(file: Path, raw: str | None) -> dict[str, Any]:
    """Read what to put: the fields of a JSON object, or one field as it is, without the line break at its end.

    On a terminal that field is asked for, and not shown.
    """
    if raw is not None and file == STDIN and sys.stdin.isatty():
        return {raw: typer.prompt(raw.capitalize(), hide_input=True, err=True)}
    with open_input(file) as source:
        content = source.read()
    if raw is None:
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError:
            raise InvalidInput(f"{file} holds no JSON object", hint="Write it as in {…}.") from None
    try:
        return {raw: content.decode().removesuffix("\n")}
    except UnicodeDecodeError:
        raise InvalidInput(f"the {raw} is no UTF-8 text", hint="Encode it first, as with base64.") from None


def _row(record: Record[Any]) -> tuple[object, ...]:
    return record.name, record.version, record.updated_at, record.updated_by
