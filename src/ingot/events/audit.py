"""The audit log: who changed what, from where, and how it was before. Written by the same command as the change."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from ingot.kernel.commands import Command
from ingot.kernel.ids import new_id
from ingot.kernel.validation import check_instance, check_storable, check_text

PROCESS: Final = "process"  # Who works with the store in Python, without a credential.


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Who does something, and from where: what every command that manages something carries.

    `who` is a caller such as `token:…` or `user:…`, and `name` how people know it. The id is that of the entry in the
    audit log: a command that is sent again, after its answer was lost, finds its own.
    """

    id: str = msgspec.field(default_factory=new_id)
    who: str = PROCESS
    name: str | None = None
    address: str | None = None
    request_id: str | None = None


def new_act(act: Act | None) -> Act:
    """Who gives a new command: as told, or the process itself. Each command is an entry of its own.

    Raises `InvalidInput` for one that cannot be kept.
    """
    if act is None:
        return Act()
    said = msgspec.structs.asdict(check_instance(act, Act, name="act"))
    for what in ("who", "name", "address", "request_id"):
        if said[what] is not None or what == "who":
            check_storable(check_text(said[what], name=what), name=what)
    return msgspec.structs.replace(act, id=new_id())


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One act. Without a tenant it is about the whole place. `before` and `after` are the thing, and `null` is none."""

    id: str
    """ID of the entry."""
    at: datetime
    """When the change was made."""
    tenant: str | None
    """ID of the tenant in which the change was made; `null` if it concerns the whole server."""
    who: str
    """Caller: `user:`, `token:` or `worker:` and an ID, or `process` for the server itself and for Python code."""
    name: str | None
    """Name of the caller: the email of a person, the description of a token, or the ID of a worker credential."""
    action: str
    """Action, such as `token.created`."""
    target: str
    """Changed object, such as `token/` and its ID."""
    address: str | None
    """IP address of the client; `null` if the change was not requested over HTTP."""
    request_id: str | None
    """ID of the request, as in the response header `X-Request-ID` and in the server log."""
    before: msgspec.Raw
    """State before the change; `null` if the object was created."""
    after: msgspec.Raw
    """State after the change; `null` if the object was removed."""


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: those of a tenant, or of all with the whole place; then those that have what is named."""

    tenant: str | None
    action: str | None = None
    who: str | None = None
    target: str | None = None


class ListAuditEntries(Command[list[Entry]], frozen=True, kw_only=True):
    """Entries, newest first, from below the id `before`."""

    filter: AuditFilter
    before: str | None
    limit: int
