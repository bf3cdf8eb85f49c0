"""Two server processes on one database, one after the other or at once: secret keys, blob folders and reservations."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ingot.client import Client
from ingot.kernel.ids import new_id
from tests.postgres import Database, database_for
from tests.s3 import ACCESS_KEY, SECRET_KEY, bucket, server_url
from tests.system.programs import run_ingot, served
from tests.waiting import until

pytestmark = pytest.mark.postgres
MIB = 1024 * 1024


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    database = asyncio.run(database_for(tmp_path))
    monkeypatch.setenv("INGOT_DATABASE_URL", database.server_url)
    return database


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shared_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all servers use the same folder of a bucket."""
    monkeypatch.setenv("INGOT_S3_BUCKET", bucket())
    monkeypatch.setenv("INGOT_S3_ENDPOINT", server_url())
    monkeypatch.setenv("INGOT_S3_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("INGOT_S3_SECRET_KEY", SECRET_KEY)
    monkeypatch.setenv("INGOT_S3_PREFIX", f"shared-{new_id()}/")


@pytest.mark.s3
@pytest.mark.usefixtures("database", "shared_bucket")
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


def test_a_second_server_with_another_blob_folder_does_not_start(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_SECRET_KEY", secrets.token_hex(32))
    large = b"x" * 100_000
    with served(tmp_path / "a") as (_, url):
        token = (tmp_path / "a" / "operator.token").read_text(encoding="utf-8").strip()
        second = run_ingot("serve", "--data", str(tmp_path / "b"), "--port", "0")
        assert (second.code, "keeps its blobs in another folder" in second.stderr, "Traceback" in second.stderr) == (
            1,
            True,
            False,
        ), second.stderr
        assert "INGOT_S3_BUCKET" in second.stderr
        checks = {
            folder: run_ingot("doctor", env={**os.environ, "INGOT_DATA": str(tmp_path / folder)}).stdout
            for folder in ("a", "b")
        }
        assert (
            "keeps its blobs in another folder" in checks["a"],
            "keeps its blobs in another folder" in checks["b"],
        ) == (
            False,
            True,
        ), checks
        with Client(url, token=token) as client:
            client.blobs.put(large, "large")
            assert client.blobs.get("large") == large
    with served(tmp_path / "a") as (_, url), Client(url, token=token) as client:
        assert client.blobs.get("large") == large


def test_a_put_that_was_killed_with_its_server_keeps_no_reservation(
    request: pytest.FixtureRequest, tmp_path: Path, engine: str
) -> None:
    if engine == "postgres":
        request.getfixturevalue("database")
    folder = tmp_path / "a"
    with served(folder) as (process, url):
        token = (folder / "operator.token").read_text(encoding="utf-8").strip()
        with Client(url, token=token) as client, begun_put(url, token, MIB) as connection:
            client.admin.change_tenant("default", limits={"quota_bytes": 2 * MIB})
            session = httpx.post(
                f"{url}/api/v1/blobs/uploads",
                headers={"authorization": f"Bearer {token}"},
                json={"size": 10, "key": "s"},
            )
            assert session.status_code == 201, session.text
            until(lambda: client.blobs.usage().reserved_bytes == MIB + 10)
            process.kill()
            process.wait()
            connection.close()
    with served(folder) as (_, url), Client(url, token=token) as client:
        assert client.blobs.usage().reserved_bytes == 10, "the reservation of the upload session must stay"
        client.blobs.put(b"y" * (MIB + 1000), "k")
        assert client.blobs.usage().bytes == MIB + 1000


@contextmanager
def begun_put(url: str, token: str, size: int) -> Iterator[socket.socket]:
    """Send the head and the first bytes of a PUT of this size, and no more."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        lines = (
            "PUT /api/v1/keys/k HTTP/1.1",
            f"host: {host}",
            f"authorization: Bearer {token}",
            f"content-length: {size}",
        )
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + b"x" * 100_000)
        yield connection
