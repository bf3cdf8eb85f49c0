"""A page of 1,000 keys, of few and of many."""

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
STRIDE: Final = 7_919  # Keys that stand together were not made together.
ASKED: Final = {"first": "", "later": "&prefix=b/"}

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
    """Add keys, each of a blob of its own, to the closed store in a folder, as the store itself would have them."""
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
def filled(folder: Path, keys: int) -> Iterator[IngotServer]:
    """A server that has so many keys."""
    place = Path(tempfile.mkdtemp(dir=folder))
    with ingot_server.serving(place):
        pass
    fill(place / "data", keys)
    with ingot_server.serving(place) as running:
        yield running


def compare(client: ClientProcess, folder: Path, found: Measurements, rounds: int) -> None:
    """Pages of both, in turns."""
    with filled(folder, FEW) as few, filled(folder, MANY) as many:
        for _ in range(rounds):
            for which, more in ASKED.items():
                for name, running in (("few", few), ("many", many)):
                    url = f"{running.url}{KEYS}?limit={PAGE}{more}"
                    took = client.do(TransferRequest(what="ask", url=url, headers=authorized(running)))
                    assert took.body.count('"key":') == PAGE, "the page is full"
                    found.note(f"list {which} {name}", took.seconds * 1000)
