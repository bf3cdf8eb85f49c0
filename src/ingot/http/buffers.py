"""Limits for the bytes of requests and responses that the server keeps in memory.

The bytes are counted for each caller, each tenant and in total, so that no tenant can use up the memory of a server.
Bodies and responses of up to `UNCOUNTED_BYTES_MAX` bytes are not counted: the number of connections limits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from ingot.http.problems import BodyTooLarge
from ingot.kernel.errors import IngotError, TooMany

UNCOUNTED_BYTES_MAX: Final = 64 * 1024
TRANSFER_BYTES: Final = 1024 * 1024  # Bytes of a streamed body or response in memory, unless the store says more.
# Part of a streamed body or response that is in memory, unless the store says more.
CALLER_SHARE_MAX: Final = 0.25  # Share of all buffered bytes that one caller can use.
TENANT_SHARE_MAX: Final = 0.5  # Share that all callers of a tenant can use.
BUFFERED_BYTES_MAX: Final = 512 * 1024 * 1024
RETRY_SECONDS: Final = 2.0
SETTING_HINT: Final = "Send or request less at once, or ask the operator to increase INGOT_BUFFERED_BYTES_MAX."


class TooManyBytes(TooMany):
    """Too many bytes of this caller or tenant are in transfer at once."""

    code = "too_many_bytes"
    hint = "Nothing was changed. Send fewer large requests at once, and read responses without delay."
    retry_after = RETRY_SECONDS


class BuffersFull(IngotError):
    """The server has no memory left for large requests and responses."""

    code = "buffers_full"
    status = 503
    hint = "Nothing was changed. Try again in a moment."
    retry_after = RETRY_SECONDS


class Buffers:
    """The number of buffered bytes of a server, by caller and by tenant.

    `upload_bytes` and `download_bytes` return how many bytes of a streamed body or response of a length are in memory.
    """

    def __init__(
        self,
        bytes_max: int = BUFFERED_BYTES_MAX,
        *,
        upload_bytes: Callable[[int | None], int] = lambda length: min(TRANSFER_BYTES, length or TRANSFER_BYTES),
        download_bytes: Callable[[int], int] = lambda length: min(TRANSFER_BYTES, length),
    ) -> None:
        self.bytes_max = bytes_max
        self.upload_bytes = upload_bytes
        self.download_bytes = download_bytes
        self.caller_bytes_max = int(bytes_max * CALLER_SHARE_MAX)
        self.tenant_bytes_max = int(bytes_max * TENANT_SHARE_MAX)
        self.used_bytes = 0
        self.refusals: Counter[str] = Counter(size=0, caller=0, tenant=0, server=0)  # By the limit that was reached.
        self._used_by_caller: Counter[str] = Counter()
        self._used_by_tenant: Counter[str] = Counter()

    def check(self, caller: str, tenant: str, size: int) -> None:
        """Raise `TooManyBytes` or `BuffersFull` if this many more bytes exceed a limit."""
        if self._used_by_caller[caller] + size > self.caller_bytes_max:
            self.refusals["caller"] += 1
            raise TooManyBytes(f"this caller can have {self.caller_bytes_max} bytes in transfer at once")
        if self._used_by_tenant[tenant] + size > self.tenant_bytes_max:
            self.refusals["tenant"] += 1
            raise TooManyBytes(f"this tenant can have {self.tenant_bytes_max} bytes in transfer at once")
        if self.used_bytes + size > self.bytes_max:
            self.refusals["server"] += 1
            raise BuffersFull

    def add(self, caller: str, tenant: str, size: int) -> None:
        """Count bytes, or with a negative size stop counting them."""
        self.used_bytes += size
        for used, name in ((self._used_by_caller, caller), (self._used_by_tenant, tenant)):
            used[name] += size
            if not used[name]:
                del used[name]


class Reservation:
    """The buffered bytes of one request and its response."""

    def __init__(self, buffers: Buffers, caller: str, tenant: str) -> None:
        self._buffers = buffers
        self._caller = caller
        self._tenant = tenant
        self._size = 0

    def add(self, size: int) -> None:
        """Count more bytes. Raises `TooManyBytes` or `BuffersFull`, or `BodyTooLarge` if they can never fit."""
        if self._size + size > self._buffers.caller_bytes_max:
            self._buffers.refusals["size"] += 1
            raise BodyTooLarge(
                f"a request and its response can have at most {self._buffers.caller_bytes_max} bytes", hint=SETTING_HINT
            )
        self._buffers.check(self._caller, self._tenant, size)
        self.add_anyway(size)

    def add_transfer(self, size: int) -> None:
        """Count the part of a transfer that is in memory. One transfer is possible however small the limits are."""
        self.add(min(size, self._buffers.caller_bytes_max))

    def add_anyway(self, size: int) -> None:
        """Count more bytes, even above the limits, because they cannot be refused anymore."""
        self._buffers.add(self._caller, self._tenant, size)
        self._size += size

    def release(self, size: int | None = None) -> None:
        """Stop counting this many bytes, by default all."""
        size = self._size if size is None else size
        self._buffers.add(self._caller, self._tenant, -size)
        self._size -= size
