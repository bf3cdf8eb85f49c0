"""Servers of one database have one key: what one of them signs, the others take."""

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
    """What a server does with its key when it starts."""
    async with services.open(settings=settings, maintenance=False) as ingot:
        await services.require_same_secret_key(ingot, replace=new)


async def test_another_key_is_refused_and_a_new_one_is_said_to_be(tmp_path: Path, database: Database) -> None:
    first, second = (Settings(data=tmp_path / name, database_url=database.server_url) for name in ("a", "b"))
    await start(first)
    await start(first)
    for _ in range(2):
        with pytest.raises(SecretKeyUnusable, match="another secret key") as caught:
            await start(second)
        assert "INGOT_SECRET_KEY" in caught.value.hint
    told = (tmp_path / "a" / "secret.key").read_text(encoding="ascii").strip()
    await start(Settings(data=tmp_path / "b", database_url=database.server_url, secret_key=told))
    await start(second, new=True)
    await start(second)
    with pytest.raises(SecretKeyUnusable):
        await start(first)


async def test_of_servers_that_start_at_once_with_keys_of_their_own_one_starts(
    tmp_path: Path, database: Database
) -> None:
    every = [Settings(data=tmp_path / str(number), database_url=database.server_url) for number in range(4)]
    ended = await asyncio.gather(*map(start, every), return_exceptions=True)
    assert [type(one) for one in ended if one is not None] == [SecretKeyUnusable] * 3


async def test_a_server_takes_what_another_with_its_key_has_signed(tmp_path: Path, database: Database) -> None:
    key = secrets.token_hex(32)
    of_both: dict[str, Any] = {"database_url": database.server_url, "secret_key": key}
    first, second = (Settings(data=tmp_path / name, **of_both) for name in ("a", "b"))
    async with serving(tmp_path / "a", first) as one:
        made = (await one.call("PUT", "/keys/small", content=b"hello")).json()
        address = (await one.call("GET", f"/blobs/{made['blob_id']}/url")).json()["url"]
        async with services.open(settings=second, maintenance=False) as ingot:
            query = address.partition("?")[2].encode()
            assert ingot.signer.verify("GET", f"/api/v1/blobs/{made['blob_id']}/bytes", query)["name"]


async def test_a_sqlite_file_has_one_server_with_any_key(tmp_path: Path) -> None:
    await start(Settings(data=tmp_path))
    await start(Settings(data=tmp_path, secret_key=secrets.token_hex(32)))


def test_the_database_does_not_learn_the_key(tmp_path: Path) -> None:
    key = load_secret_keys(tmp_path)[0]
    assert key_fingerprint(key) == key_fingerprint(key) != key_fingerprint(key + b"x")
    assert key not in key_fingerprint(key)
    assert len(key_fingerprint(key)) == 32
