"""Client: programs that use a server over HTTP."""

from __future__ import annotations

from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from ingot.kernel.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from ingot.client.asynchronous.client import AsyncClient
    from ingot.client.asynchronous.job import AsyncJob
    from ingot.client.asynchronous.submission import AsyncSubmission
    from ingot.client.synchronous.client import Client
    from ingot.client.synchronous.job import SyncJob
    from ingot.client.synchronous.submission import SyncSubmission

__all__ = ["AsyncClient", "AsyncJob", "AsyncSubmission", "Client", "SyncJob", "SyncSubmission"]

# A folder that holds only compiled files has a spec without an origin.
_spec = PathFinder.find_spec("ingot.client.synchronous", __path__)
if _spec is None or _spec.origin is None:
    raise ImportError("ingot.client.synchronous has not been generated. Run `make client` in the checkout of Ingot.")

__getattr__, __dir__ = lazy_imports(
    __name__,
    {
        "AsyncClient": "ingot.client.asynchronous.client",
        "AsyncJob": "ingot.client.asynchronous.job",
        "AsyncSubmission": "ingot.client.asynchronous.submission",
        "Client": "ingot.client.synchronous.client",
        "SyncJob": "ingot.client.synchronous.job",
        "SyncSubmission": "ingot.client.synchronous.submission",
    },
)
