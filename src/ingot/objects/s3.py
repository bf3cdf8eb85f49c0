"""Objects in a bucket of a store that speaks S3.

Bytes that we move go by obstore. What it does not do, we sign with botocore and send ourselves: conditions, parts with
a digest each, and the addresses at which clients write and read.
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
from ingot.blobs.ports import ObjectPart, ObjectWriter, SignedPart, TransferPlan
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
SINGLE_PUT_BYTES_MAX: Final = 64 * 1024 * 1024  # Up to this size an object is sent with one PUT.
PART_BYTES_MIN: Final = 16 * 1024 * 1024
PROXIED_PART_BYTES: Final = 8 * 1024 * 1024  # Of an object that comes through us, two such parts are in memory.
PROXIED_PART_BYTES_MAX: Final = 64 * 1024 * 1024
READ_REQUEST_BYTES: Final = 4 * PART_BYTES  # Read with one request, while the next is under way.
LIST_PAGE_OBJECTS: Final = 1000
STORAGE_KEY_BYTES: Final = 16
STORAGE_KEY_PATTERN: Final = re.compile(rf"[0-9a-f]{{{2 * STORAGE_KEY_BYTES}}}")
OWNER_OBJECT: Final = "database.id"  # Whose objects these are: the first database that came.
TRANSFER_SECONDS: Final = 60
RETRIES_MAX: Final = 3
UNSUPPORTED_STATUSES: Final = frozenset({400, 501})  # What stores answer that do not know a condition.


class BucketStore:
    """Objects under `<prefix>blobs/` in a bucket. A `SigningStore`."""

    store_id = ""
    conditional_writes: bool
    write_url_seconds: int = WRITE_URL_SECONDS

    def __init__(self, requests: BucketClient, transfers: S3Store, prefix: str, clock: Clock) -> None:
        self._client = requests
        self._transfer_client = transfers
        self._multipart_uploads = MultipartUploads(requests)
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
        """Open a bucket that is there, and find out what it obeys and tells.

        Clients reach it at `public_endpoint`, or where we do. Raises `StoreMisconfigured`, or `StoreError` when the
        store does not answer, or cannot now.
        """
        url = bucket_url(bucket, endpoint, region)
        requests = BucketClient(
            url,
            public_url=None if public_endpoint is None else bucket_url(bucket, public_endpoint, region),
            access_key=access_key,
            secret_key=secret_key,
            region=region,
            retry_pause_seconds=retry_pause_seconds,
        )
        transfers = _open_transfer_client(bucket, url, access_key, secret_key, region, retry_pause_seconds)
        store = cls(requests, transfers, prefix, clock)
        store.store_id = f"s3://{bucket}/{prefix}"  # Not the endpoint: the same bucket may be reached at several.
        try:
            await store._check_bucket()
            store.conditional_writes = await store._probe_conditional_writes()
            await store._multipart_uploads.probe_digest_listing(store._probe_key())
        except BaseException:
            await requests.close()
            raise
        return store

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _check_bucket(self) -> None:
        """See that this is a bucket that is there, and that we may come."""
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{self._prefix}blobs/"}
        hint = "Check INGOT_S3_ENDPOINT, and that the store runs."
        try:
            answer = await self._client.send("GET", query=query)
        except StoreMisconfigured:
            raise
        except StoreError as error:
            raise StoreError(error.detail, hint=hint) from error
        if answer.xml is None or answer.xml.tag.rpartition("}")[2] != "ListBucketResult":
            raise StoreMisconfigured("What answers at INGOT_S3_ENDPOINT is no object store.", hint=hint)

    async def _probe_conditional_writes(self) -> bool:
        """Whether a second object is refused at a place."""
        key = self._probe_key()
        once = {"if-none-match": "*"}
        first = await self._client.send("PUT", key, headers=once, body=b"1", accepted_statuses=UNSUPPORTED_STATUSES)
        if first.status in UNSUPPORTED_STATUSES:
            return False
        second = await self._client.send("PUT", key, headers=once, body=b"2", accepted_statuses={409, 412})
        await self._client.send("DELETE", key, accepted_statuses={404})
        return second.status in (409, 412)

    def _probe_key(self) -> str:
        return f"{self._prefix}probe/{secrets.token_hex(STORAGE_KEY_BYTES)}"

    def _object_key(self, storage_key: str) -> str:
        return f"{self._prefix}blobs/{storage_key[:2]}/{storage_key}"

    # -- objects --------------------------------------------------------------------------------------------

    def new_storage_key(self) -> str:
        """A place that was never used."""
        return secrets.token_hex(STORAGE_KEY_BYTES)

    def check_free_space(self, size: int) -> None:
        """A bucket tells by its answers whether it has room."""

    async def write(self, storage_key: str, *, size: int | None) -> ObjectWriter:
        """Begin an object that comes through us; of unknown size, up to 80 GB of it."""
        each = part_size(size or 0, PROXIED_PART_BYTES)
        if each > PROXIED_PART_BYTES_MAX:
            raise StoreError(
                f"{size} bytes are more than can go to the object store through the server.",
                hint="Begin an upload: its parts go to the store by themselves.",
            )
        return BucketWriter(
            self._multipart_uploads,
            self._object_key(storage_key),
            part_bytes=each,
            put=partial(self.put, storage_key),
            join=partial(self.join_parts, storage_key),
        )

    async def resume(self, storage_key: str, *, offset: int) -> ObjectWriter:
        """Raises `StoreError`: of what came through us and was not finished, the store keeps nothing."""
        raise StoreError(
            f"The first {offset} bytes of {storage_key} are not there any more.",
            hint="Begin anew; uploads with addresses of the object store go on where they stopped.",
        )

    async def put(self, storage_key: str, body: bytes) -> None:
        """Store an object that is in memory whole. Raises `StoreError` when another is there."""
        try:
            await obstore.put_async(
                self._transfer_client,
                self._object_key(storage_key),
                body,
                mode="create" if self.conditional_writes else "overwrite",
                use_multipart=False,
            )
        except AlreadyExistsError as error:
            # A try before may have done it without our hearing of it.
            if await self.object_size(storage_key) != len(body) or (
                body and await self._fetch(storage_key, 0, len(body)) != body
            ):
                raise StoreError(OBJECT_EXISTS) from error
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def read(self, storage_key: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` up to `end`; the next ones are fetched while these are used."""
        ahead: asyncio.Task[memoryview] | None = None
        try:
            for at in range(start, end, READ_REQUEST_BYTES):
                behind = min(at + READ_REQUEST_BYTES, end)
                data = await (ahead or self._fetch(storage_key, at, behind))
                ahead = None
                if behind < end:
                    ahead = asyncio.create_task(self._fetch(storage_key, behind, min(behind + READ_REQUEST_BYTES, end)))
                for first in range(0, len(data), PART_BYTES):
                    yield data[first : first + PART_BYTES]
        finally:
            if ahead is not None:
                ahead.cancel()
                with suppress(asyncio.CancelledError, StoreError, BlobDamaged):
                    await ahead

    async def _fetch(self, storage_key: str, start: int, end: int) -> memoryview:
        try:
            found = await obstore.get_range_async(
                self._transfer_client, self._object_key(storage_key), start=start, end=end
            )
        except (BaseError, OSError) as error:
            status, code = status_and_code(error)
            if code == "NoSuchKey":
                raise BlobDamaged("The object of this blob is not there any more.") from error
            if status == 416:
                raise BlobDamaged("The object of this blob is shorter than it was.") from error
            raise error_for_exception(error) from error
        if len(found) != end - start:
            raise BlobDamaged("The object of this blob is shorter than it was.")
        return memoryview(found)

    async def delete(self, trash: TrashedObject) -> None:
        """Delete an object, and the parts of one that was not finished."""
        key = self._object_key(trash.storage_key)
        await self._multipart_uploads.abort(key, trash.multipart)
        await self._client.send("DELETE", key, accepted_statuses={404})

    async def register_owner(self, database: str) -> str:
        """Remember that the objects are this database's, unless they are another's already; answers whose they are.

        Where the store does not obey conditions, the last of two that come at once has it.
        """
        owner = await self._read_owner()
        if not owner:
            once = {"if-none-match": "*"} if self.conditional_writes else {}
            key = f"{self._prefix}{OWNER_OBJECT}"
            await self._client.send(
                "PUT", key, headers=once, body=f"{database}\n".encode(), accepted_statuses={409, 412}
            )
            owner = await self._read_owner()
        return owner

    async def _read_owner(self) -> str:
        try:
            found = await obstore.get_async(self._transfer_client, f"{self._prefix}{OWNER_OBJECT}")
            return bytes(await found.bytes_async()).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def list_objects(self) -> AsyncGenerator[tuple[str, int], None]:
        """Every place that has an object, or parts of one, and how long ago it came, in microseconds."""
        folder = f"{self._prefix}blobs/"
        now = self._clock.micros()
        async for key, since in self._multipart_uploads.list_keys(folder):
            if (storage_key := self._storage_key_of(key)) is not None:
                yield storage_key, max(0, now - to_micros(since))
        try:
            async for page in obstore.list(self._transfer_client, folder, chunk_size=LIST_PAGE_OBJECTS):
                for found in page:
                    if (storage_key := self._storage_key_of(found["path"])) is not None:
                        yield storage_key, max(0, now - to_micros(found["last_modified"]))
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    def _storage_key_of(self, key: str) -> str | None:
        """The place that has this key, or `None` when it is not one of ours."""
        storage_key = key.rpartition("/")[2]
        return (
            storage_key if STORAGE_KEY_PATTERN.fullmatch(storage_key) and key == self._object_key(storage_key) else None
        )

    # -- what clients do by themselves ----------------------------------------------------------------------

    async def plan(self, storage_key: str, *, size: int, sha256: str | None) -> TransferPlan:
        """One PUT with its length, its digest if known, and the condition signed; above 64 MiB, parts."""
        multipart = (
            await self._multipart_uploads.begin(self._object_key(storage_key)) if size > SINGLE_PUT_BYTES_MAX else None
        )
        return await self.renew_plan(storage_key, multipart, size=size, sha256=sha256)

    async def renew_plan(
        self, storage_key: str, multipart: str | None, *, size: int, sha256: str | None
    ) -> TransferPlan:
        """The same: what was signed is good for a while only."""
        if multipart is not None:
            return TransferPlan(multipart=multipart, part_bytes=part_size(size, PART_BYTES_MIN))
        headers = {"Content-Length": str(size)}
        if sha256 is not None:
            headers[SHA256_HEADER] = base64_digest(sha256)
        if self.conditional_writes:
            headers["If-None-Match"] = "*"
        address = self._client.presigned_url(
            "PUT", self._object_key(storage_key), seconds=self.write_url_seconds, headers=headers
        )
        return TransferPlan(url=address, headers=headers)

    async def sign_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> list[SignedPart]:
        """Addresses that sign the length and the digest of each part."""
        return [
            self._multipart_uploads.sign(self._object_key(storage_key), multipart, part, seconds=self.write_url_seconds)
            for part in parts
        ]

    async def list_parts(self, storage_key: str, multipart: str) -> list[ObjectPart]:
        """The parts that are there; SeaweedFS does not tell their digests."""
        return await self._multipart_uploads.list(self._object_key(storage_key), multipart) or []

    async def join_parts(self, storage_key: str, multipart: str, parts: Sequence[ObjectPart]) -> None:
        """Make the object of its parts, after a look that all are there."""
        joined = await self._multipart_uploads.join(
            self._object_key(storage_key), multipart, parts, conditional=self.conditional_writes
        )
        if joined:
            return
        size = await self.object_size(storage_key)  # Joined before, or given up.
        if size is None or (parts and size != sum(part.size for part in parts)):
            raise UploadIncomplete("The parts are not there any more.", hint="Begin a new upload.")

    async def seal(self, storage_key: str) -> str:
        """Copy an object inside the store to a place that no client can write to."""
        sealed = self.new_storage_key()
        try:
            await obstore.copy_async(self._transfer_client, self._object_key(storage_key), self._object_key(sealed))
        except (BaseError, OSError) as error:
            if status_and_code(error)[1] == "NoSuchKey":
                raise UploadIncomplete from error
            raise error_for_exception(error) from error
        return sealed

    async def object_size(self, storage_key: str) -> int | None:
        """The size of an object, or `None`."""
        try:
            return (await obstore.head_async(self._transfer_client, self._object_key(storage_key)))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise error_for_exception(error) from error

    async def sign_read_url(self, storage_key: str, *, seconds: int, content_type: str, disposition: str) -> str:
        """An address to read at, also in ranges, which answers with this type and this disposition."""
        query = {"response-content-type": content_type, "response-content-disposition": disposition}
        return self._client.presigned_url("GET", self._object_key(storage_key), seconds=seconds, query=query)


def _open_transfer_client(
    bucket: str, url: str, access_key: str, secret_key: str, region: str, pause_seconds: float
) -> S3Store:
    """obstore's own client. What it would take from the environment is told here."""
    hosted = not url.endswith(f"/{bucket}")
    endpoint = url if hosted else url.removesuffix(f"/{bucket}")
    config: dict[str, Any] = {
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "region": region,
        "virtual_hosted_style_request": hosted,
        "skip_signature": False,
        "s3_express": False,
        "checksum_algorithm": "SHA256",
        "unsigned_payload": False,
        "conditional_put": "etag",
        "request_payer": False,
    }
    # Without this, a session token of the environment would go with our key.
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
