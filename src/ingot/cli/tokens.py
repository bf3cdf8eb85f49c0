"""`ingot tokens`: create, list and revoke tokens."""

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

app = command_group("Create, list and revoke tokens, which are the credentials of programs.")


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
    context: CommandContext,
    description: Annotated[
        str, typer.Argument(metavar="DESCRIPTION", help="Program or purpose that the token is for.", show_default=False)
    ],
    grant: Annotated[
        list[str],
        typer.Option(
            metavar="ACTION[:RESOURCE]",
            help="Grant, such as jobs.create or jobs.read:jobs/mail. Can be repeated.",
            autocompletion=actions,
            show_default=False,
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Expiry time, or a duration such as 30d or 12h.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Create an operator token, which is valid for all tenants.")
    ] = False,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=VALUE",
            help=f"Limit of the token: {', '.join(TokenLimits.__struct_fields__)}. Can be repeated.",
            autocompletion=token_limits,
        ),
    ] = None,
) -> None:
    """Create a token and print it.

    The token is shown only once. You can only give grants that you have yourself.
    """
    token = context.client.admin.create_token(
        description,
        [_parse_grant(text) for text in grant],
        expires_at=parse_future_time(expires, "--expires"),
        operator=operator,
        limits=without_none(**parse_limits(limit or (), TokenLimits.__struct_fields__)) or None,
    )
    context.out.result(token, token.token)
    if not context.out.json:
        context.out.message(f"Created token {token.id}. Its text is shown only once.")


@app.command("list", epilog=examples_epilog("ingot tokens list", "ingot tokens list --operator"))
@server_command
def list_tokens(
    context: CommandContext,
    operator: Annotated[bool, typer.Option("--operator", help="List the tokens of operators.")] = False,
) -> None:
    """List tokens, newest first, without their text."""
    context.out.list(context.client.admin.tokens(operator=operator), COLUMNS, _row)


@app.command(epilog=examples_epilog("ingot tokens revoke 0198c5a2-…"))
@server_command
def revoke(
    context: CommandContext,
    id: Annotated[str, typer.Argument(metavar="ID", help="ID of the token, not its text.", show_default=False)],
) -> None:
    """Revoke a token."""
    revoked = context.client.admin.revoke_token(id)
    context.out.outcome(revoked, f"Revoked token {revoked.id} ({revoked.description}).")


def _parse_grant(text: str) -> Grant:
    action, _, resource = text.partition(":")
    return Grant(action=action, resource=resource) if resource else Grant(action=action)


def _row(token: Token) -> tuple[object, ...]:
    grants = [grant.action if grant.resource == "*" else f"{grant.action}:{grant.resource}" for grant in token.grants]
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
        return "valid"
    expiry = relative_time(token.expires_at)
    return f"expires {expiry}" if expiry.startswith("in ") else f"expired {expiry}"
