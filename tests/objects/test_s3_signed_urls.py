"""Signed URLs with which clients write to the bucket and read from it directly, used with curl and requests."""

from __future__ import annotations

import asyncio
import hashlib
import random
import subprocess
from collections.abc import AsyncIterator, Mapping
from functools import cache
from pathlib import Path

import msgspec
import pytest
import requests

from ingot.blobs.errors import UploadIncomplete
from ingot.blobs.model import TrashedObject
from ingot.blobs.ports import ObjectPart, SignedPart, TransferPlan
from ingot.objects import s3, s3_parts
from ingot.objects.s3 import SINGLE_PUT_BYTES_MAX, BucketStore
from ingot.objects.s3_parts import part_size
from tests.conformance.object_stores import put, read
from tests.s3 import bucket, client_of, open_bucket, prefix_of, server_url
from tests.waiting import SECONDS_MAX, eventually

pytestmark = pytest.mark.s3

BODY = random.Random(8).randbytes(100_000)
OTHER = bytes(byte ^ 1 for byte in BODY)
LARGE = SINGLE_PUT_BYTES_MAX + 4711
PART = 16 * 1024 * 1024


@pytest.fixture
async def store() -> AsyncIterator[BucketStore]:
    async with open_bucket() as store:
        yield store


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def plan(store: BucketStore, storage_key: str, *, digest: bool = True) -> TransferPlan:
    planned = await store.plan(storage_key, size=len(BODY), sha256=sha256(BODY) if digest else None)
    assert (planned.multipart, planned.part_bytes) == (None, None)
    return planned


async def send(planned: TransferPlan | SignedPart, body: bytes, **changed: str | None) -> int:
    """PUT a body with requests. `changed` replaces headers, or removes those that are `None`."""
    headers = {name: text for name, text in (planned.headers | changed).items() if text is not None}
    assert planned.url is not None
    reply = await asyncio.to_thread(requests.put, planned.url, data=body, headers=headers, timeout=SECONDS_MAX)
    return reply.status_code


async def curl(*arguments: str, body: Path | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run curl and return the status and the output."""
    command = ["curl", "-sS", "--max-time", str(SECONDS_MAX), "-w", "\n%{http_code}", *arguments]
    if body is not None:
        command += ["-T", str(body)]
    for name, text in (headers or {}).items():
        command += ["-H", f"{name}: {text}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, text=True)
    output, _, status = done.stdout.rpartition("\n")
    return int(status), output


@pytest.mark.curl
async def test_curl_puts_an_object_once(store: BucketStore, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(BODY)
    storage_key = store.new_storage_key()
    planned = await plan(store, storage_key)
    assert planned.url is not None
    assert (await curl(planned.url, body=file, headers=planned.headers))[0] == 200
    assert await read(store, storage_key, 0, len(BODY)) == BODY
    assert await store.object_size(storage_key) == len(BODY)
    assert (await curl(planned.url, body=file, headers=planned.headers))[0] == 412


async def test_an_empty_object_can_be_put(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    planned = await store.plan(storage_key, size=0, sha256=sha256(b""))
    assert await send(planned, b"") == 200
    assert await store.object_size(storage_key) == 0


async def test_a_plan_names_and_signs_all_required_headers(store: BucketStore) -> None:
    planned = await plan(store, store.new_storage_key())
    described = set(s3.OBJECT_HEADERS)
    assert set(planned.headers) == {"Content-Length", "x-amz-checksum-sha256", "If-None-Match"} | described
    assert (planned.headers["Content-Length"], planned.headers["If-None-Match"]) == (str(len(BODY)), "*")
    assert planned.url is not None
    signed = "%3B".join(sorted(name.lower() for name in {*planned.headers, "host"}))
    assert f"X-Amz-SignedHeaders={signed}&" in planned.url


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        pytest.param(BODY + b"x", {"Content-Length": None}, id="longer"),
        pytest.param(BODY[:-1], {"Content-Length": None}, id="shorter"),
        pytest.param(OTHER, {}, id="other bytes"),
        pytest.param(OTHER, {"x-amz-checksum-sha256": None}, id="other bytes without a digest"),
        pytest.param(BODY, {"x-amz-checksum-sha256": None}, id="no digest"),
        pytest.param(BODY, {"If-None-Match": None}, id="no condition"),
        pytest.param(BODY, {"If-None-Match": '"x"'}, id="another condition"),
        *(
            pytest.param(BODY, {name: text}, id=f"{name}: {text}")
            for name, text in (
                ("Content-Encoding", "gzip"),
                ("Cache-Control", "public, max-age=31536000"),
                ("Expires", "Thu, 01 Jan 2099 00:00:00 GMT"),
                ("Content-Type", "text/html"),
                ("Content-Disposition", "inline"),
                ("Content-Language", "en"),
            )
        ),
    ],
)
async def test_a_put_that_differs_from_its_plan_is_rejected(
    store: BucketStore, body: bytes, changed: dict[str, str | None]
) -> None:
    storage_key = store.new_storage_key()
    assert await send(await plan(store, storage_key), body, **changed) in (400, 403)
    assert await store.object_size(storage_key) is None


async def test_a_signed_url_hides_how_an_object_describes_itself(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    hidden = {"ContentEncoding": "gzip", "CacheControl": "public, max-age=99", "ContentLanguage": "en"}
    key = f"{prefix_of(store)}blobs/{storage_key[:2]}/{storage_key}"
    await asyncio.to_thread(
        client_of(server_url()).put_object,
        Bucket=bucket(),
        Key=key,
        Body=BODY,
        Expires="2099-01-01T00:00:00Z",
        **hidden,
    )
    url = await store.sign_read_url(storage_key, seconds=60, content_type="text/plain", disposition="attachment")
    response = await asyncio.to_thread(requests.get, url, timeout=SECONDS_MAX)
    assert (response.status_code, response.content) == (200, BODY)
    described = {name: response.headers.get(name) for name in s3.OBJECT_HEADERS}
    assert described == s3.OBJECT_HEADERS | {"Content-Type": "text/plain"}


@pytest.mark.parametrize("digest", [True, False])
async def test_a_second_put_is_rejected_and_the_first_object_stays(store: BucketStore, digest: bool) -> None:
    storage_key = store.new_storage_key()
    planned = await plan(store, storage_key, digest=digest)
    assert await send(planned, BODY) == 200
    assert await send(planned, BODY) == 412
    assert await send(planned, OTHER) in (400, 412)
    assert await read(store, storage_key, 0, len(BODY)) == BODY


async def test_a_plan_without_a_digest_still_enforces_the_length(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    planned = await plan(store, storage_key, digest=False)
    assert set(planned.headers) == {"Content-Length", "If-None-Match", *s3.OBJECT_HEADERS}
    assert await send(planned, BODY + b"x", **{"Content-Length": None}) == 403
    assert await store.object_size(storage_key) is None
    assert await send(planned, BODY) == 200


async def test_a_signed_url_is_valid_for_one_storage_key_and_one_method(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    planned = await plan(store, storage_key)
    assert planned.url is not None
    other = planned.url.replace(storage_key, store.new_storage_key())
    assert await send(msgspec.structs.replace(planned, url=other), BODY) == 403
    assert await send(planned, BODY) == 200
    for verb in ("GET", "DELETE", "POST"):
        reply = await asyncio.to_thread(
            requests.request, verb, planned.url, data=BODY, headers=planned.headers, timeout=SECONDS_MAX
        )
        assert reply.status_code in (403, 405)
    assert await store.object_size(storage_key) == len(BODY)


async def test_an_expired_url_is_rejected(store: BucketStore) -> None:
    store.write_url_seconds = 1
    storage_key, stored_key = store.new_storage_key(), await put(store, BODY)
    planned = await plan(store, storage_key)
    url = await store.sign_read_url(stored_key, seconds=1, content_type="text/plain", disposition="inline")

    async def has_expired() -> bool:
        return (await asyncio.to_thread(requests.get, url, timeout=SECONDS_MAX)).status_code == 403

    await eventually(has_expired)
    assert await send(planned, BODY) == 403
    assert await store.object_size(storage_key) is None


@pytest.mark.curl
async def test_curl_resumes_a_download(store: BucketStore, tmp_path: Path) -> None:
    storage_key = await put(store, BODY)
    name = "attachment; filename=\"a b.txt\"; filename*=UTF-8''%C3%A4%20b.txt"
    url = await store.sign_read_url(
        storage_key, seconds=60, content_type="text/x-test; charset=utf-8", disposition=name
    )
    file = tmp_path / "file"
    assert (await curl(url, "-o", str(file)))[0] == 200
    assert file.read_bytes() == BODY
    file.write_bytes(BODY[:40_000])
    status, output = await curl(url, "-C", "-", "-o", str(file), "-D", "-")
    assert (status, file.read_bytes()) == (206, BODY)
    headers = dict(line.split(": ", 1) for line in output.lower().splitlines() if ": " in line)
    assert headers["content-range"] == f"bytes 40000-{len(BODY) - 1}/{len(BODY)}"
    assert headers["content-type"] == "text/x-test; charset=utf-8"
    assert headers["content-disposition"] == name.lower()
    status, _ = await curl(url, "-r", "10-19", "-o", str(file))
    assert (status, file.read_bytes()) == (206, BODY[10:20])


async def test_another_s3_client_reads_an_object_of_the_store(store: BucketStore) -> None:
    storage_key = await put(store, BODY)
    client = client_of(server_url())
    (entry,) = client.list_objects_v2(Bucket=bucket(), Prefix=f"{prefix_of(store)}blobs/{storage_key[:2]}/")["Contents"]
    assert entry["Key"] == f"{prefix_of(store)}blobs/{storage_key[:2]}/{storage_key}"
    assert client.get_object(Bucket=bucket(), Key=entry["Key"])["Body"].read() == BODY


# -- parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "part_bytes"),
    [
        (SINGLE_PUT_BYTES_MAX + 1, 16 * 1024**2),
        (10_000 * 16 * 1024**2, 16 * 1024**2),
        (10_000 * 16 * 1024**2 + 1, 17 * 1024**2),
        (1024**4, 105 * 1024**2),
        (5 * 1024**4, 525 * 1024**2),
    ],
)
def test_part_sizes_keep_the_number_of_parts_within_the_limit(size: int, part_bytes: int) -> None:
    assert part_size(size, s3.PART_BYTES_MIN) == part_bytes
    assert -(-size // part_bytes) <= 10_000


@cache
def large() -> bytes:
    return random.Random(9).randbytes(LARGE)


class Upload:
    """A large object that a client sends in parts."""

    def __init__(self, store: BucketStore) -> None:
        self.store = store
        self.storage_key = store.new_storage_key()
        self.data = large()
        self.multipart = ""
        self.parts: list[ObjectPart] = []

    async def begin(self) -> None:
        planned = await self.store.plan(self.storage_key, size=LARGE, sha256=sha256(self.data))
        assert (planned.url, planned.headers, planned.part_bytes) == (None, {}, PART)
        self.multipart = planned.multipart or ""
        self.parts = [
            ObjectPart(number=number, size=len(self.bytes_of(number)), sha256=sha256(self.bytes_of(number)))
            for number in range(1, -(-LARGE // PART) + 1)
        ]

    def bytes_of(self, number: int) -> bytes:
        return self.data[(number - 1) * PART : number * PART]

    async def signed(self, number: int) -> SignedPart:
        (signed,) = await self.store.sign_parts(self.storage_key, self.multipart, [self.parts[number - 1]])
        assert signed.number == number
        return signed

    async def send(self, *numbers: int) -> None:
        for number in numbers:
            assert await send(await self.signed(number), self.bytes_of(number)) == 200

    async def join(self) -> None:
        await self.store.join_parts(self.storage_key, self.multipart, self.parts)


@pytest.fixture
async def upload(store: BucketStore) -> Upload:
    upload = Upload(store)
    await upload.begin()
    return upload


@pytest.mark.curl
async def test_parts_from_different_clients_are_joined(upload: Upload, tmp_path: Path) -> None:
    store = upload.store
    file = tmp_path / "part"
    file.write_bytes(upload.bytes_of(1))
    signed = await upload.signed(1)
    assert (await curl(signed.url, body=file, headers=signed.headers))[0] == 200
    await upload.send(5, 4, 2, 4)  # A client that gets no response sends a part again.
    stored = await store.list_parts(upload.storage_key, upload.multipart)
    assert [(part.number, part.size) for part in stored] == [(1, PART), (2, PART), (4, PART), (5, LARGE - 4 * PART)]
    with pytest.raises(UploadIncomplete, match="Part 3 is missing"):
        await upload.join()
    with pytest.raises(UploadIncomplete, match="Part 3 is missing"):
        await store.join_parts(upload.storage_key, upload.multipart, stored)
    assert await store.object_size(upload.storage_key) is None
    await upload.send(3)
    await store.join_parts(
        upload.storage_key, upload.multipart, await store.list_parts(upload.storage_key, upload.multipart)
    )
    assert await store.object_size(upload.storage_key) == LARGE
    digest = hashlib.sha256()
    async for part in store.read(upload.storage_key, 0, LARGE):
        digest.update(part)
    assert digest.hexdigest() == sha256(upload.data)
    await upload.join()
    assert await store.list_parts(upload.storage_key, upload.multipart) == []
    await store.join_parts(upload.storage_key, upload.multipart, [])
    assert await send(signed, upload.bytes_of(1)) == 404
    await store.delete(TrashedObject(storage_key=upload.storage_key, multipart=upload.multipart))
    with pytest.raises(UploadIncomplete):
        await upload.join()


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        pytest.param(lambda data: bytes([data[0] ^ 1]) + data[1:], {}, id="other bytes"),
        pytest.param(lambda data: data[:-1], {"Content-Length": None}, id="shorter"),
        pytest.param(lambda data: data, {"x-amz-checksum-sha256": None}, id="no digest"),
    ],
)
async def test_a_part_that_differs_from_its_signed_url_is_rejected(
    upload: Upload, change: object, changed: dict[str, str | None]
) -> None:
    assert callable(change)
    signed = await upload.signed(5)
    assert await send(signed, change(upload.bytes_of(5)), **changed) in (400, 403)
    assert await upload.store.list_parts(upload.storage_key, upload.multipart) == []
    assert await send(signed, upload.bytes_of(5)) == 200


async def test_a_part_of_another_size_is_not_joined(upload: Upload) -> None:
    small = [ObjectPart(number=1, size=3, sha256=sha256(b"abc"))]
    (signed,) = await upload.store.sign_parts(upload.storage_key, upload.multipart, small)
    assert await send(signed, b"abc") == 200
    with pytest.raises(UploadIncomplete, match="Part 1 differs"):
        await upload.store.join_parts(upload.storage_key, upload.multipart, upload.parts[:1])
    with pytest.raises(UploadIncomplete, match="no parts"):
        await upload.store.join_parts(upload.storage_key, upload.multipart, [])
    with pytest.raises(UploadIncomplete, match="Part 1 is missing"):
        await upload.store.join_parts(upload.storage_key, upload.multipart, upload.parts[1:2])


async def test_many_parts_are_listed_page_by_page(upload: Upload, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_parts, "LIST_PAGE_ITEMS", 3)
    parts = [ObjectPart(number=number, size=1, sha256=sha256(bytes([number]))) for number in range(1, 8)]
    for signed in await upload.store.sign_parts(upload.storage_key, upload.multipart, parts):
        assert await send(signed, bytes([signed.number])) == 200
    stored = await upload.store.list_parts(upload.storage_key, upload.multipart)
    assert [part.number for part in stored] == [1, 2, 3, 4, 5, 6, 7]


async def test_a_canceled_multipart_upload_leaves_nothing(upload: Upload) -> None:
    await upload.send(5)
    signed = await upload.signed(1)
    assert [storage_key async for storage_key, _ in upload.store.list_objects()] == [upload.storage_key]
    await upload.store.delete(TrashedObject(storage_key=upload.storage_key, multipart=upload.multipart))
    assert await upload.store.list_parts(upload.storage_key, upload.multipart) == []
    assert await send(signed, upload.bytes_of(1)) == 404
    assert [storage_key async for storage_key, _ in upload.store.list_objects()] == []
    with pytest.raises(UploadIncomplete):
        await upload.join()
