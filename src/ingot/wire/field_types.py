"""Types of request fields, with bounds that the decoder enforces and the OpenAPI document shows."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from ingot.blobs.checks import NAME_CHARS_MAX
from ingot.jobs import checks
from ingot.jobs.files import INPUTS_MAX, OUTPUTS_MAX
from ingot.jobs.model import PRIORITY_MAX, PRIORITY_MIN
from ingot.kernel.validation import NUMBER_MAX

PREFIX: Final = "/api/v1"


def schema_only(**bounds: Any) -> Meta:
    """Return bounds that only the OpenAPI document shows. A service checks them."""
    return Meta(extra_json_schema=bounds)


def text_up_to(chars_max: int) -> Meta:
    """Return the bounds of a text with 1 to `chars_max` characters."""
    return Meta(min_length=1, max_length=chars_max)


def between(least: float, most: float) -> Meta:
    """Return the bounds of a number."""
    return Meta(ge=least, le=most)


def entries_up_to(entries_max: int, *, least: int = 0) -> Meta:
    """Return the bounds of a list or mapping with `least` to `entries_max` entries."""
    return Meta(min_length=least or None, max_length=entries_max)


JobType = Annotated[str, text_up_to(checks.TYPE_CHARS_MAX), schema_only(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
JobTypes = Annotated[list[JobType], entries_up_to(checks.CLAIM_TYPES_MAX, least=1)]
Timestamp = Annotated[datetime, schema_only(format="date-time")]
KeyText = Annotated[str, text_up_to(checks.KEY_CHARS_MAX)]
BatchName = Annotated[str, text_up_to(checks.BATCH_CHARS_MAX)]
WorkerId = Annotated[str, text_up_to(checks.WORKER_ID_CHARS_MAX)]
Tags = Annotated[list[Annotated[str, text_up_to(checks.TAG_CHARS_MAX)]], entries_up_to(checks.TAGS_MAX)]
FileName = Annotated[str, text_up_to(NAME_CHARS_MAX)]
BlobId = Annotated[str, schema_only(pattern=r"^[0-9a-f]{64}$")]
InputBlobs = Annotated[dict[FileName, BlobId], entries_up_to(INPUTS_MAX)]
OutputNames = Annotated[list[FileName], entries_up_to(OUTPUTS_MAX)]
JobIds = Annotated[list[Annotated[str, schema_only(format="uuid")]], entries_up_to(checks.PARENTS_MAX)]
Priority = Annotated[int, between(PRIORITY_MIN, PRIORITY_MAX)]
AttemptCount = Annotated[int, between(1, checks.ATTEMPTS_MAX)]
DelaySeconds = Annotated[float, between(0, checks.DELAY_SECONDS_MAX)]
WaitSeconds = Annotated[float, between(0, checks.WAIT_SECONDS_MAX)]
ClaimLimit = Annotated[int, between(1, checks.CLAIM_JOBS_MAX)]
Count = Annotated[int, between(0, NUMBER_MAX)]
Slug = Annotated[str, schema_only(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
CredentialId = Annotated[str, schema_only(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
