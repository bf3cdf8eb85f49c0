"""The process of one kind of abuse. It prepares, prints a line and waits for one.

Then it abuses the server until its input ends, and prints the counts.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any, Final

import msgspec

from benchmarks.fair.abuse_kinds import KINDS, Abuser
from benchmarks.queue.adapter import component

SECONDS_MAX: Final = 60.0


class AbuseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The kind of abuse, the port of the server and the token of the tenant."""

    kind: str
    port: int
    token: str


class AbuseCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of requests by outcome, and the share of a core that the abuser used."""

    accepted: int
    refused: int
    held: int
    statuses: dict[int, int]
    cpu_share: float


async def run(wanted: AbuseRequest) -> AbuseCounts:
    """Abuse until standard input ends."""
    prepare, abuse = KINDS[wanted.kind]
    abuser = Abuser(wanted.port, wanted.token)
    await prepare(abuser)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    abuser.pace.restart()
    abusing = asyncio.create_task(abuse(abuser))
    stopping = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([abusing, stopping], timeout=SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    if abusing.done():
        abusing.result()
    counts = abuser.counts
    result = AbuseCounts(
        accepted=counts.accepted,
        refused=counts.refused,
        held=counts.held,
        statuses=dict(counts.statuses),
        cpu_share=abuser.pace.share,
    )
    abusing.cancel()
    with suppress(asyncio.CancelledError):
        await abusing
    return result


if __name__ == "__main__":
    uvloop: Any = component("uvloop")
    print(msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=AbuseRequest)))).decode())
