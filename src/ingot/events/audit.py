"""The audit log of administrative changes. The command that makes a change also writes its entry."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from ingot.kernel.commands import Command
from ingot.kernel.ids import new_id
from ingot.kernel.validation import check_instance, check_storable, check_text

PROCESS: Final = "process"  # The author of changes that a Python program makes with the store, without a credential.


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a change and the origin of the request. Every administrative command carries an act.

    `who` is a caller such as `token:…` or `user:…`, `name` its readable name, and `address` its IP address. `id`
    becomes the ID of the audit entry, so that a command that is repeated after its result was lost finds its own entry.
    """

    id: str = msgspec.field(default_factory=new_id)
    who: str = PROCESS
    name: str | None = None
    address: str | None = None
    request_id: str | None = None


def new_act(act: Act | None) -> Act:
    """Return an act with a new ID for one command. Without an act, the author is the process itself.

    Raises `InvalidInput` for an act that cannot be stored.
    """
    if act is None:
        return Act()
    values = msgspec.structs.asdict(check_instance(act, Act, name="act"))
    for field in ("who", "name", "address", "request_id"):
        if values[field] is not None or field == "who":
            check_storable(check_text(values[field], name=field), name=field)
    return msgspec.structs.replace(act, id=new_id())


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the audit log. Entries about the whole server have no tenant.

    `before` and `after` are the changed object as JSON, and `null` if it did not exist.
    """

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
    """A selection of audit entries. `tenant=None` selects the entries of all tenants and of the whole server."""

    tenant: str | None
    action: str | None = None
    who: str | None = None
    target: str | None = None


class ListAuditEntries(Command[list[Entry]], frozen=True, kw_only=True):
    """Read up to `limit` audit entries, newest first, starting after the ID `before`."""

    filter: AuditFilter
    before: str | None
    limit: int
