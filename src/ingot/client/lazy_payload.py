"""What has to be fetched before it can be told: for who does not await, it is fetched when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot.kernel.errors import InvalidInput


def async_ensure_fetched(fetch: Callable[[], Any], what: str) -> None:  # noqa: ARG001 - the other calls it
    """Raises `InvalidInput`: who awaits has to say when."""
    raise InvalidInput(f"the {what} is a blob, and not here yet", hint=f"Write `await job.fetch_{what}()` before.")


def sync_ensure_fetched(fetch: Callable[[], Any], what: str) -> None:  # noqa: ARG001 - the other tells it
    """Fetch it."""
    fetch()
