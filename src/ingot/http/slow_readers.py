"""Disconnecting clients that read a response too slowly."""

from __future__ import annotations

import asyncio
import termios
from array import array
from contextlib import suppress
from fcntl import ioctl
from typing import Final

READ_WINDOW_SECONDS: Final = 60.0  # Time over which the speed of a client is measured.
READ_RATE_BYTES_MIN: Final = 512  # Bytes per second. The same minimum applies to clients that send a body.


class SlowReaderGuard:
    """Aborts a connection whose client reads too slowly while the write buffer is full.

    A connection without pending data, such as a stream without events, is not checked.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._unread_before = 0

    def start(self) -> None:
        """Start checking, because the write buffer is full."""
        if self._timer is None:
            self._schedule_check()

    def stop(self) -> None:
        """Stop checking, because the write buffer has room or the connection is closed."""
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
        """Return the number of bytes that the client has not received: in our buffer and in that of the kernel.

        The kernel takes bytes from our buffer in large portions. With a slow client, our buffer alone can stay the
        same for a long time.
        """
        kernel_bytes = array("i", [0])
        with suppress(OSError):  # Not every kernel supports TIOCOUTQ.
            ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kernel_bytes)
        return self._transport.get_write_buffer_size() + kernel_bytes[0]
