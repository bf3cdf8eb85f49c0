"""A server that answers, and whose store does not: who fetches a file is told which of them it is."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ingot.blobs.model import INLINE_BYTES_MAX
from ingot.client import AsyncClient
from ingot.client.errors import ServerUnreachable, StoreUnreachable
from tests.http.bucket_settings import in_bucket
from tests.http.serving import serving


@pytest.mark.s3
async def test_a_store_that_does_not_answer_is_not_taken_for_the_server(tmp_path: Path) -> None:
    with socket.socket() as taken:  # Bound, and nobody listens.
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with (
            serving(tmp_path / "data", in_bucket(s3_public_endpoint=nowhere)) as site,
            AsyncClient(site.url, token=site.operator, patience=0) as client,
        ):
            data = bytes(INLINE_BYTES_MAX + 1)
            assert (await client.blobs.put(data, "file")).size == len(data)
            with pytest.raises(StoreUnreachable) as caught:
                await client.blobs.get("file")
            assert nowhere in caught.value.detail
            assert "INGOT_SERVER_URL" not in caught.value.hint
        async with AsyncClient(nowhere, token=site.operator, patience=0) as client:
            with pytest.raises(ServerUnreachable) as told:
                await client.blobs.get("file")
            assert not isinstance(told.value, StoreUnreachable)
            assert "INGOT_SERVER_URL" in told.value.hint
