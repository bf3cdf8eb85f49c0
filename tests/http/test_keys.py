"""Keys over HTTP: storing and reading bytes, conditions, quotas and permissions."""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import Any

import httpx
import pytest
from blake3 import blake3

from ingot.blobs.model import INLINE_BYTES_MAX, PART_BYTES
from ingot.identity.credentials import TokenLimits
from ingot.identity.grants import Grant
from ingot.identity.model import Limits
from tests.http.one_server import on_one_server
from tests.http.serving import Served
from tests.waiting import eventually

SIZES = [0, 1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, PART_BYTES, 2 * PART_BYTES + 17]


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed or size).randbytes(size)


async def put(served: Served, key: str, data: bytes, **more: Any) -> httpx.Response:
    return await served.call("PUT", f"/keys/{key}", content=data, **more)


async def keys_and_usage(served: Served, token: str | None = None) -> tuple[list[str], dict[str, Any]]:
    """The keys of the tenant, and its usage without deleted bytes."""
    listed = (await served.call("GET", "/keys?limit=1000", token=token)).json()
    usage = (await served.call("GET", "/usage", token=token)).json()
    return [key["key"] for key in listed["items"]], without_deleted_bytes(usage)


def without_deleted_bytes(usage: dict[str, Any]) -> dict[str, Any]:
    """Return the fields about bytes that are not deleted."""
    return {name: value for name, value in usage.items() if name not in ("deleted_bytes", "freed_from", "freed_by")}


async def until(served: Served, *, reserved: bool) -> None:
    """Wait until bytes are reserved, or none are."""

    async def has_state() -> bool:
        return bool((await keys_and_usage(served))[1]["reserved_bytes"]) is reserved

    await eventually(has_state)


async def in_pieces(data: bytes, size: int = 300_000) -> Any:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("method", ["put", "chunked", "form"])
async def test_stored_bytes_are_read_back_unchanged(served: Served, method: str, size: int) -> None:
    data = some_bytes(size)
    if method == "put":
        response = await put(served, "docs/a b.pdf", data)
    elif method == "chunked":
        response = await served.call("PUT", "/keys/docs/a b.pdf", content=in_pieces(data))
    else:
        file = {"blob": ("a b.pdf", data, "application/pdf")}
        response = await served.call("POST", "/keys", data={"key": "docs/a b.pdf"}, files=file)
    assert response.status_code == 201, response.text
    stored_key = response.json()
    assert (stored_key["blob_id"], stored_key["sha256"]) == (blake3(data).hexdigest(), hashlib.sha256(data).hexdigest())
    assert (stored_key["size"], stored_key["content_type"], stored_key["key"]) == (
        size,
        "application/pdf",
        "docs/a b.pdf",
    )
    assert response.headers["etag"] == f'"{stored_key["blob_id"]}"'
    get = await served.call("GET", "/keys/docs/a b.pdf")
    assert (get.status_code, get.content) == (200, data)
    assert get.headers["content-disposition"] == 'attachment; filename="a b.pdf"'
    assert get.headers["x-content-type-options"] == "nosniff"
    head = await served.call("HEAD", "/keys/docs/a b.pdf")
    assert (head.content, head.headers["content-length"]) == (b"", str(size))
    assert await keys_and_usage(served) == (
        ["docs/a b.pdf"],
        {"bytes": size, "reserved_bytes": 0, "keys": 1, "quota_bytes": None},
    )


async def test_a_range_is_read_at_any_offset(served: Served) -> None:
    data = some_bytes(2 * PART_BYTES + 1000)
    etag = (await put(served, "a", data)).headers["etag"]
    rng = random.Random(8)
    for _ in range(30):
        start = rng.randrange(len(data))
        end = rng.randrange(start, len(data))
        response = await served.call("GET", "/keys/a", headers={"range": f"bytes={start}-{end}", "if-range": etag})
        assert (response.status_code, response.content) == (206, data[start : end + 1])
    assert (await served.call("GET", "/keys/a", headers={"range": f"bytes={len(data)}-"})).status_code == 416
    assert (await served.call("GET", "/keys/a", headers={"if-none-match": etag})).status_code == 304


async def test_a_key_is_replaced_only_with_a_matching_condition(served: Served) -> None:
    first = await put(served, "a", b"one")
    again = await put(served, "a", b"two")
    assert (again.status_code, again.json()["code"]) == (409, "key_exists")
    wrong = await put(served, "a", b"two", headers={"if-match": f'"{"0" * 64}"'})
    assert (wrong.status_code, wrong.json()["code"]) == (412, "key_changed")
    for large in (b"two", some_bytes(100_000)):
        etag = (await served.call("GET", "/keys/a")).headers["etag"]
        assert (await put(served, "a", large, headers={"if-match": etag})).status_code == 201
        assert (await served.call("GET", "/keys/a")).content == large
    assert (await put(served, "a", b"one", headers={"if-match": "*"})).json()["blob_id"] == first.json()["blob_id"]
    assert (await keys_and_usage(served))[1]["bytes"] == 3
    deleted = await served.call("DELETE", "/keys/a", headers={"if-match": again.headers.get("etag", f'"{"1" * 64}"')})
    assert deleted.json()["code"] == "key_changed"
    assert (await served.call("DELETE", "/keys/a")).json()["key"] == "a"
    assert [(await served.call(method, "/keys/a")).status_code for method in ("GET", "HEAD", "DELETE")] == [404] * 3
    assert (await put(served, "a", b"three")).status_code == 201


@on_one_server(
    ("options", "code"),
    [
        ({"params": {"sha256": "0" * 64}}, "wrong_digest"),
        ({"params": {"blob_id": "0" * 64}}, "wrong_digest"),
        ({"params": {"sha256": "abc"}}, "invalid_input"),
        ({"params": {"size": "3"}}, "invalid_input"),
        ({"headers": {"if-match": "nonsense"}}, "invalid_input"),
        ({"headers": {"content-type": "no type"}}, "invalid_input"),
        ({"params": {"name": "a\nb"}}, "invalid_input"),
    ],
)
@on_one_server("size", [100, 100_000])
async def test_a_rejected_put_stores_and_reserves_nothing(
    served: Served, options: dict[str, Any], code: str, size: int
) -> None:
    response = await put(served, "a", some_bytes(size), **options)
    assert (response.status_code, response.json()["code"]) == (422, code)
    assert await keys_and_usage(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})


@on_one_server("key", ["a/%2E%2E/b", "%2E%2E", "a//b", "a/", "a%00b", "a%0Ab", "%ff", "x" * 1025, "x" * 5000, "%2F"])
async def test_an_invalid_key_is_rejected(served: Served, key: str) -> None:
    response = await served.client.request(
        "PUT",
        f"{served.url}/api/v1/keys/{key}",
        content=b"x",
        headers={"authorization": f"Bearer {served.operator}"},
    )
    assert (response.status_code, response.json()["code"]) == (422, "invalid_input")
    assert (await keys_and_usage(served))[0] == []


async def test_keys_are_listed_in_order_of_their_bytes(served: Served) -> None:
    names = ["a", "a/b", "a/é", "a0", "b", "ä", "🙂"]
    for name in names:
        await put(served, name, name.encode())
    listed_keys: list[str] = []
    cursor: str | None = None
    while True:
        page = (await served.call("GET", "/keys", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))).json()
        listed_keys += [key["key"] for key in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert listed_keys == sorted(names, key=str.encode)
    assert (await served.call("GET", "/keys", params={"prefix": "a/"})).json()["items"][0]["key"] == "a/b"
    assert (await served.call("GET", "/keys", params={"prefix": "b", "cursor": "x"})).json()["code"] == "invalid_cursor"


async def test_a_token_uses_only_keys_below_its_prefix(served: Served) -> None:
    for key in ("reports/a", "reports2/b", "other"):
        await put(served, key, key.encode())
    token = await served.token(Grant(action="blobs.*", resource="keys/reports"))
    assert (await served.call("GET", "/keys/reports/a", token=token)).status_code == 200
    for method, key in [("GET", "reports2/b"), ("GET", "other"), ("PUT", "reports3"), ("DELETE", "other")]:
        response = await served.call(method, f"/keys/{key}", token=token)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden"), key
    listed = await served.call("GET", "/keys", params={"prefix": "reports"}, token=token)
    assert [key["key"] for key in listed.json()["items"]] == ["reports/a"]
    assert (await served.call("GET", "/keys", token=token)).status_code == 403
    other = (await served.call("GET", "/keys/other")).headers["etag"].strip('"')
    assert (await served.call("GET", f"/blobs/{other}", token=token)).json()["code"] == "blob_not_found"


async def test_a_blob_is_readable_only_with_a_reference_of_its_tenant(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    data = some_bytes(100_000)
    blob = (await put(served, "a", data)).json()["blob_id"]
    unknown = await served.call("GET", f"/blobs/{'0' * 64}", token=token)
    for path in (f"/blobs/{blob}", f"/blobs/{blob}/url", f"/blobs/{blob}/references"):
        response = await served.call("GET", path, token=token)
        problem = {**response.json(), "detail": ""}
        assert (response.status_code, problem) == (404, {**unknown.json(), "detail": ""}), path
    plan = (await served.call("POST", "/blobs/uploads", token=token, json={"size": 100_000, "blob_id": blob})).json()
    assert plan["upload"]["state"] == "open", (
        "the other tenant has to send the bytes, so that it does not learn of the blob"
    )
    mine = (await served.call("POST", "/blobs/uploads", json={"size": 100_000, "blob_id": blob, "key": "b"})).json()
    assert (mine["upload"]["state"], mine["url"]) == ("done", None)
    assert (await put(served, "theirs", data, token=token)).status_code == 201
    assert (await served.call("GET", f"/blobs/{blob}", token=token)).content == data
    assert (await served.ingot.blobs.metrics()).blobs == 2, "each tenant has its own"


async def test_a_quota_is_exact_and_its_problem_has_the_usage(served: Served) -> None:
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=250_000))
    assert (await put(served, "a", some_bytes(100_000))).status_code == 201
    for over in (some_bytes(150_001), in_pieces(some_bytes(400_000))):
        response = await served.call("PUT", "/keys/b", content=over)
        assert (response.status_code, response.json()["code"]) == (507, "quota_exceeded")
        assert (response.json()["usage_bytes"], response.json()["quota_bytes"]) == (100_000, 250_000)
        assert response.headers["ingot-quota-bytes"] == "250000"
    many = await asyncio.gather(*(put(served, f"c{n}", some_bytes(50_000, n + 1)) for n in range(6)))
    assert sorted(response.status_code for response in many) == [201] * 3 + [507] * 3
    assert (await keys_and_usage(served))[1] == {
        "bytes": 250_000,
        "reserved_bytes": 0,
        "keys": 4,
        "quota_bytes": 250_000,
    }
    assert (await served.call("DELETE", "/keys/a")).status_code == 200
    assert (await put(served, "d", some_bytes(99_000))).status_code == 507, "deleted bytes count until they are gone"
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=350_000))
    assert (await put(served, "d", some_bytes(99_000))).status_code == 201
    names = [event["name"] for event in (await served.call("GET", "/events?limit=1000")).json()["items"]]
    assert "quota.warning" in names
    assert names.count("blob.stored") == 5


@pytest.mark.parametrize("scope", ["tenant", "token"])
async def test_a_put_without_a_length_is_accepted_up_to_the_quota(served: Served, scope: str) -> None:
    quota, token = 300_000, None
    if scope == "tenant":
        await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=quota))
    else:
        token = await served.token(limits=TokenLimits(quota_bytes=quota))
    assert (await put(served, "a", some_bytes(100_000), token=token)).status_code == 201
    over = await served.call("PUT", "/keys/b", content=in_pieces(some_bytes(200_001), 20_000), token=token)
    assert (over.status_code, over.json()["code"], over.json()["scope"]) == (507, "quota_exceeded", scope)
    assert over.json()["usage_bytes"] == 100_000, "the reservation of the rejected request is released"
    fits = await served.call("PUT", "/keys/b", content=in_pieces(some_bytes(200_000), 20_000), token=token)
    assert fits.status_code == 201, fits.text
    usage = (await served.call("GET", "/usage?of=caller", token=token)).json()
    assert (usage["bytes"], usage["reserved_bytes"]) == (quota, 0)
    await served.ingot.garbage_collector.run_once()
    assert len([stored async for stored in served.ingot.object_store.list_objects()]) == 2


async def test_a_token_can_have_its_own_quota(served: Served) -> None:
    token = await served.token(limits=TokenLimits(quota_bytes=1000))
    assert (await put(served, "a", some_bytes(900), token=token)).status_code == 201
    assert (await put(served, "b", some_bytes(200), token=token)).json()["scope"] == "token"
    assert (await put(served, "b", some_bytes(200))).status_code == 201
    own = (await served.call("GET", "/usage?of=caller", token=token)).json()
    assert without_deleted_bytes(own) == {"bytes": 900, "reserved_bytes": 0, "keys": 1, "quota_bytes": 1000}
    owner = (await served.call("GET", "/keys?prefix=a")).json()["items"][0]["owner"]
    preview = await served.call("POST", "/admin/keys/purge", json={"owner": owner})
    assert preview.json() == {"keys": 1, "bytes": 900, "more": False, "dry_run": True}
    await served.call("POST", "/admin/keys/purge", json={"owner": owner, "dry_run": False})
    assert (await keys_and_usage(served))[0] == ["b"]


async def test_a_put_whose_client_disconnects_leaves_nothing(served: Served) -> None:
    never = asyncio.Event()

    async def incomplete_body() -> Any:
        yield some_bytes(500_000)
        await never.wait()

    sending = asyncio.create_task(served.call("PUT", "/keys/a", content=incomplete_body()))
    await until(served, reserved=True)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await until(served, reserved=False)
    assert await keys_and_usage(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})


@pytest.mark.parametrize("size", [1_000, 300_000])
async def test_a_truncated_form_leaves_nothing(served: Served, size: int) -> None:
    boundary = "a-line-between"
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="key"\r\n\r\na\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="blob"; filename="a.bin"\r\n\r\n'
    )
    body = head.encode() + some_bytes(size)
    lines = (
        "POST /api/v1/keys HTTP/1.1",
        "host: here",
        f"authorization: Bearer {served.operator}",
        f"content-type: multipart/form-data; boundary={boundary}",
        f"content-length: {len(body) + 1_000}",
    )
    url = httpx.URL(served.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()
    if size > INLINE_BYTES_MAX:
        await until(served, reserved=True)
    writer.close()
    await until(served, reserved=False)
    assert await keys_and_usage(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})
    await served.ingot.garbage_collector.run_once()
    assert [stored async for stored in served.ingot.object_store.list_objects()] == []
    assert (await put(served, "a", b"next")).status_code == 201
    assert await reader.read() == b""
