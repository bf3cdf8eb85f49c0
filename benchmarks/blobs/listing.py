"""Pages of 1,000 keys, in a store with few keys and in one with many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import apsw

from benchmarks.blobs.client_process import ClientProcess
from benchmarks.blobs.large_blobs import KEYS, authorized
from benchmarks.blobs.measurements import Measurements
from benchmarks.blobs.socket_client import TransferRequest
from benchmarks.worker import ingot_server
from benchmarks.worker.ingot_server import IngotServer
from ingot.engines.sqlite.folder_lock import FolderLock
from ingot.engines.sqlite.store_folder import FILE_NAME

FEW: Final = 10_000
MANY: Final = 1_000_000
PAGE: Final = 1_000
STRIDE: Final = 7_919  # Neighboring keys have blobs that are not neighbors.
QUERY_BY_PAGE: Final = {"first": "", "later": "&prefix=b/"}

_BLOBS: Final = """
WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < :keys)
INSERT INTO blobs (number, id, sha256, size, place, damaged, verified_at)
SELECT n, randomblob(32), randomblob(32), 16, NULL, 0, :at FROM n
"""
_BYTES: Final = "INSERT INTO blob_bytes (blob, bytes) SELECT number, randomblob(16) FROM blobs"
_KEYS: Final = """
WITH RECURSIVE n (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < :keys)
INSERT INTO keys (tenant, key, blob, content_type, original_name, owner, uploaded_at, upload)
SELECT (SELECT number FROM tenants WHERE slug = 'default'), printf('%s/%08d', iif(n * 2 < :keys, 'a', 'b'), n),
    1 + n * :stride % :keys, 'application/octet-stream', NULL, 'bench', :at + n, printf('%032x', n)
FROM n
"""
_TOTALS: Final = "UPDATE blob_totals SET blobs = blobs + :keys, bytes = bytes + :keys * 16"
_USAGE: Final = """
INSERT INTO usage (tenant, owner, bytes, reserved, keys, key_bytes)
SELECT number, owner, :keys * 16, 0, :keys, :keys * 16
FROM tenants, (SELECT '' AS owner UNION ALL SELECT 'bench') WHERE slug = 'default'
"""


def fill(folder: Path, keys: int) -> None:
    """Add keys, each with its own blob, to the closed store in a folder. The rows are those the store would write."""
    lock = FolderLock(folder)
    try:
        connection = apsw.Connection(str(folder / FILE_NAME), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.pragma("synchronous", 0)
            connection.pragma("cache_size", -262_144)
            with connection:
                at = connection.execute("SELECT clock FROM store").get
                for statement in (_BLOBS, _BYTES, _KEYS, _TOTALS, _USAGE):
                    connection.execute(statement, {"keys": keys, "stride": STRIDE, "at": at})
        finally:
            connection.close()
    finally:
        lock.release()


@contextmanager
def server_with_keys(folder: Path, keys: int) -> Iterator[IngotServer]:
    """Run a server with this number of keys until the end of the block."""
    server_folder = Path(tempfile.mkdtemp(dir=folder))
    with ingot_server.serving(server_folder):
        pass
    fill(server_folder / "data", keys)
    with ingot_server.serving(server_folder) as server:
        yield server


def compare(client: ClientProcess, folder: Path, measurements: Measurements, rounds: int) -> None:
    """Read pages of both stores in turn."""
    with server_with_keys(folder, FEW) as few, server_with_keys(folder, MANY) as many:
        for _ in range(rounds):
            for page, query in QUERY_BY_PAGE.items():
                for name, server in (("few", few), ("many", many)):
                    url = f"{server.url}{KEYS}?limit={PAGE}{query}"
                    result = client.do(TransferRequest(what="call", url=url, headers=authorized(server)))
                    assert result.body.count('"key":') == PAGE, "the page is full"
                    measurements.record(f"list {page} {name}", result.seconds * 1000)
