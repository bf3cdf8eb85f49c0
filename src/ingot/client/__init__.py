"""The client: what programs ask of a server, over HTTP."""

from ingot.client.asynchronous.client import AsyncClient
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.asynchronous.submission import AsyncSubmission
from ingot.client.synchronous.client import Client
from ingot.client.synchronous.job import SyncJob
from ingot.client.synchronous.submission import SyncSubmission

__all__ = ["AsyncClient", "AsyncJob", "AsyncSubmission", "Client", "SyncJob", "SyncSubmission"]
