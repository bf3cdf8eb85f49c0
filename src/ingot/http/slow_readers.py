"""Readers that are slow: a line may be, and who takes next to nothing of an answer is waited for no more."""

from __future__ import annotations

import asyncio
import termios
from array import array
from contextlib import suppress
from fcntl import ioctl
from typing import Final

READ_WINDOW_SECONDS: Final = 60.0  # Who is waited for takes, in so long,
READ_RATE_BYTES_MIN: Final = 512  # so much a second. Senders are asked for the same.


class SlowReaderGuard:
    """Looks at a connection while what was written to it waits, and ends it when too little is taken.

    Where nothing waits, as on a stream without events, nothing is looked at.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._unread_before = 0

    def start(self) -> None:
        """More waits to be taken than should."""
        if self._timer is None:
            self._schedule_check()

    def stop(self) -> None:
        """It was taken, or nobody is there any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self) -> None:
        self._unread_before = self._unread_bytes()
        self._timer = self._loop.call_later(READ_WINDOW_SECONDS, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._unread_before - self._unread_bytes() < READ_RATE_BYTES_MIN * READ_WINDOW_SECONDS:
            self._transport.abort()
        else:
            self._schedule_check()

    def _unread_bytes(self) -> int:
        """So much is with us, and with the kernel: that takes much at once, and seldom, for a slow line."""
        kept = array("i", [0])
        with suppress(OSError):  # Some kernels do not tell.
            ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kept)
        return self._transport.get_write_buffer_size() + kept[0]
