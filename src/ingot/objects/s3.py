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
from ingot.blobs.model import PART_BYTES, Trash
from ingot.blobs.ports import ObjectWriter, Part, Plan, SignedPart
from ingot.kernel.clock import Clock, to_micros
from ingot.kernel.errors import StoreError, StoreMisconfigured
from ingot.objects.s3_parts import SHA256, TAKEN, Multiparts, encoded, part_bytes
from ingot.objects.s3_requests import CONNECT_SECONDS, PAUSE_SECONDS, Requests, bucket_url, code_in, failure_from
from ingot.objects.s3_writer import BucketWriter

if TYPE_CHECKING:
    from obstore.store import S3Credential

WRITE_SECONDS: Final = 3600
SINGLE_BYTES_MAX: Final = 64 * 1024 * 1024  # Up to this size an object is sent with one PUT.
PART_BYTES_MIN: Final = 16 * 1024 * 1024
OWN_PART_BYTES: Final = 8 * 1024 * 1024  # Of an object that comes through us, two such parts are in memory.
OWN_PART_BYTES_MAX: Final = 64 * 1024 * 1024
READ_BYTES: Final = 4 * PART_BYTES  # Read with one request, while the next is under way.
LIST_OBJECTS: Final = 1000
PLACE_BYTES: Final = 16
PLACE: Final = re.compile(rf"[0-9a-f]{{{2 * PLACE_BYTES}}}")
OWNER_NAME: Final = "database.id"  # Whose objects these are: the first database that came.
TRANSFER_SECONDS: Final = 60
RETRIES_MAX: Final = 3
NOT_OBEYED: Final = frozenset({400, 501})  # What stores answer that do not know a condition.


class BucketStore:
    """Objects under `<prefix>blobs/` in a bucket. A `SigningStore`."""

    store_id = ""
    conditional: bool
    write_seconds: int = WRITE_SECONDS

    def __init__(self, requests: Requests, transfers: S3Store, prefix: str, clock: Clock) -> None:
        self._requests = requests
        self._transfers = transfers
        self._parts = Multiparts(requests)
        self._prefix = prefix
        self._clock = clock
        self.conditional = True

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
        pause_seconds: float = PAUSE_SECONDS,
    ) -> BucketStore:
        """Open a bucket that is there, and find out what it obeys and tells.

        Clients reach it at `public_endpoint`, or where we do. Raises `StoreMisconfigured`, or `StoreError` when the
        store does not answer, or cannot now.
        """
        url = bucket_url(bucket, endpoint, region)
        requests = Requests(
            url,
            public_url=None if public_endpoint is None else bucket_url(bucket, public_endpoint, region),
            access_key=access_key,
            secret_key=secret_key,
            region=region,
            pause_seconds=pause_seconds,
        )
        transfers = _transfers(bucket, url, access_key, secret_key, region, pause_seconds)
        store = cls(requests, transfers, prefix, clock)
        store.store_id = f"s3://{bucket}/{prefix}"  # Not the endpoint: the same bucket may be reached at several.
        try:
            await store._look()
            store.conditional = await store._probe()
            await store._parts.find_out(store._probe_key())
        except BaseException:
            await requests.close()
            raise
        return store

    async def close(self) -> None:
        """Close the connections."""
        await self._requests.close()

    async def _look(self) -> None:
        """See that this is a bucket that is there, and that we may come."""
        query = {"list-type": "2", "max-keys": "1", "prefix": f"{self._prefix}blobs/"}
        hint = "Check INGOT_S3_ENDPOINT, and that the store runs."
        try:
            answer = await self._requests.send("GET", query=query)
        except StoreMisconfigured:
            raise
        except StoreError as error:
            raise StoreError(error.detail, hint=hint) from error
        if answer.tree is None or answer.tree.tag.rpartition("}")[2] != "ListBucketResult":
            raise StoreMisconfigured("What answers at INGOT_S3_ENDPOINT is no object store.", hint=hint)

    async def _probe(self) -> bool:
        """Whether a second object is refused at a place."""
        key = self._probe_key()
        once = {"if-none-match": "*"}
        first = await self._requests.send("PUT", key, headers=once, body=b"1", fine=NOT_OBEYED)
        if first.status in NOT_OBEYED:
            return False
        second = await self._requests.send("PUT", key, headers=once, body=b"2", fine={409, 412})
        await self._requests.send("DELETE", key, fine={404})
        return second.status in (409, 412)

    def _probe_key(self) -> str:
        return f"{self._prefix}probe/{secrets.token_hex(PLACE_BYTES)}"

    def _key(self, place: str) -> str:
        return f"{self._prefix}blobs/{place[:2]}/{place}"

    # -- objects --------------------------------------------------------------------------------------------

    def new_place(self) -> str:
        """A place that was never used."""
        return secrets.token_hex(PLACE_BYTES)

    def expect_room(self, size: int) -> None:
        """A bucket tells by its answers whether it has room."""

    async def write(self, place: str, *, size: int | None) -> ObjectWriter:
        """Begin an object that comes through us; of unknown size, up to 80 GB of it."""
        each = part_bytes(size or 0, OWN_PART_BYTES)
        if each > OWN_PART_BYTES_MAX:
            raise StoreError(
                f"{size} bytes are more than can go to the object store through the server.",
                hint="Begin an upload: its parts go to the store by themselves.",
            )
        return BucketWriter(
            self._parts,
            self._key(place),
            part_bytes=each,
            put=partial(self.put, place),
            join=partial(self.join_parts, place),
        )

    async def resume(self, place: str, *, offset: int) -> ObjectWriter:
        """Raises `StoreError`: of what came through us and was not finished, the store keeps nothing."""
        raise StoreError(
            f"The first {offset} bytes of {place} are not there any more.",
            hint="Begin anew; uploads with addresses of the object store go on where they stopped.",
        )

    async def put(self, place: str, body: bytes) -> None:
        """Store an object that is in memory whole. Raises `StoreError` when another is there."""
        try:
            await obstore.put_async(
                self._transfers,
                self._key(place),
                body,
                mode="create" if self.conditional else "overwrite",
                use_multipart=False,
            )
        except AlreadyExistsError as error:
            # A try before may have done it without our hearing of it.
            if await self.size_of(place) != len(body) or (body and await self._fetch(place, 0, len(body)) != body):
                raise StoreError(TAKEN) from error
        except (BaseError, OSError) as error:
            raise failure_from(error) from error

    async def read(self, place: str, start: int, end: int) -> AsyncGenerator[memoryview, None]:
        """The bytes from `start` up to `end`; the next ones are fetched while these are used."""
        ahead: asyncio.Task[memoryview] | None = None
        try:
            for at in range(start, end, READ_BYTES):
                behind = min(at + READ_BYTES, end)
                data = await (ahead or self._fetch(place, at, behind))
                ahead = None
                if behind < end:
                    ahead = asyncio.create_task(self._fetch(place, behind, min(behind + READ_BYTES, end)))
                for first in range(0, len(data), PART_BYTES):
                    yield data[first : first + PART_BYTES]
        finally:
            if ahead is not None:
                ahead.cancel()
                with suppress(asyncio.CancelledError, StoreError, BlobDamaged):
                    await ahead

    async def _fetch(self, place: str, start: int, end: int) -> memoryview:
        try:
            found = await obstore.get_range_async(self._transfers, self._key(place), start=start, end=end)
        except (BaseError, OSError) as error:
            status, code = code_in(error)
            if code == "NoSuchKey":
                raise BlobDamaged("The object of this blob is not there any more.") from error
            if status == 416:
                raise BlobDamaged("The object of this blob is shorter than it was.") from error
            raise failure_from(error) from error
        if len(found) != end - start:
            raise BlobDamaged("The object of this blob is shorter than it was.")
        return memoryview(found)

    async def delete(self, trash: Trash) -> None:
        """Delete an object, and the parts of one that was not finished."""
        key = self._key(trash.place)
        await self._parts.abort(key, trash.multipart)
        await self._requests.send("DELETE", key, fine={404})

    async def belong_to(self, database: str) -> str:
        """Remember that the objects are this database's, unless they are another's already; answers whose they are.

        Where the store does not obey conditions, the last of two that come at once has it.
        """
        owner = await self._owner()
        if not owner:
            once = {"if-none-match": "*"} if self.conditional else {}
            key = f"{self._prefix}{OWNER_NAME}"
            await self._requests.send("PUT", key, headers=once, body=f"{database}\n".encode(), fine={409, 412})
            owner = await self._owner()
        return owner

    async def _owner(self) -> str:
        try:
            found = await obstore.get_async(self._transfers, f"{self._prefix}{OWNER_NAME}")
            return bytes(await found.bytes_async()).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return ""
        except (BaseError, OSError) as error:
            raise failure_from(error) from error

    async def list_places(self) -> AsyncGenerator[tuple[str, int], None]:
        """Every place that has an object, or parts of one, and how long ago it came, in microseconds."""
        folder = f"{self._prefix}blobs/"
        now = self._clock.micros()
        async for key, since in self._parts.list_keys(folder):
            if (place := self._place(key)) is not None:
                yield place, max(0, now - to_micros(since))
        try:
            async for page in obstore.list(self._transfers, folder, chunk_size=LIST_OBJECTS):
                for found in page:
                    if (place := self._place(found["path"])) is not None:
                        yield place, max(0, now - to_micros(found["last_modified"]))
        except (BaseError, OSError) as error:
            raise failure_from(error) from error

    def _place(self, key: str) -> str | None:
        """The place that has this key, or `None` when it is not one of ours."""
        place = key.rpartition("/")[2]
        return place if PLACE.fullmatch(place) and key == self._key(place) else None

    # -- what clients do by themselves ----------------------------------------------------------------------

    async def plan(self, place: str, *, size: int, sha256: str | None) -> Plan:
        """One PUT with its length, its digest if known, and the condition signed; above 64 MiB, parts."""
        multipart = await self._parts.begin(self._key(place)) if size > SINGLE_BYTES_MAX else None
        return await self.plan_again(place, multipart, size=size, sha256=sha256)

    async def plan_again(self, place: str, multipart: str | None, *, size: int, sha256: str | None) -> Plan:
        """The same: what was signed is good for a while only."""
        if multipart is not None:
            return Plan(multipart=multipart, part_bytes=part_bytes(size, PART_BYTES_MIN))
        headers = {"Content-Length": str(size)}
        if sha256 is not None:
            headers[SHA256] = encoded(sha256)
        if self.conditional:
            headers["If-None-Match"] = "*"
        address = self._requests.address("PUT", self._key(place), seconds=self.write_seconds, headers=headers)
        return Plan(url=address, headers=headers)

    async def sign_parts(self, place: str, multipart: str, parts: Sequence[Part]) -> list[SignedPart]:
        """Addresses that sign the length and the digest of each part."""
        return [self._parts.sign(self._key(place), multipart, part, seconds=self.write_seconds) for part in parts]

    async def list_parts(self, place: str, multipart: str) -> list[Part]:
        """The parts that are there; SeaweedFS does not tell their digests."""
        return await self._parts.list(self._key(place), multipart) or []

    async def join_parts(self, place: str, multipart: str, parts: Sequence[Part]) -> None:
        """Make the object of its parts, after a look that all are there."""
        joined = await self._parts.join(self._key(place), multipart, parts, conditional=self.conditional)
        if joined:
            return
        size = await self.size_of(place)  # Joined before, or given up.
        if size is None or (parts and size != sum(part.size for part in parts)):
            raise UploadIncomplete("The parts are not there any more.", hint="Begin a new upload.")

    async def seal(self, place: str) -> str:
        """Copy an object inside the store to a place that no client can write to."""
        sealed = self.new_place()
        try:
            await obstore.copy_async(self._transfers, self._key(place), self._key(sealed))
        except (BaseError, OSError) as error:
            if code_in(error)[1] == "NoSuchKey":
                raise UploadIncomplete from error
            raise failure_from(error) from error
        return sealed

    async def size_of(self, place: str) -> int | None:
        """The size of an object, or `None`."""
        try:
            return (await obstore.head_async(self._transfers, self._key(place)))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise failure_from(error) from error

    async def sign_read(self, place: str, *, seconds: int, content_type: str, disposition: str) -> str:
        """An address to read at, also in ranges, which answers with this type and this disposition."""
        query = {"response-content-type": content_type, "response-content-disposition": disposition}
        return self._requests.address("GET", self._key(place), seconds=seconds, query=query)


def _transfers(bucket: str, url: str, access_key: str, secret_key: str, region: str, pause_seconds: float) -> S3Store:
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
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        },
        retry_config={
            "max_retries": RETRIES_MAX,
            "retry_timeout": timedelta(seconds=TRANSFER_SECONDS),
            "backoff": {"init_backoff": timedelta(seconds=pause_seconds), "base": 2},
        },
    )
