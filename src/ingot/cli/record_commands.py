"""The commands that every record kind has: list, get, put and delete."""

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
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name.", show_default=False)]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", metavar="N", help="Required current version; 0 means that it must not exist."),
]


def record_commands(kind: RecordKind[Any], help_text: str, *, raw: str | None = None) -> typer.Typer:
    """Return the commands of a record kind.

    `put` reads the body as JSON. With `raw`, it reads the plain value of the field with that name instead.
    """
    app = command_group(help_text)

    def records(context: CommandContext) -> Any:
        return getattr(context.client, kind.plural)

    def command(verb: str, title: str, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def register(function: Callable[..., None]) -> Callable[..., None]:
            function.__doc__ = title
            return app.command(verb, epilog=examples_epilog(*examples))(server_command(function))

        return register

    @command("list", f"List {kind.plural}, ordered by name.", f"ingot {kind.plural} list --prefix mail.")
    def list_records(
        context: CommandContext,
        prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only names with this prefix.")] = "",
    ) -> None:
        context.out.list(records(context).list(prefix=prefix), COLUMNS, _row)

    @command("get", f"Show a {kind.name}{f', without its {raw}' if raw else ''}.", f"ingot {kind.plural} get mail")
    def get(context: CommandContext, name: Name) -> None:
        context.out.json_document(records(context).get(name))

    @command(
        "put",
        f"Create or replace a {kind.name}.",
        f"ingot {kind.plural} put mail --file mail.{'txt' if raw else 'json'}",
        f"ingot {kind.plural} put mail < mail.{'txt' if raw else 'json'}",
    )
    def put(
        context: CommandContext,
        name: Name,
        file: Annotated[
            Path, typer.Option("--file", "-f", metavar="FILE", help="File to read from. - is stdin.")
        ] = STDIN,
        if_version: IfVersion = None,
    ) -> None:
        record: Record[Any] = records(context).put(name, if_version=if_version, **_read_body(file, raw))
        context.out.outcome(record, f"Stored {kind.name} {record.name}, version {record.version}.")

    @command("delete", f"Delete a {kind.name}.", f"ingot {kind.plural} delete mail")
    def delete(context: CommandContext, name: Name, if_version: IfVersion = None) -> None:
        deleted: Record[Any] = records(context).delete(name, if_version=if_version)
        context.out.outcome(deleted, f"Deleted {kind.name} {deleted.name}.")

    return app


def _read_body(file: Path, raw: str | None) -> dict[str, Any]:
    """Read the fields of a JSON object, or with `raw` the plain value of one field without its final line break.

    If stdin is a terminal, the plain value is read from a prompt that does not echo.
    """
    if raw is not None and file == STDIN and sys.stdin.isatty():
        return {raw: typer.prompt(raw.capitalize(), hide_input=True, err=True)}
    with open_input(file) as source:
        content = source.read()
    if raw is None:
        try:
            return msgspec.json.decode(content, type=dict[str, Any])
        except msgspec.DecodeError:
            raise InvalidInput(f"{file} does not contain a JSON object", hint="Write an object such as {…}.") from None
    try:
        return {raw: content.decode().removesuffix("\n")}
    except UnicodeDecodeError:
        raise InvalidInput(f"the {raw} is not valid UTF-8", hint="Encode it first, for example as base64.") from None


def _row(record: Record[Any]) -> tuple[object, ...]:
    return record.name, record.version, record.updated_at, record.updated_by
