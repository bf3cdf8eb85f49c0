"""Permissions that an event needs besides that to read events, because it names something that needs them."""

from __future__ import annotations

from typing import Final

import msgspec

from ingot.events.model import Event

Permission = tuple[str, str]  # An action and a resource, as in grants.

BLOB_EVENTS: Final = frozenset({"blob.stored", "blob.deleted"})
ANY: Final = "*"


class _BlobEventData(msgspec.Struct, frozen=True):
    key: str | None = None
    job_id: str | None = None


_decode = msgspec.json.Decoder(_BlobEventData).decode


def needed_permission(event: Event) -> Permission | None:
    """Return what a caller needs besides `events.read` to see an event, or `None`.

    An event about a key needs permission to read this key. An event about a file of a job, whose type it does not
    contain, needs permission to read all jobs.
    """
    if event.name not in BLOB_EVENTS:
        return None
    data = _decode(event.data)
    if data.key is not None:
        return "blobs.read", f"keys/{data.key}"
    return ("blobs.read" if data.job_id is None else "jobs.read"), ANY
