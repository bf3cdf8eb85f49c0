"""The engine and the object store of servers that are killed: either engine, with a folder or a bucket."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import asyncpg
import msgspec

from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.kernel.ids import new_id
from ingot.settings import Settings
from tests import s3
from tests.postgres import TEMPLATE, Database, create_database, server_url
from tests.waiting import eventually

Rows = dict[str, list[tuple[Any, ...]]]
LIST_OBJECTS_MAX = 1000


class StoredObjects(NamedTuple):
    """The storage keys in an object store: whole objects, each with a function that reads it, and unfinished ones."""

    whole: dict[str, Callable[[], bytes]]
    unfinished: set[str]


class BlobEnvironment:
    """An engine and an object store, named as in the conformance suite."""

    def __init__(self, folder: Path, engine: str, objects: str) -> None:
        self.engine = engine
        self.objects = objects
        self.unknown_objects = 0  # Objects that no row refers to. Clients can leave some in a bucket.
        self.settings = Settings(data=folder / "data")
        self._copy = folder / "copy"
        self._database: Database | None = None
        if engine == "postgres":
            self._database = asyncio.run(_new_database())
            self._set(database_url=self._database.server_url)
        if objects == "s3":
            self._set(
                s3_bucket=s3.bucket(),
                s3_endpoint=s3.server_url(),
                s3_access_key=s3.ACCESS_KEY,
                s3_secret_key=s3.SECRET_KEY,
                s3_prefix=f"{new_id()}/",
            )

    def read(self, statements: dict[str, str]) -> Rows | None:
        """Run statements on the database, which no server uses. Return `None` if it does not exist yet."""
        if self._database is not None:
            return asyncio.run(_read_postgres(self._database, statements))
        return self._read_copy(statements)

    def find(self) -> StoredObjects:
        """Return all stored objects."""
        return self._in_bucket() if self.objects == "s3" else self._in_folder()

    def close(self) -> None:
        """Drop the database."""
        if self._database is not None:
            asyncio.run(_drop_database(self._database))

    def _set(self, **settings: Any) -> None:
        self.settings = msgspec.structs.replace(self.settings, **settings)

    def _read_copy(self, statements: dict[str, str]) -> Rows | None:
        """Read a copy of the database, because the next server has to recover the original."""
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            if (self.settings.data / name).exists():
                shutil.copyfile(self.settings.data / name, self._copy / name)
        if not (self._copy / FILE_NAME).exists():
            return None
        connection = apsw.Connection(str(self._copy / FILE_NAME))
        try:
            return {name: list(connection.execute(statement)) for name, statement in statements.items()}
        finally:
            connection.close()

    def _in_folder(self) -> StoredObjects:
        folder = self.settings.data / "blobs"
        whole = {path.name: path.read_bytes for path in folder.glob("??/*")}
        return StoredObjects(whole, {path.name for path in folder.glob("uploads/*")})

    def _in_bucket(self) -> StoredObjects:
        client, bucket = s3.client_of(s3.server_url()), s3.bucket()
        query = {"Bucket": bucket, "Prefix": f"{self.settings.s3_prefix}blobs/"}
        whole: dict[str, Callable[[], bytes]] = {}
        for page in client.get_paginator("list_objects_v2").paginate(**query):
            for item in page.get("Contents", ()):
                whole[_storage_key_of(item["Key"])] = partial(_body_of, client, bucket, item["Key"])
        uploads = client.list_multipart_uploads(**query, MaxUploads=LIST_OBJECTS_MAX).get("Uploads", ())
        return StoredObjects(whole, {_storage_key_of(item["Key"]) for item in uploads})


def _storage_key_of(key: str) -> str:
    return key.rpartition("/")[2]


def _body_of(client: Any, bucket: str, key: str) -> bytes:
    body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


async def _new_database() -> Database:
    return await create_database(server_url(), f"kills_{new_id().replace('-', '')}", TEMPLATE)


async def _drop_database(database: Database) -> None:
    admin = await asyncpg.connect(server_url())
    try:
        await admin.execute(f"DROP DATABASE {database.name} WITH (FORCE)")
    finally:
        await admin.close()


async def _read_postgres(database: Database, statements: dict[str, str]) -> Rows:
    """Wait until the sessions of a killed server have ended, and read."""
    owner = await asyncpg.connect(database.owner_url)
    try:

        async def is_quiet() -> bool:
            connected = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'ingot_server' AND datname = $1"
            return not await owner.fetchval(connected, database.name)

        await eventually(is_quiet)
        return {name: [tuple(row) for row in await owner.fetch(statement)] for name, statement in statements.items()}
    finally:
        await owner.close()
