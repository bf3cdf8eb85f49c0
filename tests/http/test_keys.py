"""Keys over HTTP: bytes come in three ways, are read whole or in part, and nobody sees what is not theirs."""

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


async def kept(served: Served, token: str | None = None) -> tuple[list[str], dict[str, Any]]:
    """The keys of the tenant, and its usage."""
    listed = (await served.call("GET", "/keys?limit=1000", token=token)).json()
    return [one["key"] for one in listed["items"]], (await served.call("GET", "/usage", token=token)).json()


async def until(served: Served, *, reserved: bool) -> None:
    """Wait until something is reserved, or nothing is."""

    async def is_so() -> bool:
        return bool((await kept(served))[1]["reserved_bytes"]) is reserved

    await eventually(is_so)


async def in_pieces(data: bytes, size: int = 300_000) -> Any:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["put", "chunked", "form"])
async def test_what_is_put_is_what_is_got(served: Served, way: str, size: int) -> None:
    data = some_bytes(size)
    if way == "put":
        answer = await put(served, "docs/a b.pdf", data)
    elif way == "chunked":
        answer = await served.call("PUT", "/keys/docs/a b.pdf", content=in_pieces(data))
    else:
        file = {"blob": ("a b.pdf", data, "application/pdf")}
        answer = await served.call("POST", "/keys", data={"key": "docs/a b.pdf"}, files=file)
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert (made["blob_id"], made["sha256"]) == (blake3(data).hexdigest(), hashlib.sha256(data).hexdigest())
    assert (made["size"], made["content_type"], made["key"]) == (size, "application/pdf", "docs/a b.pdf")
    assert answer.headers["etag"] == f'"{made["blob_id"]}"'
    got = await served.call("GET", "/keys/docs/a b.pdf")
    assert (got.status_code, got.content) == (200, data)
    assert got.headers["content-disposition"] == 'attachment; filename="a b.pdf"'
    assert got.headers["x-content-type-options"] == "nosniff"
    looked = await served.call("HEAD", "/keys/docs/a b.pdf")
    assert (looked.content, looked.headers["content-length"]) == (b"", str(size))
    assert await kept(served) == (
        ["docs/a b.pdf"],
        {"bytes": size, "reserved_bytes": 0, "keys": 1, "quota_bytes": None},
    )


async def test_a_part_is_read_from_any_place(served: Served) -> None:
    data = some_bytes(2 * PART_BYTES + 1000)
    etag = (await put(served, "a", data)).headers["etag"]
    chance = random.Random(8)
    for _ in range(30):
        start = chance.randrange(len(data))
        end = chance.randrange(start, len(data))
        answer = await served.call("GET", "/keys/a", headers={"range": f"bytes={start}-{end}", "if-range": etag})
        assert (answer.status_code, answer.content) == (206, data[start : end + 1])
    assert (await served.call("GET", "/keys/a", headers={"range": f"bytes={len(data)}-"})).status_code == 416
    assert (await served.call("GET", "/keys/a", headers={"if-none-match": etag})).status_code == 304


async def test_a_key_is_new_unless_one_says_what_it_holds(served: Served) -> None:
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
    assert (await kept(served))[1]["bytes"] == 3
    gone = await served.call("DELETE", "/keys/a", headers={"if-match": again.headers.get("etag", f'"{"1" * 64}"')})
    assert gone.json()["code"] == "key_changed"
    assert (await served.call("DELETE", "/keys/a")).json()["key"] == "a"
    assert [(await served.call(method, "/keys/a")).status_code for method in ("GET", "HEAD", "DELETE")] == [404] * 3
    assert (await put(served, "a", b"three")).status_code == 201


@on_one_server(
    ("sent", "code"),
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
async def test_what_is_wrong_leaves_nothing(served: Served, sent: dict[str, Any], code: str, size: int) -> None:
    answer = await put(served, "a", some_bytes(size), **sent)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert await kept(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})


@on_one_server("key", ["a/%2E%2E/b", "%2E%2E", "a//b", "a/", "a%00b", "a%0Ab", "%ff", "x" * 1025, "x" * 5000, "%2F"])
async def test_a_name_that_is_none_is_refused(served: Served, key: str) -> None:
    answer = await served.client.request(
        "PUT",
        f"{served.url}/api/v1/keys/{key}",
        content=b"x",
        headers={"authorization": f"Bearer {served.operator}"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
    assert (await kept(served))[0] == []


async def test_keys_are_listed_by_their_bytes_page_by_page(served: Served) -> None:
    names = ["a", "a/b", "a/é", "a0", "b", "ä", "🙂"]
    for name in names:
        await put(served, name, name.encode())
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = (await served.call("GET", "/keys", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))).json()
        found += [one["key"] for one in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
    assert found == sorted(names, key=str.encode)
    assert (await served.call("GET", "/keys", params={"prefix": "a/"})).json()["items"][0]["key"] == "a/b"
    assert (await served.call("GET", "/keys", params={"prefix": "b", "cursor": "x"})).json()["code"] == "invalid_cursor"


async def test_a_token_reaches_the_keys_below_its_prefix_and_no_others(served: Served) -> None:
    for key in ("reports/a", "reports2/b", "other"):
        await put(served, key, key.encode())
    token = await served.token(Grant(action="blobs.*", resource="keys/reports"))
    assert (await served.call("GET", "/keys/reports/a", token=token)).status_code == 200
    for method, key in [("GET", "reports2/b"), ("GET", "other"), ("PUT", "reports3"), ("DELETE", "other")]:
        answer = await served.call(method, f"/keys/{key}", token=token)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), key
    listed = await served.call("GET", "/keys", params={"prefix": "reports"}, token=token)
    assert [one["key"] for one in listed.json()["items"]] == ["reports/a"]
    assert (await served.call("GET", "/keys", token=token)).status_code == 403
    other = (await served.call("GET", "/keys/other")).headers["etag"].strip('"')
    assert (await served.call("GET", f"/blobs/{other}", token=token)).json()["code"] == "blob_not_found"


async def test_a_blob_is_seen_through_a_reference_of_its_tenant_only(served: Served) -> None:
    other = await served.ingot.tenants.create("other")
    token = await served.token(tenant=other.id)
    data = some_bytes(100_000)
    blob = (await put(served, "a", data)).json()["blob_id"]
    unknown = await served.call("GET", f"/blobs/{'0' * 64}", token=token)
    for path in (f"/blobs/{blob}", f"/blobs/{blob}/url", f"/blobs/{blob}/references"):
        answer = await served.call("GET", path, token=token)
        told = {**answer.json(), "detail": ""}
        assert (answer.status_code, told) == (404, {**unknown.json(), "detail": ""}), path
    begun = (await served.call("POST", "/blobs/uploads", token=token, json={"size": 100_000, "blob_id": blob})).json()
    assert begun["upload"]["state"] == "open", "it has to be sent, as if nobody had it"
    mine = (await served.call("POST", "/blobs/uploads", json={"size": 100_000, "blob_id": blob, "key": "b"})).json()
    assert (mine["upload"]["state"], mine["url"]) == ("done", None)
    assert (await put(served, "theirs", data, token=token)).status_code == 201
    assert (await served.call("GET", f"/blobs/{blob}", token=token)).content == data
    assert (await served.ingot.blobs.metrics()).blobs == 1


async def test_a_quota_is_exact_and_says_what_is_taken(served: Served) -> None:
    await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=250_000))
    assert (await put(served, "a", some_bytes(100_000))).status_code == 201
    for over in (some_bytes(150_001), in_pieces(some_bytes(400_000))):
        answer = await served.call("PUT", "/keys/b", content=over)
        assert (answer.status_code, answer.json()["code"]) == (507, "quota_exceeded")
        assert (answer.json()["usage_bytes"], answer.json()["quota_bytes"]) == (100_000, 250_000)
        assert answer.headers["ingot-quota-bytes"] == "250000"
    many = await asyncio.gather(*(put(served, f"c{n}", some_bytes(50_000, n + 1)) for n in range(6)))
    assert sorted(one.status_code for one in many) == [201] * 3 + [507] * 3
    assert (await kept(served))[1] == {"bytes": 250_000, "reserved_bytes": 0, "keys": 4, "quota_bytes": 250_000}
    assert (await served.call("DELETE", "/keys/a")).status_code == 200
    assert (await put(served, "d", some_bytes(99_000))).status_code == 201
    names = [one["name"] for one in (await served.call("GET", "/events?limit=1000")).json()["items"]]
    assert "quota.warning" in names
    assert names.count("blob.stored") == 5


@pytest.mark.parametrize("scope", ["tenant", "token"])
async def test_bytes_of_which_nobody_says_how_many_come_as_long_as_there_is_room(served: Served, scope: str) -> None:
    quota, token = 300_000, None
    if scope == "tenant":
        await served.ingot.tenants.change(served.ingot.default_tenant.id, limits=Limits(quota_bytes=quota))
    else:
        token = await served.token(limits=TokenLimits(quota_bytes=quota))
    assert (await put(served, "a", some_bytes(100_000), token=token)).status_code == 201
    over = await served.call("PUT", "/keys/b", content=in_pieces(some_bytes(200_001), 20_000), token=token)
    assert (over.status_code, over.json()["code"], over.json()["scope"]) == (507, "quota_exceeded", scope)
    assert over.json()["usage_bytes"] == 100_000, "what it has brought itself is given back"
    fits = await served.call("PUT", "/keys/b", content=in_pieces(some_bytes(200_000), 20_000), token=token)
    assert fits.status_code == 201, fits.text
    used = (await served.call("GET", "/usage?of=caller", token=token)).json()
    assert (used["bytes"], used["reserved_bytes"]) == (quota, 0)
    await served.ingot.garbage_collector.run_once()
    assert len([one async for one in served.ingot.object_store.list_objects()]) == 2


async def test_a_token_has_a_quota_of_its_own(served: Served) -> None:
    token = await served.token(limits=TokenLimits(quota_bytes=1000))
    assert (await put(served, "a", some_bytes(900), token=token)).status_code == 201
    assert (await put(served, "b", some_bytes(200), token=token)).json()["scope"] == "token"
    assert (await put(served, "b", some_bytes(200))).status_code == 201
    own = (await served.call("GET", "/usage?of=caller", token=token)).json()
    assert own == {"bytes": 900, "reserved_bytes": 0, "keys": 1, "quota_bytes": 1000}
    owner = (await served.call("GET", "/keys?prefix=a")).json()["items"][0]["owner"]
    seen = await served.call("POST", "/admin/keys/purge", json={"owner": owner})
    assert seen.json() == {"keys": 1, "bytes": 900, "more": False, "dry_run": True}
    await served.call("POST", "/admin/keys/purge", json={"owner": owner, "dry_run": False})
    assert (await kept(served))[0] == ["b"]


async def test_who_goes_away_leaves_nothing(served: Served) -> None:
    gone = asyncio.Event()

    async def stops() -> Any:
        yield some_bytes(500_000)
        await gone.wait()

    sending = asyncio.create_task(served.call("PUT", "/keys/a", content=stops()))
    await until(served, reserved=True)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await until(served, reserved=False)
    assert await kept(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})


@pytest.mark.parametrize("size", [1_000, 300_000])
async def test_a_form_that_is_cut_off_leaves_nothing(served: Served, size: int) -> None:
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
    assert await kept(served) == ([], {"bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": None})
    await served.ingot.garbage_collector.run_once()
    assert [one async for one in served.ingot.object_store.list_objects()] == []
    assert (await put(served, "a", b"next")).status_code == 201
    assert await reader.read() == b""
