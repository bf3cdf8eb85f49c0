"""A download distinguishes an unreachable object store from an unreachable server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.client import AsyncClient
from ingot.client.errors import ServerUnreachable, StoreUnreachable
from tests.http.bucket_settings import bucket_settings
from tests.http.serving import serving


@pytest.mark.s3
async def test_an_unreachable_store_is_not_reported_as_an_unreachable_server(tmp_path: Path) -> None:
    with socket.socket() as bound:  # Bound, but not listening.
        bound.bind(("127.0.0.1", 0))
        unreachable_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with (
            serving(tmp_path / "data", bucket_settings(s3_public_endpoint=unreachable_url)) as site,
            AsyncClient(site.url, token=site.operator, patience=0) as client,
        ):
            data = bytes(INLINE_BYTES_MAX + 1)
            assert (await client.blobs.put(data, "file")).size == len(data)
            with pytest.raises(StoreUnreachable) as caught:
                await client.blobs.get("file")
            assert unreachable_url in caught.value.detail
            assert "INGOT_SERVER_URL" not in caught.value.hint
        async with AsyncClient(unreachable_url, token=site.operator, patience=0) as client:
            with pytest.raises(ServerUnreachable) as unreachable:
                await client.blobs.get("file")
            assert not isinstance(unreachable.value, StoreUnreachable)
            assert "INGOT_SERVER_URL" in unreachable.value.hint
