"""The object store in a bucket: opening, writing and reading through the server, and stores that misbehave."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest

from ingot.blobs.errors import BlobDamaged, UploadIncomplete
from ingot.blobs.model import PART_BYTES, TrashedObject
from ingot.blobs.ports import SigningStore
from ingot.kernel.clock import ManualClock
from ingot.kernel.errors import StorageFull, StoreError, StoreMisconfigured
from ingot.objects.s3 import PROXIED_PART_BYTES, BucketStore
from ingot.objects.s3_requests import bucket_url
from tests.conformance.object_stores import put, read
from tests.s3 import begin_parts, bucket, client_of, key_of, open_bucket, prefix_of, server_url
from tests.s3_proxy import ForwardedRequest, Proxy, answer, fail_times, proxied

pytestmark = pytest.mark.s3

BODY = random.Random(10).randbytes(100_000)
LARGE = random.Random(11).randbytes(2 * PROXIED_PART_BYTES + 4711)


@pytest.fixture
async def store() -> AsyncIterator[BucketStore]:
    async with open_bucket() as store:
        yield store


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with proxied() as proxy:
        yield proxy


def keys(store: BucketStore) -> list[str]:
    """Return the keys below the prefix of the store, as another client lists them."""
    response = client_of(server_url()).list_objects_v2(Bucket=bucket(), Prefix=prefix_of(store))
    return [entry["Key"] for entry in response.get("Contents", [])]


def unfinished(store: BucketStore) -> list[str]:
    response = client_of(server_url()).list_multipart_uploads(Bucket=bucket(), Prefix=prefix_of(store))
    return [entry["Key"] for entry in response.get("Uploads", [])]


# -- opening ------------------------------------------------------------------------------------------------


async def test_open_detects_conditional_writes_and_leaves_no_probe_object(store: BucketStore) -> None:
    signing: SigningStore = store
    assert signing.conditional_writes
    assert keys(store) == []


@pytest.mark.parametrize(
    ("settings", "detail", "setting"),
    [
        ({"access_key": "nobody"}, "access key", "INGOT_S3_ACCESS_KEY"),
        ({"secret_key": "wrong"}, "signature", "INGOT_S3_SECRET_KEY"),
        ({"bucket": "not-there"}, "bucket does not exist", "INGOT_S3_BUCKET"),
        ({"endpoint": "http://127.0.0.1:9"}, "cannot be reached", "INGOT_S3_ENDPOINT"),
        ({"endpoint": "http://nowhere.invalid"}, "cannot be reached", "INGOT_S3_ENDPOINT"),
    ],
)
async def test_open_reports_a_wrong_setting_in_one_sentence(
    settings: dict[str, Any], detail: str, setting: str
) -> None:
    with pytest.raises(StoreError) as caught:
        async with open_bucket(**settings, retry_pause_seconds=0.01):
            pass
    assert detail in caught.value.detail
    assert caught.value.detail.count(".") == 1
    assert setting in caught.value.hint


async def test_open_does_not_create_a_missing_bucket(store: BucketStore) -> None:
    with pytest.raises(StoreMisconfigured):
        async with open_bucket(bucket="not-there-either"):
            pass
    names = [entry["Name"] for entry in client_of(server_url()).list_buckets()["Buckets"]]
    assert "not-there-either" not in names
    assert bucket() in names


@pytest.mark.parametrize(
    ("response", "detail"),
    [
        (answer("200 OK", body="<html>Welcome</html>"), "not an object store"),
        (answer("200 OK", body="hello"), "not an object store"),
        (answer("404 Not Found", body="nothing here"), "404"),
        (answer("403 Forbidden", "AccessDenied"), "denied"),
        (answer("403 Forbidden", "RequestTimeTooSkewed"), "clocks"),
        (answer("301 Moved Permanently", "PermanentRedirect"), "another region"),
        (answer("400 Bad Request", "AuthorizationQueryParametersError"), "another region"),
        (answer("503 Slow Down", "SlowDown"), "503 SlowDown"),
        (b"", "cannot be reached"),
    ],
)
async def test_open_reports_unexpected_responses(proxy: Proxy, response: bytes, detail: str) -> None:
    proxy.instead = lambda _: response
    with pytest.raises(StoreError, match=detail) as caught:
        async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01):
            pass
    assert caught.value.hint != StoreMisconfigured.hint


async def test_the_store_ignores_environment_variables_of_other_s3_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_SESSION_TOKEN": "of somebody",
        "AWS_REGION": "mars",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_S3_EXPRESS": "true",
        "AWS_CONDITIONAL_PUT": "disabled",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with open_bucket() as store:
        storage_key = await put(store, BODY)
        assert await read(store, storage_key, 0, len(BODY)) == BODY


@pytest.mark.parametrize(
    ("name", "endpoint", "url"),
    [
        ("files", None, "https://files.s3.eu-west-1.amazonaws.com"),
        ("my.files", None, "https://s3.eu-west-1.amazonaws.com/my.files"),
        ("files", "http://store:9000", "http://store:9000/files"),
        ("files", "https://example.com/storage/s3/", "https://example.com/storage/s3/files"),
    ],
)
def test_the_bucket_url_depends_on_the_name_and_the_endpoint(name: str, endpoint: str | None, url: str) -> None:
    assert bucket_url(name, endpoint, "eu-west-1") == url


# -- through the server -------------------------------------------------------------------------------------


async def write(store: BucketStore, data: bytes, *, size: int | None = None, piece: int = 700_001) -> str:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=size)
    for start in range(0, len(data), piece):
        await writer.write(data[start : start + piece])
    assert writer.offset == len(data)
    await writer.finish()
    return storage_key


@pytest.mark.parametrize("size", [PROXIED_PART_BYTES, PROXIED_PART_BYTES + 1, 2 * PROXIED_PART_BYTES, len(LARGE)])
@pytest.mark.parametrize("announced", [True, False])
async def test_a_large_object_is_written_in_parts_and_read_back(store: BucketStore, size: int, announced: bool) -> None:
    data = LARGE[:size]
    storage_key = await write(store, data, size=size if announced else None)
    parts = [bytes(part) async for part in store.read(storage_key, 0, size)]
    assert parts == [data[start : start + PART_BYTES] for start in range(0, size, PART_BYTES)]
    assert unfinished(store) == []


async def test_a_written_piece_can_be_larger_than_a_part(store: BucketStore) -> None:
    storage_key = await write(store, LARGE, piece=len(LARGE))
    assert await read(store, storage_key, 0, len(LARGE)) == LARGE


async def test_a_large_object_does_not_replace_an_existing_object(store: BucketStore) -> None:
    storage_key = await put(store, b"first")
    with pytest.raises(StoreError, match="another object"):
        await put(store, LARGE, storage_key=storage_key)
    with pytest.raises(BlobDamaged):
        await read(store, storage_key, 0, 6)
    assert await read(store, storage_key, 0, 5) == b"first"


async def test_an_object_that_is_deleted_while_it_is_written_does_not_exist(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(LARGE)
    await store.delete(TrashedObject(storage_key=storage_key))
    with pytest.raises(StoreError):
        await writer.finish()
    await writer.abort()
    assert (unfinished(store), keys(store)) == ([], [])


async def test_deleting_an_aborted_object_removes_its_parts(store: BucketStore) -> None:
    storage_key = store.new_storage_key()
    writer = await store.write(storage_key, size=None)
    await writer.write(LARGE)
    await writer.abort()
    assert unfinished(store) == [key_of(store, storage_key)]
    assert await store.object_size(storage_key) is None
    await store.delete(TrashedObject(storage_key=storage_key))
    assert (unfinished(store), keys(store)) == ([], [])


async def test_an_object_that_is_too_large_for_the_server_is_rejected_before_it_is_written(store: BucketStore) -> None:
    with pytest.raises(StoreError, match=f"{1024**4} bytes"):
        await store.write(store.new_storage_key(), size=1024**4)
    await store.write(store.new_storage_key(), size=600 * 1024**3)


async def test_memory_does_not_grow_with_the_size_of_an_object(store: BucketStore) -> None:
    storage_key, piece, count = store.new_storage_key(), bytes(PART_BYTES), 96
    writer = await store.write(storage_key, size=None)
    tracemalloc.start()
    try:
        for _ in range(count):
            await writer.write(piece)
        await writer.finish()
        _, writing = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        digest = hashlib.sha256()
        async for part in store.read(storage_key, 0, count * PART_BYTES):
            digest.update(part)
        _, reading = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert digest.hexdigest() == hashlib.sha256(bytes(count * PART_BYTES)).hexdigest()
    assert max(writing, reading) < 48 * 1024**2
    await store.delete(TrashedObject(storage_key=storage_key))


async def test_a_reader_that_stops_early_leaves_no_task(store: BucketStore) -> None:
    storage_key = await write(store, LARGE)
    before = asyncio.all_tasks()
    async with aclosing(store.read(storage_key, 0, len(LARGE))) as parts:
        assert await anext(parts) == LARGE[:PART_BYTES]
        assert asyncio.all_tasks() != before
    assert asyncio.all_tasks() == before


async def test_storage_keys_are_listed_with_their_age() -> None:
    clock = ManualClock(datetime.now(UTC))
    async with open_bucket(clock=clock) as store:
        first, second, unfinished_key = await put(store, b"1"), await put(store, b"2"), store.new_storage_key()
        writer = await store.write(unfinished_key, size=None)
        await writer.write(LARGE)
        await writer.abort()
        ages = {storage_key: age async for storage_key, age in store.list_objects()}
        assert set(ages) == {first, second, unfinished_key}
        assert all(0 <= age < 3_600_000_000 for age in ages.values())
        clock.advance(days=2)
        assert all([age > 86_400_000_000 async for _, age in store.list_objects()])


# -- stores that misbehave ----------------------------------------------------------------------------------


async def test_transient_failures_are_retried(proxy: Proxy) -> None:
    failures = [answer("503 Slow Down", "SlowDown"), answer("500 Oops", "InternalError"), b""]
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        for failure in failures:
            proxy.instead = fail_times(2, failure)
            storage_key = await write(store, LARGE)
            proxy.instead = fail_times(2, failure)
            assert await read(store, storage_key, 0, len(LARGE)) == LARGE
            proxy.instead = fail_times(2, failure)
            assert await store.object_size(storage_key) == len(LARGE)
            proxy.instead = fail_times(2, failure)
            await store.delete(TrashedObject(storage_key=storage_key))
        assert keys(store) == []


async def test_a_request_whose_response_is_lost_succeeds(proxy: Proxy) -> None:
    """The retry notices that the first request was carried out."""
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        proxy.afterwards = fail_times(1, answer("500 Oops", "InternalError"), method="PUT")
        small = await put(store, BODY)
        assert await read(store, small, 0, len(BODY)) == BODY
        late = "<Error><Code>InternalError</Code></Error>"
        lost = fail_times(1, answer("200 OK", body=late))
        proxy.afterwards = lambda asked: lost(asked) if "uploadId" in asked.target and asked.method == "POST" else None
        storage_key = await write(store, LARGE)
        assert await read(store, storage_key, 0, len(LARGE)) == LARGE
        assert sum(asked.method == "POST" and "uploadId" in asked.target for asked in proxy.asked) == 2


@pytest.mark.parametrize(
    ("failure", "error", "detail"),
    [
        (answer("503 Slow Down", "SlowDown"), StoreError, "503"),
        (answer("507 Insufficient Storage", ""), StorageFull, "full"),
        (answer("400 Bad Request", "XMinioStorageFull"), StorageFull, "full"),
        (answer("403 Forbidden", "AccessDenied"), StoreMisconfigured, "denied"),
        (answer("404 Not Found", "NoSuchBucket"), StoreMisconfigured, "bucket does not exist"),
        (answer("404 Not Found", body="<html/>"), StoreError, "404"),
        (b"", StoreError, "cannot be reached"),
    ],
)
async def test_a_permanent_failure_is_reported_after_a_few_tries(
    proxy: Proxy, failure: bytes, error: type[StoreError], detail: str
) -> None:
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        storage_key, multipart = (
            await put(store, BODY),
            (await store.plan(store.new_storage_key(), size=2**30, sha256=None)),
        )
        asked = len(proxy.asked)
        proxy.instead = lambda _: failure
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: put(store, BODY),
            lambda: put(store, LARGE),
            lambda: read(store, storage_key, 0, len(BODY)),
            lambda: store.delete(TrashedObject(storage_key=storage_key)),
            lambda: store.plan(store.new_storage_key(), size=2**30, sha256=None),
            lambda: store.list_parts(storage_key, multipart.multipart or ""),
        ]
        if b" 404 " not in failure and b" 400 " not in failure:  # The response to HEAD has no error code.
            calls.append(lambda: store.object_size(storage_key))
        for call in calls:
            with pytest.raises(error, match=detail) as caught:
                await call()
            assert len(caught.value.detail) < 100
        assert len(proxy.asked) - asked <= 5 * len(calls)


async def test_a_missing_bucket_is_not_reported_as_damage(proxy: Proxy) -> None:
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        storage_key = await put(store, BODY)
        for failure in (answer("404 Not Found", "NoSuchBucket"), answer("404 Not Found", body="gone")):
            proxy.instead = lambda _, failure=failure: failure  # type: ignore[misc]
            with pytest.raises(StoreError):
                await read(store, storage_key, 0, len(BODY))


async def test_bytes_that_change_in_transit_are_rejected(proxy: Proxy) -> None:
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        proxy.changes = lambda body: bytes([body[0] ^ 1]) + body[1:]
        for data in (BODY, LARGE):
            with pytest.raises(StoreError):
                await put(store, data)
        assert keys(store) == []


# -- a store that lists the digests of parts ----------------------------------------------------------------


def with_digests(listed: bytes, digests: dict[str, str]) -> bytes:
    """Return a response that lists parts with their digests, as Amazon S3 does."""
    text = listed.partition(b"\r\n\r\n")[2].decode()
    for number, digest in digests.items():
        mark = f"<PartNumber>{number}</PartNumber>"
        text = text.replace(mark, f"{mark}<ChecksumSHA256>{digest}</ChecksumSHA256>")
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text.encode())


def begun_with_digests(proxy: Proxy) -> list[bool]:
    """Return for each multipart upload in turn whether it was begun with a checksum algorithm."""
    begun = [
        request
        for request in proxy.asked
        if request.method == "POST" and urlsplit(request.target).query.startswith("uploads")
    ]
    return ["x-amz-checksum-algorithm" in request.headers for request in begun]


async def test_listed_digests_are_compared_and_sent_when_parts_are_joined(proxy: Proxy) -> None:
    digests: dict[str, str] = {}

    def change(asked: ForwardedRequest, found: bytes) -> bytes:
        query = parse_qs(urlsplit(asked.target).query)
        if asked.method == "PUT" and "partNumber" in query:
            digests[query["partNumber"][0]] = asked.headers["x-amz-checksum-sha256"]
        return with_digests(found, digests) if asked.method == "GET" and "uploadId" in query else found

    proxy.replies = change
    async with open_bucket(endpoint=proxy.url) as store:
        storage_key = await write(store, LARGE)
        assert begun_with_digests(proxy) == [True, True], "the probe, and the object"
        assert await read(store, storage_key, 0, len(LARGE)) == LARGE
        other = store.new_storage_key()
        multipart, (sent,) = await begin_parts(store, other, b"one")
        wrong = msgspec.structs.replace(sent, sha256=hashlib.sha256(b"two").hexdigest())
        with pytest.raises(UploadIncomplete, match="Part 1"):
            await store.join_parts(other, multipart, [wrong])
        (listed,) = await store.list_parts(other, multipart)
        assert listed.sha256 == sent.sha256
        await store.join_parts(other, multipart, [listed])
        assert await read(store, other, 0, 3) == b"one"


async def test_a_store_that_lists_no_digests_is_sent_no_checksum_algorithm(proxy: Proxy) -> None:
    async with open_bucket(endpoint=proxy.url) as store:
        assert unfinished(store) == []
        await write(store, LARGE)
    assert begun_with_digests(proxy) == [True, False], "the probe, and the object"


# -- a store that ignores conditions ------------------------------------------------------------------------


async def test_open_detects_a_store_that_ignores_conditions(proxy: Proxy) -> None:
    proxy.ignores_conditions = True
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        assert not store.conditional_writes
        assert keys(store) == []


async def test_a_store_that_rejects_conditions_is_sent_none(proxy: Proxy) -> None:
    rejected = answer("501 Not Implemented", "NotImplemented")
    proxy.instead = lambda asked: rejected if "if-none-match" in asked.headers else None
    async with open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store:
        assert not store.conditional_writes
        planned = await store.plan(store.new_storage_key(), size=len(BODY), sha256=None)
        assert "Content-Length" in planned.headers
        assert "If-None-Match" not in planned.headers
        for data in (BODY, LARGE):
            assert await read(store, await put(store, data), 0, len(data)) == data


async def test_a_client_cannot_change_a_sealed_object(proxy: Proxy) -> None:
    proxy.ignores_conditions = True
    async with (
        open_bucket(endpoint=proxy.url, retry_pause_seconds=0.01) as store,
        httpx.AsyncClient(trust_env=False, verify=False) as client,
    ):
        storage_key = store.new_storage_key()
        with pytest.raises(UploadIncomplete):
            await store.seal(storage_key)
        planned = await store.plan(storage_key, size=len(BODY), sha256=None)
        assert planned.url is not None
        assert (await client.put(planned.url, content=BODY, headers=planned.headers)).status_code == 200
        sealed = await store.seal(storage_key)
        other = bytes(len(BODY))
        assert (await client.put(planned.url, content=other, headers=planned.headers)).status_code == 200
        assert await read(store, storage_key, 0, len(BODY)) == other
        assert await read(store, sealed, 0, len(BODY)) == BODY
        assert sealed != storage_key
        sealed_url = planned.url.replace(storage_key[:2] + "/" + storage_key, sealed[:2] + "/" + sealed)
        assert (await client.put(sealed_url, content=other, headers=planned.headers)).status_code == 403
        await store.delete(TrashedObject(storage_key=storage_key))
        assert await read(store, sealed, 0, len(BODY)) == BODY
