"""Values in requests, with the bounds that the API's document tells; the rooms hold them, with a hint."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta

from ingot.blobs.checks import NAME_CHARS_MAX
from ingot.jobs import checks
from ingot.jobs.files import INPUTS_MAX, OUTPUTS_MAX
from ingot.jobs.model import PRIORITY_MAX, PRIORITY_MIN
from ingot.kernel.values import NUMBER_MAX

PREFIX: Final = "/api/v1"


def told(**bounds: Any) -> Meta:
    """Bounds that are told and not held."""
    return Meta(extra_json_schema=bounds)


def _up_to(chars_max: int) -> Meta:
    return told(minLength=1, maxLength=chars_max)


JobType = Annotated[str, told(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$", maxLength=checks.TYPE_CHARS_MAX)]
JobTypes = Annotated[list[JobType], told(minItems=1, maxItems=checks.CLAIM_TYPES_MAX)]
Moment = Annotated[datetime, told(format="date-time")]
Key = Annotated[str, _up_to(checks.KEY_CHARS_MAX)]
BatchName = Annotated[str, _up_to(checks.BATCH_CHARS_MAX)]
WorkerId = Annotated[str, _up_to(checks.WORKER_CHARS_MAX)]
Tags = Annotated[list[Annotated[str, _up_to(checks.TAG_CHARS_MAX)]], told(maxItems=checks.TAGS_MAX)]
FileName = Annotated[str, _up_to(NAME_CHARS_MAX)]
BlobId = Annotated[str, told(pattern=r"^[0-9a-f]{64}$")]
Inputs = Annotated[dict[FileName, BlobId], told(maxProperties=INPUTS_MAX)]
Outputs = Annotated[list[FileName], told(maxItems=OUTPUTS_MAX)]
JobIds = Annotated[list[Annotated[str, told(format="uuid")]], told(maxItems=checks.PARENTS_MAX)]
Priority = Annotated[int, told(minimum=PRIORITY_MIN, maximum=PRIORITY_MAX)]
Attempts = Annotated[int, told(minimum=1, maximum=checks.ATTEMPTS_MAX)]
DelaySeconds = Annotated[float, told(minimum=0, maximum=checks.DELAY_DAYS_MAX * 86_400)]
WaitSeconds = Annotated[float, told(minimum=0, maximum=checks.WAIT_SECONDS_MAX)]
ClaimLimit = Annotated[int, told(minimum=1, maximum=checks.CLAIM_JOBS_MAX)]
Count = Annotated[int, told(minimum=0, maximum=NUMBER_MAX)]
Slug = Annotated[str, told(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
CredentialId = Annotated[str, told(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
