"""What all commands that ask a server have in common: where it is, who asks, and how the answer is written."""

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
RETRY_SECONDS: Final = 2.0  # Who typed the address wrong is told soon.
WAITING_RETRY_SECONDS: Final = 60.0  # Who waits for a job outlives a restart of the server.
TOKEN_CHARS_MAX: Final = 4096
TOKEN_HINT: Final = "It holds a token and nothing else, as in ingot_…."


def _reject_empty(value: str | None) -> str | None:
    """What was said; a variable of a script that is not set is nothing."""
    if value == "":
        raise typer.BadParameter("it is empty.")
    return value


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Its address (INGOT_SERVER_URL, http://127.0.0.1:8080).",
        rich_help_panel=PANEL,
        callback=_reject_empty,
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="A file with the token (INGOT_TOKEN; on the machine of the server, operator.token of its data folder).",
        rich_help_panel=PANEL,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="SLUG",
        help="In which tenant, for an operator (INGOT_TENANT).",
        rich_help_panel=PANEL,
        callback=_reject_empty,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.", rich_help_panel=PANEL)]


def read_token_file(path: Path) -> str:
    """The token in a file. Raises `InvalidInput`."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            text = file.read(TOKEN_CHARS_MAX + 1).strip()
    except OSError as error:
        raise InvalidInput(
            f"the file {path} cannot be read: {error.strerror}", hint="Check the name after --token-file."
        ) from None
    if not text:
        raise InvalidInput(f"the file {path} is empty", hint=TOKEN_HINT)
    if not (text.isascii() and text.isprintable() and len(text) <= TOKEN_CHARS_MAX):
        raise InvalidInput(f"the file {path} holds something that is no token", hint=TOKEN_HINT)
    return text


class CommandContext:
    """One command that asks a server."""

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
        """The token of the file that was named; `None` leaves it to the environment. Raises `InvalidInput`."""
        return None if self._token_file is None else read_token_file(self._token_file)

    @cached_property
    def client(self) -> Client:
        """The server. Raises `NoToken` or `WrongUrl`."""
        return self.open_client()

    @cached_property
    def retrying_client(self) -> Client:
        """The same server, for who waits."""
        return self.open_client(patience=WAITING_RETRY_SECONDS)

    @property
    def server_address(self) -> ServerAddress:
        """Where the server is, and what is said to it with every request."""
        return resolve_server_address(self.server, token=self.token, tenant=self.tenant, allow_missing_token=True)

    def open_client(self, *, tenant: str | None = None, patience: float = RETRY_SECONDS) -> Client:
        """The server, in another tenant."""
        made = Client(self.server, token=self.token, tenant=tenant or self.tenant, patience=patience)
        self._clients.append(made)
        return made


def _common_options(
    *,
    server: ServerOption = None,
    token_file: TokenFileOption = None,
    tenant: TenantOption = None,
    json: JsonOption = False,
) -> None:
    """The options of all of them."""


COMMON_OPTIONS: Final = tuple(inspect.signature(_common_options, eval_str=True).parameters.values())


def server_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command that gets an `Asking`, made of the options that all of them have."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    def run(**given: Any) -> None:
        with CommandContext(**{option.name: given.pop(option.name) for option in COMMON_OPTIONS}) as ask:
            command(ask, **given)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own, *COMMON_OPTIONS)]
    run.__name__, run.__doc__ = command.__name__, unwrap_docstring(command.__doc__ or "")
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def command_group(what: str) -> typer.Typer:
    """A noun, whose commands are verbs."""
    return typer.Typer(no_args_is_help=True, add_completion=False, help=what, rich_markup_mode="rich")
