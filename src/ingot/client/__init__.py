"""The client: what programs ask of a server, over HTTP."""

from ingot.client.asynchronous.client import AsyncClient
from ingot.client.asynchronous.job import AsyncJob
from ingot.client.synchronous.client import Client
from ingot.client.synchronous.job import SyncJob

__all__ = ["AsyncClient", "AsyncJob", "Client", "SyncJob"]
