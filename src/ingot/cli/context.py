"""Common parts of client commands: options for server, token, tenant and output, and clients made from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Self

import typer

from ingot.cli.help_text import unwrap_docstring
from ingot.cli.output import Output
from ingot.client import Client
from ingot.client.server_address import ServerAddress, resolve_server_address
from ingot.kernel.errors import InvalidInput

PANEL: Final = "Server and output"
RETRY_SECONDS: Final = 2.0  # Short, so that a wrong URL is reported soon.
WAITING_RETRY_SECONDS: Final = 60.0  # Long enough to survive a restart of the server.
TOKEN_CHARS_MAX: Final = 4096
TOKEN_HINT: Final = "The file must contain only a token, such as ingot_…."


def _reject_empty(value: str | None) -> str | None:
    """Reject an empty value, which usually comes from an unset variable in a script."""
    if value == "":
        raise typer.BadParameter("must not be empty.")
    return value


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="URL of the server. Default: INGOT_SERVER_URL, or http://127.0.0.1:8080.",
        rich_help_panel=PANEL,
        callback=_reject_empty,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File that contains the token. Default: INGOT_TOKEN, or operator.token in the data folder if the server "
        "runs on this machine.",
        rich_help_panel=PANEL,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="SLUG",
        help="Tenant to act in; for operators. Default: INGOT_TENANT, or the tenant of the token.",
        rich_help_panel=PANEL,
        callback=_reject_empty,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=PANEL)]


def read_token_file(path: Path) -> str:
    """Read a token from a file. Raises `InvalidInput`."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            text = file.read(TOKEN_CHARS_MAX + 1).strip()
    except OSError as error:
        raise InvalidInput(
            f"the token file {path} cannot be read: {error.strerror}", hint="Check the path after --token-file."
        ) from None
    if not text:
        raise InvalidInput(f"the token file {path} is empty", hint=TOKEN_HINT)
    if not (text.isascii() and text.isprintable() and len(text) <= TOKEN_CHARS_MAX):
        raise InvalidInput(f"the token file {path} does not contain a valid token", hint=TOKEN_HINT)
    return text


class CommandContext:
    """The common options of a client command, its output, and its clients, which are closed on exit."""

    def __init__(
        self,
        *,
        server: str | None = None,
        token_file: Path | None = None,
        tenant: str | None = None,
        json: bool = False,
    ) -> None:
        self.server = server
        self.tenant = tenant
        self.out = Output(json=json)
        self._token_file = token_file
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()

    @cached_property
    def token(self) -> str | None:
        """The token from `--token-file`, or `None` to use the environment. Raises `InvalidInput`."""
        return None if self._token_file is None else read_token_file(self._token_file)

    @cached_property
    def client(self) -> Client:
        """A client that retries for `RETRY_SECONDS`, and longer at a limit. Raises `NoToken` or `WrongUrl`."""
        return self.open_client()

    @cached_property
    def retrying_client(self) -> Client:
        """A client that retries for `WAITING_RETRY_SECONDS`, for transfers and for waiting."""
        return self.open_client(patience=WAITING_RETRY_SECONDS)

    @property
    def server_address(self) -> ServerAddress:
        """The URL of the server and the headers of every request."""
        return resolve_server_address(self.server, token=self.token, tenant=self.tenant, allow_missing_token=True)

    def open_client(
        self,
        *,
        tenant: str | None = None,
        patience: float = RETRY_SECONDS,
        limit_patience: float = WAITING_RETRY_SECONDS,
    ) -> Client:
        """Open another client, optionally for another tenant. The context closes the client."""
        client = Client(
            self.server,
            token=self.token,
            tenant=tenant or self.tenant,
            patience=patience,
            limit_patience=limit_patience,
        )
        self._clients.append(client)
        return client


def _common_options(
    *,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    tenant: TenantOption = None,
    json: JsonOption = False,
) -> None:
    """Declare the options that all client commands have."""


COMMON_OPTIONS: Final = tuple(inspect.signature(_common_options, eval_str=True).parameters.values())


def server_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add the common options to a command, and pass it a `CommandContext` as its first argument."""
    own_options = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**arguments: Any) -> None:
        with CommandContext(**{option.name: arguments.pop(option.name) for option in COMMON_OPTIONS}) as context:
            command(context, **arguments)

    options = (*own_options, *COMMON_OPTIONS)
    parameters = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    run.__name__, run.__doc__ = command.__name__, unwrap_docstring(command.__doc__ or "")
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def command_group(help_text: str) -> typer.Typer:
    """Create a group of commands that prints its help when it is called without a command."""
    return typer.Typer(no_args_is_help=True, add_completion=False, help=help_text, rich_markup_mode="rich")
