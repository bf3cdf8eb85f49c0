"""Access to payloads that are stored as blobs: the sync client fetches them, the async client requires a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.kernel.errors import InvalidInput


def async_ensure_fetched(fetch: Callable[[], Any], name: str) -> None:  # noqa: ARG001 - the sync version calls it
    """Raise `InvalidInput`, since a property cannot await."""
    raise InvalidInput(f"the {name} is stored as a blob and not fetched yet", hint=f"Await `job.fetch_{name}()` first.")


def sync_ensure_fetched(fetch: Callable[[], Any], name: str) -> None:  # noqa: ARG001 - the async version uses it
    """Fetch the value."""
    fetch()
