"""The base classes of all errors. The docstring of a class is its default message, and `hint` says what to do.

    IngotError
    ├── InvalidInput            422  a value is not valid
    │   └── IdempotencyMismatch 422  the idempotency key was used for a different request
    ├── NotFound                404  the object does not exist, or belongs to another tenant
    ├── Conflict                409  the current state does not allow the operation
    ├── TooMany                 429  a limit is reached
    │   └── TenantBusy          429  too many reads of the tenant are waiting
    └── StoreError              503  the store failed
        ├── StoreBusy           503  too many commands are waiting
        ├── StoreLocked         503  another process uses the data folder
        ├── StoreMisconfigured  500  the store cannot be used as it is configured
        ├── StoreTooNew         500  a newer version of Ingot wrote the store
        ├── SchemaMismatch      503  this program does not fit the schema of its database
        ├── StorageFull         507  the disk is full
        └── OutcomeUnknown      503  the commit failed, or its result was lost

Packages such as `jobs` and `blobs` define subclasses of these. `status` is the HTTP status; the CLI derives its exit
code from it.
"""

from __future__ import annotations

from inspect import cleandoc
from typing import ClassVar

from ingot.kernel.redaction import redact


class IngotError(Exception):
    """The operation failed."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    hint: str = "Check the log of the server."
    is_logged: bool = False  # Whether the cause is in the log already. Loops then do not log the error.

    def __init__(self, detail: str | None = None, *, hint: str | None = None) -> None:
        self.detail = redact(detail or self.title())
        if hint is not None:
            self.hint = redact(hint)
        super().__init__(self.detail)
        self.add_note(f"Hint: {self.hint}")

    @classmethod
    def title(cls) -> str:
        """Return the first line of the docstring: the description of this kind of error."""
        return cleandoc(cls.__doc__ or cls.__name__).split("\n", 1)[0]


class InvalidInput(IngotError):
    """A value in the request is not valid."""

    code = "invalid_input"
    status = 422
    hint = "Correct the value and try again. Nothing was changed."


class IdempotencyMismatch(InvalidInput):
    """This idempotency key was already used for a different request."""

    code = "idempotency_mismatch"
    hint = "Use a new key for a new request. Nothing was changed."


class NotFound(IngotError):
    """The requested object does not exist."""

    code = "not_found"
    status = 404
    hint = "Check the ID and the tenant."


class Conflict(IngotError):
    """The current state does not allow this operation."""

    code = "conflict"
    status = 409
    hint = "Read the current state, then decide whether to try again."


class TooMany(IngotError):
    """A limit is reached."""

    code = "too_many"
    status = 429
    hint = "Nothing was changed. Try again later, or ask an operator to raise the limit."


class TenantBusy(TooMany):
    """Too many calls of this tenant are already waiting for the store."""

    code = "tenant_busy"
    hint = "Send fewer requests at once, and try again in a moment."
    retry_after: ClassVar[float] = 1.0


class StoreError(IngotError):
    """The store could not complete the operation."""

    code = "store_failed"
    status = 503
    hint = "Nothing was changed. Try again; if the error persists, the log of the server contains the cause."


class StoreBusy(StoreError):
    """Too many operations are already waiting for the store."""

    code = "store_busy"
    hint = "Nothing was changed. Try again in a moment."


class StoreLocked(StoreError):
    """Another Ingot process is using this data folder."""

    code = "store_locked"
    hint = "Stop that process, or set INGOT_DATA to a different folder."


class StoreMisconfigured(StoreError):
    """The store cannot be used as it is configured."""

    code = "store_misconfigured"
    status = 500
    hint = "Put the data folder on a local file system that supports SQLite's write-ahead log."


class StoreTooNew(StoreError):
    """A newer version of Ingot wrote this store."""

    code = "store_too_new"
    status = 500
    hint = "Run that version or a later one. The schema cannot be downgraded."


class SchemaMismatch(StoreError):
    """The program does not fit the schema of its database, which another version of Ingot has migrated."""

    code = "schema_mismatch"
    hint = "Nothing was changed. Try again: another server may fit. Replace this one with the new version."
    retry_after: ClassVar[float] = 5.0
    is_logged = True


class StorageFull(StoreError):
    """The disk is full."""

    code = "storage_full"
    status = 507
    hint = "Nothing was changed. Free some space and try again."


class OutcomeUnknown(StoreError):
    """The commit failed or its result was lost, so the change may or may not have been made."""

    code = "outcome_unknown"
    hint = "Read the current state before trying again."
