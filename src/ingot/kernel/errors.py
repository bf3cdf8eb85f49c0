"""One tree of errors. Each explains itself once: the docstring is the message, `hint` says what to do.

    IngotError
    ├── InvalidInput            422  what was sent cannot be accepted
    │   └── IdempotencyMismatch 422  a key was used before, for something else
    ├── NotFound                404  not there, or not yours
    ├── Conflict                409  the state of things forbids it
    ├── TooMany                 429  a limit is reached
    └── StoreError              503  the store could not do its work
        ├── StoreBusy           503  too much waits already
        ├── StoreLocked         503  another process holds the data folder
        ├── StoreMisconfigured  500  the file does not give the durability we promise
        ├── StoreTooNew         500  the file was written by a newer Ingot
        ├── StorageFull         507  the disk is full
        └── OutcomeUnknown      503  the disk failed during the commit

Rooms hang their own errors below these. `status` is the HTTP status; the exit code of the CLI follows from it.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import ClassVar

from ingot.kernel.redaction import redact


class IngotError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    hint: str = "Look at the log of the server."

    def __init__(self, detail: str | None = None, *, hint: str | None = None) -> None:
        self.detail = redact(detail or self.title())
        if hint is not None:
            self.hint = redact(hint)
        super().__init__(self.detail)
        self.add_note(f"Hint: {self.hint}")

    @classmethod
    def title(cls) -> str:
        """The sentence that explains this kind of error."""
        return cleandoc(cls.__doc__ or cls.__name__).split("\n", 1)[0]


class InvalidInput(IngotError):
    """What was sent cannot be accepted."""

    code = "invalid_input"
    status = 422
    hint = "Correct the value and send it again; nothing was changed."


class IdempotencyMismatch(InvalidInput):
    """This idempotency key was used before, for something else."""

    code = "idempotency_mismatch"
    hint = "Use a new key for something new; nothing was changed."


class NotFound(IngotError):
    """There is no such thing here."""

    code = "not_found"
    status = 404
    hint = "Check the id, and that you ask in the right tenant."


class Conflict(IngotError):
    """The state of things forbids this."""

    code = "conflict"
    status = 409
    hint = "Read the current state and decide again."


class TooMany(IngotError):
    """A limit is reached."""

    code = "too_many"
    status = 429
    hint = "Nothing was changed; try again later, or have the limit raised."


class StoreError(IngotError):
    """The store could not do its work."""

    code = "store_failed"
    status = 503
    hint = "Nothing was changed; try again, and look at the log when it stays."


class StoreBusy(StoreError):
    """Too many commands wait for the store already."""

    code = "store_busy"
    hint = "Nothing was changed; try again in a moment."


class StoreLocked(StoreError):
    """Another Ingot process holds this data folder."""

    code = "store_locked"
    hint = "Stop that process, or give this one a data folder of its own (INGOT_DATA)."


class StoreMisconfigured(StoreError):
    """The file does not give the durability that Ingot promises."""

    code = "store_misconfigured"
    status = 500
    hint = "Put the data folder on a local file system that supports SQLite's write-ahead log."


class StoreTooNew(StoreError):
    """The file was written by a newer Ingot."""

    code = "store_too_new"
    status = 500
    hint = "Run the version that wrote it, or a later one; the schema only moves forward."


class StorageFull(StoreError):
    """The disk is full."""

    code = "storage_full"
    status = 507
    hint = "Nothing was changed; free some space and try again."


class OutcomeUnknown(StoreError):
    """The disk failed during the commit, so the change may or may not be there."""

    code = "outcome_unknown"
    hint = "Read the current state before you try again."
