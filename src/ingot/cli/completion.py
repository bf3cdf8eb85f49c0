"""What a shell offers while one types. What is not known at once is not offered."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import Final

from ingot.client import Client
from ingot.client.job_request import PRIORITIES
from ingot.identity.credentials import TokenLimits
from ingot.identity.grants import ACTION_FAMILIES, ACTIONS
from ingot.identity.model import Limits
from ingot.kernel.errors import IngotError

COMPLETION_TIMEOUT_SECONDS: Final = 1.0
RECENT_JOBS_MAX: Final = 100


def priorities(incomplete: str) -> list[str]:
    """Priorities by name."""
    return [name for name in PRIORITIES if name.startswith(incomplete)]


def actions(incomplete: str) -> list[str]:
    """What can be granted."""
    known = [*sorted(ACTIONS), *(f"{family}.*" for family in sorted(ACTION_FAMILIES)), "*"]
    return [name for name in known if name.startswith(incomplete)]


def tenant_limits(incomplete: str) -> list[str]:
    """What can be limited."""
    return [f"{name}=" for name in Limits.__struct_fields__ if name.startswith(incomplete)]


def token_limits(incomplete: str) -> list[str]:
    """What can be limited of a token alone."""
    return [f"{name}=" for name in TokenLimits.__struct_fields__ if name.startswith(incomplete)]


def job_types(incomplete: str) -> list[str]:
    """Types that are defined, or of which there were jobs lately, when the server answers soon."""
    found: set[str] = set()

    def look() -> None:
        with suppress(IngotError), Client(patience=0) as client:
            found.update(definition.type for definition in client.definitions())
            found.update(job.type for job in client.jobs(limit=RECENT_JOBS_MAX))

    looking = Thread(target=look, daemon=True)
    looking.start()
    looking.join(COMPLETION_TIMEOUT_SECONDS)
    return sorted(name for name in tuple(found) if name.startswith(incomplete))
