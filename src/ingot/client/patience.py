"""When to ask again: only what can have had no effect, or has the same one twice."""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

FIRST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 5.0
REFUSED_WHOLE: Final = frozenset({429, 503})  # The server says that nothing was changed.
LATER: Final = frozenset({408, 429, 503})  # Of what goes on where it broke off: it may work later.
UNKNOWN: Final = "outcome_unknown"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """For how long to ask again, in seconds; 0 asks once."""

    seconds: float = 30.0

    def pause(self, tries: int, waited: float, *, told: float | None = None) -> float | None:
        """How long to wait before the next try, after so many; `None` is to give up.

        `told` is how long the server says to wait.
        """
        pause = min(MOST_SECONDS, FIRST_SECONDS * 2**tries) * random.uniform(0.5, 1.0)
        if told is not None:
            pause = max(pause, told)
        return pause if waited + pause <= self.seconds else None


class Trouble:
    """What goes wrong in a row. It is over with whatever goes well."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self.over()

    def over(self) -> None:
        """It went well: be patient anew."""
        self._tries, self._since = 0, time.monotonic()

    def pause(self, *, told: float | None = None) -> float | None:
        """How long to wait before the next try; `None` is to give up."""
        if self._tries == 0:
            self._since = time.monotonic()
        self._tries += 1
        return self._patience.pause(self._tries - 1, time.monotonic() - self._since, told=told)


def may_repeat(status: int, code: str, *, safe: bool) -> bool:
    """Whether a request that was refused in this way may be sent again."""
    return status in REFUSED_WHOLE and (safe or code != UNKNOWN)
