"""Two server processes on one database need the same secret key and the same blob folder."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
from pathlib import Path

import pytest

from ingot.client import Client
from ingot.kernel.errors import IngotError
from tests.postgres import Database, database_for
from tests.system.programs import run_ingot, served

pytestmark = pytest.mark.postgres


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    database = asyncio.run(database_for(tmp_path))
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    return database


@pytest.mark.usefixtures("database")
def test_a_server_with_another_secret_key_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path / "a") as (_, url):
        second = run_ingot("serve", "--data", str(tmp_path / "b"), "--port", "0")
        assert (second.code, "--new-secret-key" in second.stderr, "Traceback" in second.stderr) == (
            1,
            True,
            False,
        ), second.stderr
        monkeypatch.setenv("INGOT_SECRET_KEY", (tmp_path / "a" / "secret.key").read_text(encoding="ascii").strip())
        token = (tmp_path / "a" / "operator.token").read_text(encoding="utf-8").strip()
        with served(tmp_path / "b") as (_, other), Client(url, token=token) as client:
            client.blobs.put(b"hello", "small")
            signed_url = client.blobs.url("small").url
            downloaded = subprocess.run(
                ["curl", "-sSf", signed_url.replace(url, other)], capture_output=True, check=True
            )
            assert downloaded.stdout == b"hello"


@pytest.mark.usefixtures("database")
def test_a_server_without_the_shared_blob_folder_refuses_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_SECRET_KEY", secrets.token_hex(32))
    large = b"x" * 100_000
    with served(tmp_path / "a") as (_, url):
        token = (tmp_path / "a" / "operator.token").read_text(encoding="utf-8").strip()
        with served(tmp_path / "b") as (_, other), Client(url, token=token) as one, Client(other, token=token) as two:
            two.blobs.put(large, "large")
            with pytest.raises(IngotError) as refused:
                one.blobs.put(large, "larger")
            assert refused.value.code == "objects_elsewhere"
            (tmp_path / "larger").write_bytes(large + b"y")
            with pytest.raises(IngotError) as refused:
                one.submit("read", file=tmp_path / "larger")
            assert refused.value.code == "objects_elsewhere"
            one.blobs.put(b"hello", "small")
            assert two.blobs.get("large") == large
            assert [key.key for key in two.blobs.list()] == ["large", "small"]
