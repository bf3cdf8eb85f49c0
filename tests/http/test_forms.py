"""Forms: uploads are read as streams, and malformed forms are rejected before they cost much."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingot.http.forms import FIELD_BYTES_MAX, FIELDS_MAX, Form, FormTooLarge, MalformedForm
from ingot.http.problems import UnsupportedMedia
from ingot.http.request import Headers, RequestBody
from ingot.kernel.errors import IngotError, InvalidInput
from tests.http.byte_routes import MIB, ByteRoutes
from tests.http.curl import curl
from tests.http.serving import Served, serving

FORM = "multipart/form-data; boundary=b"
END = b"--b--\r\n"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", extra_routes=ByteRoutes().routes()) as served:
        yield served


def part(name: str, value: bytes = b"", more: str = "", **headers: str) -> bytes:
    lines = [f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n']
    lines += [f"{header.replace('_', '-')}: {text}\r\n" for header, text in headers.items()]
    return "".join(lines).encode() + b"\r\n" + value + b"\r\n"


def body_of(content: bytes, content_type: str | None = FORM, *, step: int = 1 << 20) -> RequestBody:
    """A body that arrives in pieces of this size."""
    pieces = [content[start : start + step] for start in range(0, len(content), step)] or [b""]

    async def receive() -> dict[str, Any]:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    headers = [] if content_type is None else [(b"content-type", content_type.encode("latin-1"))]
    return RequestBody(Headers(headers), receive, bytes_max=None)


async def read(
    content: bytes, content_type: str | None = FORM, *, step: int = 1 << 20
) -> tuple[dict[str, str], bytes | None]:
    """The fields of a form, and its file."""
    form = await Form.read(body_of(content, content_type, step=step), file="blob")
    if form.file is None:
        return form.fields, None
    return form.fields, b"".join([piece async for piece in form.file.chunks()])


# -- valid forms ----------------------------------------------------------------------------------------------


@pytest.mark.curl
async def test_curl_sends_a_file_with_its_key(site: Served, tmp_path: Path) -> None:
    file = tmp_path / 'f\u00fcr "alle".bin'
    file.write_bytes(b"\r\n--b\r\n" * 1000)
    printed = await curl(
        "-F",
        "key=a/b\u00fc",
        "-F",
        f'blob=@"{str(file).replace(chr(34), chr(92) + chr(34))}";type=image/png',
        f"{site.url}/bytes/form",
    )
    received = httpx.Response(200, text=printed).json()
    assert received["fields"] == received["fields_before_file"] == {"key": "a/b\u00fc"}
    assert (received["size"], received["content_type"]) == (7000, "image/png")
    assert received["name"].startswith("f\u00fcr ")


async def test_httpx_sends_a_file_with_its_key(site: Served) -> None:
    response = await site.client.post("/bytes/form", data={"key": "k"}, files={"blob": ("n.txt", b"x" * (3 * MIB))})
    received = response.json()
    assert (received["fields_before_file"], received["name"], received["size"]) == ({"key": "k"}, "n.txt", 3 * MIB)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    "value", [b"", b"x", b"\r", b"\r\n--bx", b"\r\n--", b"--b--", b"\r\n\r\n--bb\r\n--bc", bytes(range(256))]
)
async def test_a_file_is_read_whole_whatever_the_size_of_the_pieces(step: int, value: bytes) -> None:
    whole = part("key", b"k") + part("blob", value, '; filename="f"') + END
    assert await read(whole, step=step) == ({"key": "k"}, value)


async def test_a_form_without_a_file_has_only_fields() -> None:
    assert await read(part("a", b"1") + part("b", b"") + END) == ({"a": "1", "b": ""}, None)
    assert await read(END) == ({}, None)


async def test_a_boundary_may_be_quoted() -> None:
    assert await read(part("a", b"1") + END, 'Multipart/Form-Data; charset=utf-8; boundary="b"') == ({"a": "1"}, None)


# -- malformed forms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "content_type", "error"),
    [
        (END, None, UnsupportedMedia),
        (END, "application/json", UnsupportedMedia),
        (END, "multipart/mixed; boundary=b", UnsupportedMedia),
        (END, "multipart/form-data", MalformedForm),
        (END, "multipart/form-data; boundary=", MalformedForm),
        (END, f"multipart/form-data; boundary={'b' * 3000}", MalformedForm),
        (END, "multipart/form-data; boundary=c", MalformedForm),
        (END, "multipart/form-data" + ';"' * 30_000, MalformedForm),
        (b"", FORM, MalformedForm),
        (b"x" * 1000, FORM, MalformedForm),
        (b"--b", FORM, MalformedForm),
        (part("a", b"1"), FORM, MalformedForm),
        (part("a", b"1") + b"--b", FORM, MalformedForm),
        (part("blob", b"1", '; filename="f"'), FORM, MalformedForm),
        (b"--b\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nno header\r\n\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\n" + b"a: b\r\n" * 2 + b"\r\nx\r\n" + END, FORM, MalformedForm),
        (b"--b\r\nx: " + b"a" * 100_000, FORM, MalformedForm),
        (b"--b\r\n" + b"a" * 100_000, FORM, MalformedForm),
        (b"--b\r\n" + b"".join(b"x%d: a\r\n" % n for n in range(1000)), FORM, MalformedForm),
        (part("a", b"\xff") + END, FORM, InvalidInput),
        (part("a") + part("a") + END, FORM, InvalidInput),
        (part("a", b"x", '; filename="f"') + END, FORM, InvalidInput),
        (part("blob", b"x", '; filename="f"') + part("a") + END, FORM, InvalidInput),
        (part("blob", b"x", '; filename="f"') * 2 + END, FORM, InvalidInput),
        (part("blob", b"x", Content_Type="multipart/mixed; boundary=c") + END, FORM, InvalidInput),
        (part("blob", b"x", Content_Transfer_Encoding="base64") + END, FORM, InvalidInput),
        (part("a", b"x" * (FIELD_BYTES_MAX + 1)) + END, FORM, FormTooLarge),
        (b"".join(part(str(n)) for n in range(FIELDS_MAX + 1)) + END, FORM, FormTooLarge),
        (b"\r\n" * 1_000_000, FORM, FormTooLarge),
        (part("blob", b"\r\n--bx" * 1_000_000) + END, FORM, FormTooLarge),
        (part("blob", b"x") + END + b"x" * 1_000_000, FORM, FormTooLarge),
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 100])
async def test_a_malformed_or_oversized_form_raises_its_error(
    content: bytes, content_type: str | None, error: type[IngotError], step: int
) -> None:
    with pytest.raises(error) as caught:
        await read(content, content_type, step=step)
    assert type(caught.value) is error


async def test_a_form_with_the_maximum_of_fields_is_accepted() -> None:
    whole = b"".join(part(str(n), b"x" * FIELD_BYTES_MAX) for n in range(FIELDS_MAX)) + END
    fields, _ = await read(whole)
    assert len(fields) == FIELDS_MAX


@pytest.mark.curl
async def test_a_form_with_a_million_parts_is_rejected_early(site: Served, tmp_path: Path) -> None:
    file = tmp_path / "parts"
    file.write_bytes(b"".join(part(str(number)) for number in range(1_000_000)))
    arguments = ["-H", f"content-type: {FORM}", "--data-binary", f"@{file}", "-w", " %{http_code} %{size_upload}"]
    for expect in ("Expect:", "Expect: 100-continue"):
        printed = await curl(*arguments, "-H", expect, f"{site.url}/bytes/form")
        response, status, sent = printed.rsplit(" ", 2)
        assert (status, '"code":"form_too_large"' in response) == ("413", True)
        assert int(sent) < 32 * MIB


async def test_a_rejected_form_gets_a_problem_response(site: Served) -> None:
    for content_type, content, status in (
        ("text/plain", b"x", 415),
        (FORM, b"x", 400),
        (FORM, part("a") * 2, 422),
        (FORM, part("a", b"x" * 10_000), 413),
    ):
        response = await site.client.post("/bytes/form", content=content, headers={"content-type": content_type})
        assert response.status_code == status, response.text
