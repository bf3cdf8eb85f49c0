"""Events that users publish, and events that have been kept long enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ingot.engines.events import PLACES, write_event_id
from ingot.engines.postgres.connection import Database, Record
from ingot.engines.postgres.memory import Memory
from ingot.events.model import Forgotten, Published
from ingot.events.ports import KEY_KEPT, ForgetEvents, PublishEvent
from ingot.kernel.errors import IdempotencyMismatch, IngotError, StoreBusy

CALL: Final = "SELECT * FROM ingot.publish($1, $2, $3, $4, $5, $6)"
FORGET: Final = "SELECT * FROM ingot.forget_events($1, $2, $3)"
BYTES_PER_ROW: Final = 1024  # So many bytes weigh as much as a small event: who reads one reads all that came with it.

Answer = Published | IngotError


def weigh(command: PublishEvent) -> int:
    """How many small events a command stands for."""
    return 1 + len(command.data) // BYTES_PER_ROW


async def publish(db: Database, memory: Memory, commands: Sequence[PublishEvent]) -> list[Answer]:
    """Append events together. Those that share a key go one after the other."""
    rounds: list[list[int]] = []
    before: dict[tuple[str, str], int] = {}
    for number, command in enumerate(commands):
        turn = 0
        if command.key is not None:
            turn = before.get((command.tenant, command.key), -1) + 1
            before[command.tenant, command.key] = turn
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(number)
    answers: dict[int, Answer] = {}
    for together in rounds:
        answers |= await _publish(db, memory, {number: commands[number] for number in together})
    return [answers[number] for number in range(len(commands))]


async def _publish(db: Database, memory: Memory, commands: dict[int, PublishEvent]) -> dict[int, Answer]:
    asked = list(commands.values())
    # An event without a key that was sent twice would be there twice.
    call = db.call if all(command.key is not None for command in asked) else db.call_once
    rows = await call(
        CALL,
        [command.tenant for command in asked],
        [command.name for command in asked],
        [command.data.decode() for command in asked],
        [command.key for command in asked],
        [command.digest for command in asked],
        KEY_KEPT,
    )
    memory.told(asked[row["place"] - 1].tenant for row in rows if row["created"])
    numbers = list(commands)
    held: dict[int, Answer] = {number: _held() for number in numbers}
    return held | {numbers[row["place"] - 1]: _answer(row) for row in rows}


def _held() -> StoreBusy:
    return StoreBusy(
        "A transaction that has not ended holds the key of this event.",
        hint="Nothing was changed; try again when the application has committed.",
    )


def _answer(row: Record) -> Answer:
    if not row["same"]:
        return IdempotencyMismatch()
    return Published(id=write_event_id(*divmod(row["event"], PLACES)), created=row["created"])


async def forget(db: Database, command: ForgetEvents) -> Forgotten:
    """Remove a bounded number of batches and keys."""
    (row,) = await db.call(FORGET, command.keep, command.limit, KEY_KEPT)
    return Forgotten(batches=row["batches"], keys=row["keys"], more=row["more"])
