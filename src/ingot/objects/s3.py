"""The object store in an S3 bucket.

Objects that pass through the server are moved by obstore. Requests that obstore does not support are signed with
botocore and sent with httpx: conditional requests and parts with digests. botocore also signs the URLs for clients.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from ingot.blobs.errors import BlobDamaged, UploadIncomplete
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.blobs.ports import ObjectDescription, ObjectPart, ObjectWriter, SignedPart, TransferPlan
from ingot.kernel.clock import Clock, to_micros
from ingot.kernel.errors import StoreError, StoreMisconfigured
from ingot.objects.s3_parts import OBJECT_EXISTS, SHA256_HEADER, MultipartUploads, base64_digest, part_size
from ingot.objects.s3_requests import (
    CONNECT_TIMEOUT_SECONDS,
    RETRY_PAUSE_SECONDS,
    BucketClient,
    bucket_url,
    error_for_exception,
    status_and_code,
)
from ingot.objects.s3_writer import BucketWriter

if TYPE_CHECKING:
    from obstore.store import S3Credential

WRITE_URL_SECONDS: Final = 3600
SINGLE_PUT_BYTES_MAX: Final = 64 * 1024 * 1024  # Up to this size a client sends an object with one PUT.
PART_BYTES_MIN: Final = 16 * 1024 * 1024
PROXIED_PART_BYTES: Final = 8 * 1024 * 1024  # Part size of objects through the server, which keeps two in memory.
PROXIED_PART_BYTES_MAX: Final = 64 * 1024 * 1024
READ_REQUEST_BYTES: Final = 4 * PART_BYTES  # Bytes per request of a read, which sends one request ahead.
LIST_PAGE_OBJECTS: Final = 1000
STORAGE_KEY_BYTES: Final = 16
STORAGE_KEY_PATTERN: Final = re.compile(rf"[0-9a-f]{{{2 * STORAGE_KEY_BYTES}}}")
OWNER_OBJECT: Final = "database.id"  # The object with the ID of the database that owns the others.
TRANSFER_SECONDS: Final = 60
RETRIES_MAX: Final = 3
UNSUPPORTED_STATUSES: Final = frozenset({400, 501})  # Responses of stores that do not support a condition.
EXPIRED: Final = "Thu, 01 Jan 1970 00:00:00 GMT"  # SeaweedFS accepts only a complete date.
# Every header with which a PUT could describe its object. They are signed with these values, so that a client cannot
# choose how its bytes are decoded, cached or shown later.
OBJECT_HEADERS: Final = {
    "Cache-Control": "private, no-cache",
    "Content-Disposition": "attachment",
    "Content-Encoding": "identity",
    "Content-Language": "und",
    "Content-Type": "application/octet-stream",
    "Expires": EXPIRED,
}
# Headers of the response to a signed GET, whatever the object says. Objects of earlier versions may have others.
RESPONSE_HEADERS: Final = {
    "response-cache-control": "private, no-cache",
    "response-content-encoding": "identity",
    "response-content-language": "und",
    "response-expires": EXPIRED,
}


def bucket_store_id(bucket: str, prefix: str) -> str:
    """Return the ID of the object store in a bucket. It has no endpoint, because a bucket can have several."""
    return f"s3://{bucket}/{prefix}"


class BucketStore:
    """The objects under `<prefix>blobs/` in a bucket. A `SigningStore`."""

    store_id = ""
    is_exclusive = False
    conditional_writes: bool
    write_url_seconds: int = WRITE_URL_SECONDS

    def __init__(self, client: BucketClient, transfer_client: S3Store, prefix: str, clock: Clock) -> None:
        self._client = client
        self._transfer_client = transfer_client
        self._multipart_uploads = MultipartUploads(client)
        self._prefix = prefix
        self._clock = clock
        self.conditional_writes = True

    @classmethod
    async def open(
        cls,
        *,
        bucket: str,
        endpoint: str | None,
        public_endpoint: str | None = None,
        access_key: str,
        secret_key: str,
        region: str,
        clock: Clock,
        prefix: str = "",
        retry_pause_seconds: float = RETRY_PAUSE_SECONDS,
    ) -> BucketStore:
        """Open an existing bucket and find out which features its store supports.

        Clients use `public_endpoint`, if it differs from the `endpoint` of the server. Raises `StoreMisconfigured`, or
        `StoreError` if the store is unreachable or fails.
        """
        url = bucket_url(bucket, endpoint, region)
        client = BucketClient(
            url,
            public_url=None if public_endpoint is None else bucket_url(bucket, public_endpoint, region),
            access_key=access_key,
            secret_key=secret_key,
            region=region,
            retry_pause_seconds=retry_pause_seconds,
        )
        transfer_client = _open_transfer_client(bucket, url, access_key, secret_key, region, retry_pause_seconds)
        store = cls(client, transfer_client, prefix, clock)
        store.store_id = bucket_store_id(bucket, prefix)
        try:
            await store._check_bucket()
            store.conditional_writes = await store._probe_conditional_writes()
            await store._multipart_uploads.probe_digest_listing(store._probe_key())
        except BaseException:
            await client.close()
            raise
        return store

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _check_bucket(self) -> None:
        """Check that the bucket exists and that the credentials can list it."""
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{self._prefix}blobs/"}
        hint = "Check INGOT_S3_ENDPOINT, and that the object store is running."
        try:
            response = await self._client.send("GET", query=query)
        except StoreMisconfigured:
            raise
        except StoreError as error:
            raise StoreError(error.detail, hint=hint) from error
        if response.xml is None or response.xml.tag.rpartition("}")[2] != "ListBucketResult":
            raise StoreMisconfigured("The server at INGOT_S3_ENDPOINT is not an object store.", hint=hint)

    async def _probe_conditional_writes(self) -> bool:
        """Return whether the store refuses a second object at a storage key."""
        key = self._probe_key()
        condition = {"if-none-match": "*"}
        first = await self._client.send(
            "PUT", key, headers=condition, body=b"1", accepted_statuses=UNSUPPORTED_STATUSES
        )
        if first.status in UNSUPPORTED_STATUSES:
            return False
        second = await self._client.send("PUT", key, headers=condition, body=b"2", accepted_statuses={409, 412})
        await self._client.send("DELETE", key, accepted_statuses={404})
        return second.status in (409, 412)

    def _probe_key(self) -> str:
        return f"{self._prefix}probe/{secrets.token_hex(STORAGE_KEY_BYTES)}"

    def _object_key(self, storage_key: str) -> str:
        return f"{self._prefix}blobs/{storage_key[:2]}/{storage_key}"

    # -- objects --------------------------------------------------------------------------------------------

    def new_storage_key(self) -> str:
        """Create a storage key that has never been used."""
        return secrets.token_hex(STORAGE_KEY_BYTES)

    def check_free_space(self, size: int) -> None:
        """Do nothing: a bucket without space responds to writes with an error."""

    async def write(self, storage_key: str, *, size: int | None) -> ObjectWriter:
        """Begin an object that passes through the server. If its size is unknown, it can have up to 80 GB."""
        part_bytes = part_size(size or 0, PROXIED_PART_BYTES)
        if part_bytes > PROXIED_PART_BYTES_MAX:
            raise StoreError(
                f"An object of {size} bytes is too large to pass through the server.",
                hint="Begin an upload, and send its parts directly to the object store.",
            )
        return BucketWriter(
            self._multipart_uploads,
            self._object_key(storage_key),
            part_bytes=part_bytes,
            put=partial(self.put, storage_key),
            join=partial(self.join_parts, storage_key),
        )

    def write_memory_bytes(self, size: int | None) -> int:
        """Return the size of two parts: the writer collects one while it sends the other."""
        two_parts = 2 * part_size(size or 0, PROXIED_PART_BYTES)
        return two_parts if size is None else min(size, two_parts)

    def read_memory_bytes(self, size: int) -> int:
        """Return the size of two requests: the reader fetches the next bytes while it returns the last ones."""
        return min(size, 2 * READ_REQUEST_BYTES)

    async def resume(self, storage_key: str, *, offset: int) -> ObjectWriter:
        """Raise `StoreError`: the bucket keeps nothing of an unfinished object that passes through the server."""
        raise StoreError(
            f"The first {offset} bytes of {storage_key} were not kept.",
            hint="Begin a new upload. Uploads whose bytes go directly to the object store can be resumed.",
        )

    async def put(self, storage_key: str, body: bytes) -> None:
        """Store an object that is completely in memory. Raises `StoreError` if there is another object."""
        try:
            await obstore.put_async(
                self._transfer_client,
                self._object_key(storage_key),
                body,
                mode="create" if self.conditional_writes else "overwrite",
                use_multipart=False,
            )
        except AlreadyExistsError as error:
            # An earlier try may have succeeded although its response was lost.
            if await self.object_size(storage_key) != len(body) or (
                body and await self._fetch(storage_key, 0, len(body)) != body
            ):
                raise StoreError(OBJECT_EXISTS) from error
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """Yield the bytes from `start` up to `end`, and fetch the next ones while the caller uses them."""
        prefetch: asyncio.Task[memoryview] | None = None
        try:
            for offset in range(start, end, READ_REQUEST_BYTES):
                stop = min(offset + READ_REQUEST_BYTES, end)
                data = await (prefetch or self._fetch(storage_key, offset, stop))
                prefetch = None
                if stop < end:
                    prefetch = asyncio.create_task(self._fetch(storage_key, stop, min(stop + READ_REQUEST_BYTES, end)))
                for part_start in range(0, len(data), PART_BYTES):
                    yield data[part_start : part_start + PART_BYTES]
        finally:
            if prefetch is not None:
                prefetch.cancel()
                with suppress(asyncio.CancelledError, StoreError, BlobDamaged):
                    await prefetch

    async def _fetch(self, storage_key: str, start: int, end: int) -> memoryview:
        try:
            data = await obstore.get_range_async(
                self._transfer_client, self._object_key(storage_key), start=start, end=end
            )
        except (BaseError, OSError) as error:
            status, code = status_and_code(error)
            if code == "NoSuchKey":
                raise BlobDamaged("The object of this blob is missing.") from error
            if status == 416:
                raise BlobDamaged("The object of this blob is too short.") from error
            raise error_for_exception(error) from error
        if len(data) != end - start:
            raise BlobDamaged("The object of this blob is too short.")
        return memoryview(data)

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object and the parts of its multipart upload. Succeeds if there is none."""
        key = self._object_key(trash.storage_key)
        await self._multipart_uploads.abort(key, trash.multipart)
        await self._client.send("DELETE", key, accepted_statuses={404})

    async def register_owner(self, database: str) -> str:
        """Record `database` as the owner of the objects unless they have another one, and return the owner.

        If the store ignores conditions, the last of two simultaneous calls wins.
        """
        owner = await self._read_owner()
        if not owner:
            condition = {"if-none-match": "*"} if self.conditional_writes else {}
            key = f"{self._prefix}{OWNER_OBJECT}"
            await self._client.send(
                "PUT", key, headers=condition, body=f"{database}\n".encode(), accepted_statuses={409, 412}
            )
            owner = await self._read_owner()
        return owner

    async def _read_owner(self) -> str:
        try:
            response = await obstore.get_async(self._transfer_client, f"{self._prefix}{OWNER_OBJECT}")
            return bytes(await response.bytes_async()).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Yield the storage key and the age in microseconds of each object and each multipart upload."""
        folder = f"{self._prefix}blobs/"
        now = self._clock.micros()
        async for key, begun_at in self._multipart_uploads.list_keys(folder):
            if (storage_key := self._storage_key_of(key)) is not None:
                yield storage_key, max(0, now - to_micros(begun_at))
        try:
            async for page in obstore.list(self._transfer_client, folder, chunk_size=LIST_PAGE_OBJECTS):
                for entry in page:
                    if (storage_key := self._storage_key_of(entry["path"])) is not None:
                        yield storage_key, max(0, now - to_micros(entry["last_modified"]))
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    def _storage_key_of(self, key: str) -> str | None:
        """Return the storage key of a key in the bucket, or `None` if it is not an object of this store."""
        storage_key = key.rpartition("/")[2]
        return (
            storage_key if STORAGE_KEY_PATTERN.fullmatch(storage_key) and key == self._object_key(storage_key) else None
        )

    # -- transfers between clients and the bucket -----------------------------------------------------------

    async def plan(self, storage_key: str, *, size: int, sha256: str | None) -> TransferPlan:
        """Plan one PUT whose headers are signed, with digest (if known) and condition, or parts above 64 MiB."""
        multipart = (
            await self._multipart_uploads.begin(self._object_key(storage_key)) if size > SINGLE_PUT_BYTES_MAX else None
        )
        return await self.renew_plan(storage_key, multipart, size=size, sha256=sha256)

    async def renew_plan(
        self, storage_key: str, multipart: str | None, *, size: int, sha256: str | None
    ) -> TransferPlan:
        """Sign a new plan, because signed URLs expire."""
        if multipart is not None:
            return TransferPlan(multipart=multipart, part_bytes=part_size(size, PART_BYTES_MIN))
        headers = {"Content-Length": str(size)} | OBJECT_HEADERS
        if sha256 is not None:
            headers[SHA256_HEADER] = base64_digest(sha256)
        if self.conditional_writes:
            headers["If-None-Match"] = "*"
        url = self._client.presigned_url(
            "PUT", self._object_key(storage_key), seconds=self.write_url_seconds, headers=headers
        )
        return TransferPlan(url=url, headers=headers)

    async def sign_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Sign URLs for parts, with the length and the digest of each part."""
        return [
            self._multipart_uploads.sign(self._object_key(storage_key), multipart, part, seconds=self.write_url_seconds)
            for part in parts
        ]

    async def list_parts(self, storage_key: str, multipart: str) -> list[ObjectPart]:
        """List the stored parts. SeaweedFS does not return their digests."""
        return await self._multipart_uploads.list(self._object_key(storage_key), multipart) or []

    async def join_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> None:
        """Create the object from its parts, after checking that all of them are stored."""
        joined = await self._multipart_uploads.join(
            self._object_key(storage_key), multipart, parts, conditional=self.conditional_writes
        )
        if joined:
            return
        size = await self.object_size(storage_key)  # The multipart upload was joined before, or canceled.
        if size is None or (parts and size != sum(part.size for part in parts)):
            raise UploadIncomplete("The parts of this upload no longer exist.", hint="Begin a new upload.")

    async def seal(self, storage_key: str) -> str:
        """Copy an object inside the bucket to a storage key that no client can write to."""
        sealed_key = self.new_storage_key()
        try:
            await obstore.copy_async(self._transfer_client, self._object_key(storage_key), self._object_key(sealed_key))
        except (BaseError, OSError) as error:
            if status_and_code(error)[1] == "NoSuchKey":
                raise UploadIncomplete from error
            raise error_for_exception(error) from error
        return sealed_key

    async def object_size(self, storage_key: str) -> int | None:
        """Return the size of an object, or `None` if there is none."""
        description = await self.describe(storage_key)
        return None if description is None else description.size

    async def etag(self, storage_key: str) -> str | None:
        """Return the ETag of an object. Raises `StoreError` if there is none."""
        description = await self.describe(storage_key)
        if description is None:
            raise StoreError("The object no longer exists in the object store.")
        return description.etag

    async def describe(self, storage_key: str) -> ObjectDescription | None:
        """Return the size and the ETag of an object, or `None` if there is none."""
        try:
            head = await obstore.head_async(self._transfer_client, self._object_key(storage_key))
            return ObjectDescription(head["size"], head["e_tag"])
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def sign_read_url(self, storage_key: str, *, seconds: int, content_type: str, disposition: str) -> str:
        """Sign a URL to read an object, whole or in ranges. It determines all headers that describe the response."""
        query = {
            **RESPONSE_HEADERS,
            "response-content-type": content_type,
            "response-content-disposition": disposition,
        }
        return self._client.presigned_url("GET", self._object_key(storage_key), seconds=seconds, query=query)


def _open_transfer_client(
    bucket: str, url: str, access_key: str, secret_key: str, region: str, pause_seconds: float
) -> S3Store:
    """Create the client of obstore. All options are set, because it would take others from the environment."""
    virtual_hosted = not url.endswith(f"/{bucket}")
    endpoint = url if virtual_hosted else url.removesuffix(f"/{bucket}")
    config: dict[str, Any] = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "region": region,
        "virtual_hosted_style_request": virtual_hosted,
        "skip_signature": False,
        "s3_express": False,
        "checksum_algorithm": "SHA256",
        "unsigned_payload": False,
        "conditional_put": "etag",
        "request_payer": False,
    }
    # Without this, obstore would send a session token from the environment together with this key.
    credential: S3Credential = {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": None,
        "expires_at": None,
    }
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type]
        credential_provider=lambda: credential,
        client_options={
            "allow_http": url.startswith("http:"),
            "timeout": timedelta(seconds=TRANSFER_SECONDS),
            "connect_timeout": timedelta(seconds=CONNECT_TIMEOUT_SECONDS),
        },
        retry_config={
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=TRANSFER_SECONDS),
            "backoff": {"init_backoff": timedelta(seconds=pause_seconds), "base": 2},
        },
    )
