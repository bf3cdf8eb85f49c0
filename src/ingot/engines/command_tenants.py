"""The tenants and sizes of commands, to share an engine fairly between tenants."""

from __future__ import annotations

from typing import Any, Final

from ingot.jobs import ports
from ingot.kernel.commands import Command

# The fields of commands that contain several items, each with its own tenant.
_ITEMS: Final[dict[type[Command[Any]], str]] = {
    ports.Enqueue: "jobs",
    ports.SettleJobs: "settles",
    ports.RenewLeases: "beats",
    ports.AppendLogs: "entries",
}


def tenant_of(command: Command[Any]) -> str | None:
    """Return the tenant of a command, or `None` if it concerns all tenants or those of a shared worker."""
    items = _ITEMS.get(type(command))
    if items is not None:
        first = next(iter(getattr(command, items)), None)
        return None if first is None else first.tenant
    where = getattr(command, "where", command)
    tenant = getattr(where, "tenant", None)
    return tenant if isinstance(tenant, str) else None


def count_items(command: Command[Any]) -> int:
    """Return the number of items of a command that contains several, or 1."""
    if isinstance(command, ports.WorkerHeartbeat):
        return len(command.beats)
    items = _ITEMS.get(type(command))
    return 1 if items is None else len(getattr(command, items))
