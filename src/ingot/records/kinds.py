"""Record kinds: the type of the body, the valid names, the limits, and the wording of audit entries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from ingot.kernel.errors import InvalidInput
from ingot.kernel.validation import check_length, check_text
from ingot.records.model import Record

NAME_CHARS_MAX: Final = 100
BODY_BYTES_MAX: Final = 64 * 1024
RECORDS_MAX: Final = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

B = TypeVar("B")


def record_name(value: object) -> str:
    """Return a valid record name. Raises `InvalidInput`."""
    name = check_length(check_text(value, name="name"), name="name", chars_max=NAME_CHARS_MAX)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"the name {name[:64]!r} is not valid",
            hint="Use letters, digits, dots, hyphens and underscores, and begin with a letter or a digit.",
        )
    return name


class RecordKind(msgspec.Struct, Generic[B], frozen=True, kw_only=True):
    """A kind of record.

    `request_type` is the type of request bodies if it differs from `body_type`, and `example` is an example of a
    request body. `audit_subject` (by default `name`), `put_verb` and `delete_verb` determine the actions and targets of
    audit entries, such as `secret.put` on `secret/smtp`.
    """

    name: str
    plural: str
    body_type: type[B]
    request_type: type[Any] | None = None
    example: object = None
    check_name: Callable[[object], str] = record_name
    audit_subject: str = ""
    put_verb: str = "put"
    delete_verb: str = "deleted"
    body_bytes_max: int = BODY_BYTES_MAX
    records_max: int = RECORDS_MAX

    def decode(self, record: Record[msgspec.Raw]) -> Record[B]:
        """Return a record with its body decoded."""
        values = msgspec.structs.asdict(record)
        return Record(**{**values, "body": msgspec.json.decode(record.body, type=self.body_type)})

    def audit_action(self, verb: str) -> str:
        """Return the action of an audit entry."""
        return f"{self.audit_subject or self.name}.{verb}"

    def audit_target(self, name: str) -> str:
        """Return the target of an audit entry."""
        return f"{self.audit_subject or self.name}/{name}"
