"""Servers of one database must share one secret key, so that each accepts what another signed."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from ingot.kernel.secret_key import SecretKeyUnusable, key_fingerprint, load_secret_keys
from ingot.settings import Settings
from ingot.wiring import services
from tests.http.serving import serving
from tests.postgres import Database, database_for

pytestmark = pytest.mark.postgres


@pytest.fixture
async def database(tmp_path: Path) -> Database:
    return await database_for(tmp_path)


async def start(settings: Settings, *, new: bool = False) -> None:
    """Check the secret key as a server does when it starts."""
    async with services.open(settings=settings, maintenance=False) as ingot:
        await services.require_same_secret_key(ingot, replace=new)


async def test_a_server_with_another_key_does_not_start_unless_it_replaces_the_key(
    tmp_path: Path, database: Database
) -> None:
    first, second = (Settings(data=tmp_path / name, database_url=database.server_url) for name in ("a", "b"))
    await start(first)
    await start(first)
    for _ in range(2):
        with pytest.raises(SecretKeyUnusable, match="different secret key") as caught:
            await start(second)
        assert "INGOT_SECRET_KEY" in caught.value.hint
    first_key = (tmp_path / "a" / "secret.key").read_text(encoding="ascii").strip()
    await start(Settings(data=tmp_path / "b", database_url=database.server_url, secret_key=first_key))
    await start(second, new=True)
    await start(second)
    with pytest.raises(SecretKeyUnusable):
        await start(first)


async def test_one_of_several_servers_with_different_keys_starts(tmp_path: Path, database: Database) -> None:
    settings = [Settings(data=tmp_path / str(number), database_url=database.server_url) for number in range(4)]
    results = await asyncio.gather(*map(start, settings), return_exceptions=True)
    assert [type(error) for error in results if error is not None] == [SecretKeyUnusable] * 3


async def test_a_server_accepts_a_url_that_another_server_signed(tmp_path: Path, database: Database) -> None:
    key = secrets.token_hex(32)
    shared: dict[str, Any] = {"database_url": database.server_url, "secret_key": key}
    first, second = (Settings(data=tmp_path / name, **shared) for name in ("a", "b"))
    async with serving(tmp_path / "a", first, maintenance=False) as server:  # It does not claim the blob folder.
        stored = (await server.call("PUT", "/keys/small", content=b"hello")).json()
        url = (await server.call("GET", f"/blobs/{stored['blob_id']}/url")).json()["url"]
        async with services.open(settings=second, maintenance=False) as ingot:
            query = url.partition("?")[2].encode()
            assert ingot.signer.verify("GET", f"/api/v1/blobs/{stored['blob_id']}/bytes", query)["name"]


async def test_a_server_on_sqlite_starts_with_any_key(tmp_path: Path) -> None:
    await start(Settings(data=tmp_path))
    await start(Settings(data=tmp_path, secret_key=secrets.token_hex(32)))


def test_the_fingerprint_does_not_contain_the_key(tmp_path: Path) -> None:
    key = load_secret_keys(tmp_path)[0]
    assert key_fingerprint(key) == key_fingerprint(key) != key_fingerprint(key + b"x")
    assert key not in key_fingerprint(key)
    assert len(key_fingerprint(key)) == 32
