"""Reading request bodies that are decoded as a whole."""

from __future__ import annotations

import asyncio
from typing import Final

from ingot.http.buffers import Reservation
from ingot.http.problems import BodyTooLarge, SlowSender
from ingot.http.request import PACE_BYTES_MIN, ClientDisconnected, Receive

BODY_SECONDS_MAX: Final = 30.0
BODY_PAUSE_SECONDS_MAX: Final = 10.0  # Also the time after which the speed of a sender counts.


async def receive_body(bytes_max: int, receive: Receive) -> bytes:
    """Return a small body that has arrived already. Raises `BodyTooLarge` or `ClientDisconnected`."""
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        part, more = await _receive_part(receive)
        size += len(part)
        if size > bytes_max:
            raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def receive_counted_body(
    bytes_max: int, length: int | None, receive: Receive, reservation: Reservation
) -> bytearray:
    """Return a large body, or one that has not arrived completely. Its bytes are counted in the reservation.

    A body of a known length is refused before it is read if it does not fit. Otherwise, bytes are counted as they
    arrive. Raises the errors of `Reservation.add`, `BodyTooLarge`, `SlowSender` and `ClientDisconnected`.
    """
    reservation.add(length or 0)
    body, more, now = bytearray(), True, asyncio.get_running_loop().time
    began = now()
    try:
        async with asyncio.timeout_at(began + BODY_PAUSE_SECONDS_MAX) as deadline:
            while more:
                part, more = await _receive_part(receive)
                if len(body) + len(part) > bytes_max:
                    raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
                if length is None:
                    reservation.add(len(part))
                body += part
                seconds = now() - began
                if more and seconds > BODY_PAUSE_SECONDS_MAX and len(body) < PACE_BYTES_MIN * seconds:
                    raise SlowSender(f"only {len(body)} bytes of the body arrived in {seconds:.0f} seconds")
                deadline.reschedule(min(began + BODY_SECONDS_MAX, now() + BODY_PAUSE_SECONDS_MAX))
    except TimeoutError:
        if now() - began < BODY_SECONDS_MAX:
            raise SlowSender(f"no bytes of the body arrived for {BODY_PAUSE_SECONDS_MAX:g} seconds") from None
        raise SlowSender(f"the body did not arrive within {BODY_SECONDS_MAX:g} seconds") from None
    return body


async def _receive_part(receive: Receive) -> tuple[bytes, bool]:
    """Return the next part of a body, and whether more follows."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)
