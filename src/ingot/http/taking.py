"""Readers that are slow: a line may be, and who takes next to nothing of an answer is waited for no more."""

from __future__ import annotations

import asyncio
import termios
from array import array
from contextlib import suppress
from fcntl import ioctl
from typing import Final

TAKE_SECONDS: Final = 60.0  # Who is waited for takes, in so long,
TAKE_BYTES_MIN: Final = 512  # so much a second. Senders are asked for the same.


class Taking:
    """Looks at a connection while what was written to it waits, and ends it when too little is taken.

    Where nothing waits, as on a stream without events, nothing is looked at.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = 0

    def begin(self) -> None:
        """More waits to be taken than should."""
        if self._timer is None:
            self._look_later()

    def end(self) -> None:
        """It was taken, or nobody is there any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._waiting = self._left()
        self._timer = self._loop.call_later(TAKE_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting - self._left() < TAKE_BYTES_MIN * TAKE_SECONDS:
            self._transport.abort()
        else:
            self._look_later()

    def _left(self) -> int:
        """So much is with us, and with the kernel: that takes much at once, and seldom, for a slow line."""
        kept = array("i", [0])
        with suppress(OSError):  # Some kernels do not tell.
            ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kept)
        return self._transport.get_write_buffer_size() + kept[0]
