"""`ingot tokens`: what programs come to the server with."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from ingot.cli.completion import actions, token_limits
from ingot.cli.context import CommandContext, command_group, server_command
from ingot.cli.help_text import examples_epilog
from ingot.cli.output import Column, relative_time
from ingot.cli.parsing import parse_future_time, parse_limits, without_none
from ingot.identity.credentials import Token, TokenLimits
from ingot.identity.grants import Grant

COLUMNS: Final = (
    Column("ID", never_truncate=True),
    Column("DESCRIPTION"),
    Column("GRANTS"),
    Column("TOKEN", optional=True),
    Column("CREATED", optional=True),
    Column("LAST USED"),
    Column("STATE"),
)

app = command_group("Make tokens for programs, and end them.")


@app.command(
    "create",
    epilog=examples_epilog(
        "ingot tokens create 'the shop' --grant jobs.create:jobs/mail --grant jobs.read --expires 90d > shop.token",
        "ingot tokens create 'the scanner' --grant blobs.write --limit quota_bytes=10000000000",
        "ingot tokens create 'second operator' --grant '*' --operator",
    ),
)
@server_command
def create(
    ask: CommandContext,
    description: Annotated[
        str, typer.Argument(metavar="DESCRIPTION", help="Who or what it is for.", show_default=False)
    ],
    grant: Annotated[
        list[str],
        typer.Option(
            metavar="ACTION[:RESOURCE]",
            help="What it may do, as in jobs.create or jobs.read:jobs/mail; more than once too.",
            autocompletion=actions,
            show_default=False,
        ),
    ],
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="When it ends, or after 30d, 12h …")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="For all tenants, for an operator.")] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help=f"A limit of its own: {', '.join(TokenLimits.__struct_fields__)}. More than once too.",
            autocompletion=token_limits,
        ),
    ] = None,
) -> None:
    """Make a token, and write it, this once. It does no more than its maker may."""
    made = ask.client.admin.create_token(
        description,
        [_parse_grant(text) for text in grant],
        expires_at=parse_future_time(expires, "--expires"),
        operator=operator,
        limits=without_none(**parse_limits(limit or (), TokenLimits.__struct_fields__)) or None,
    )
    ask.out.result(made, made.token)
    if not ask.out.json:
        ask.out.message(f"This is the token {made.id}; it is shown this once.")


@app.command("list", epilog=examples_epilog("ingot tokens list", "ingot tokens list --operator"))
@server_command
def list_tokens(
    ask: CommandContext,
    operator: Annotated[bool, typer.Option("--operator", help="Those of operators.")] = False,
) -> None:
    """List tokens, newest first, without their text."""
    ask.out.list(ask.client.admin.tokens(operator=operator), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot tokens revoke 0198c5a2-…"))
@server_command
def revoke(
    ask: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="The id of a token, not its text.", show_default=False)],
) -> None:
    """End a token."""
    revoked = ask.client.admin.revoke_token(id)
    ask.out.outcome(revoked, f"The token {revoked.id} ({revoked.description}) is revoked.")


def _parse_grant(text: str) -> Grant:
    action, _, resource = text.partition(":")
    return Grant(action=action, resource=resource) if resource else Grant(action=action)


def _row(token: Token) -> tuple[object, ...]:
    grants = [one.action if one.resource == "*" else f"{one.action}:{one.resource}" for one in token.grants]
    return (
        token.id,
        token.description,
        grants,
        f"…{token.ending}",
        token.created_at,
        token.last_used_at or "never",
        _state(token),
    )


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {relative_time(token.revoked_at)}"
    if token.expires_at is None:
        return "good"
    until = relative_time(token.expires_at)
    return f"ends {until}" if until.startswith("in ") else f"ended {until}"
