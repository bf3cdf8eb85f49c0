"""Settings of servers that store blobs in a bucket of the real S3 server, and URLs of it that expire soon."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from httpx import URL

from ingot.kernel.ids import new_id
from ingot.settings import Settings
from tests import s3

SHORT_SECONDS = 1
SAFE_SECONDS = 0.5  # The S3 server counts whole seconds.


def bucket_settings(**more: Any) -> Settings:
    """Settings with a new folder in a bucket."""
    return Settings(
        s3_bucket=s3.bucket(),
        s3_endpoint=s3.server_url(),
        s3_access_key=s3.ACCESS_KEY,
        s3_secret_key=s3.SECRET_KEY,
        s3_region=s3.REGION,
        s3_prefix=f"{new_id()}/",
        **more,
    )


def expires_soon(url: str) -> bool:
    """Whether this URL of the bucket expires after `SHORT_SECONDS`."""
    return bool(URL(url).params.get("X-Amz-Expires") == str(SHORT_SECONDS))


def seconds_until_expired(url: str) -> float:
    """How long to wait until the bucket rejects this URL."""
    signed_at = datetime.strptime(URL(url).params["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return max(0.0, signed_at.timestamp() + SHORT_SECONDS + SAFE_SECONDS - time.time())
