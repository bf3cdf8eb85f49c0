"""The blobs of which a caller may make references: a blob ID alone grants nothing."""

from __future__ import annotations

import msgspec

from ingot.blobs.model import BlobScope
from ingot.identity.credentials import Caller
from ingot.identity.grants import allowed_prefixes

NOTHING = BlobScope(keys=(), uploads=False, types=())


def readable_scope(caller: Caller) -> BlobScope:
    """Return the references that the caller may see.

    The engine returns a limited number of references and must choose them among the visible ones.
    """
    return BlobScope(
        keys=allowed_prefixes("keys", caller.grants, "blobs.read"),
        uploads=caller.may("blobs.read"),
        types=allowed_prefixes("jobs", caller.grants, "jobs.read"),
    )


def reference_scope(caller: Caller) -> BlobScope:
    """Return the references of which the caller may make others: those that it may see, and its own.

    To make a reference of its own, the caller has sent the bytes, or could read the blob at that time.
    """
    return msgspec.structs.replace(readable_scope(caller), owner=caller.principal)


def attempt_scope(job_id: str) -> BlobScope:
    """Return the references of which an attempt may make others: the files of its job.

    References of its worker do not count. The handler may be less trusted than the worker, which runs other jobs too.
    """
    return msgspec.structs.replace(NOTHING, job_id=job_id)
