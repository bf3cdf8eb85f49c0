"""What has to be so of the blobs in a data folder, whenever its process dies."""

from __future__ import annotations

from pathlib import Path

import apsw
from blake3 import blake3

from ingot.engines.sqlite.opening import FILE_NAME
from tests.faults.invariants import Broken

RECOUNT = """
    WITH kept (tenant, owner, bytes, reserved, keys) AS (
        SELECT k.tenant, k.owner, b.size, 0, 1 FROM keys AS k JOIN blobs AS b ON b.number = k.blob
        UNION ALL SELECT tenant, owner, iif(state = 'done' AND key IS NULL, size, 0), reserved, 0 FROM uploads
    ),
    counted AS (
        SELECT tenant, owner, bytes, reserved, keys FROM kept
        UNION ALL SELECT tenant, '', bytes, reserved, keys FROM kept
    )
    SELECT tenant, owner, sum(bytes), sum(reserved), sum(keys) FROM (
        SELECT * FROM counted
        UNION ALL SELECT tenant, owner, -bytes, -reserved, -keys FROM usage
    )
    GROUP BY tenant, owner HAVING (sum(bytes), sum(reserved), sum(keys)) <> (0, 0, 0)
"""
# Rows that name something which is not there, and totals that are wrong.
NONE = {
    "B1 a key has no blob": "SELECT key FROM keys WHERE blob NOT IN (SELECT number FROM blobs)",
    "B1 a blob has neither bytes nor a place": """
        SELECT hex(id) FROM blobs WHERE place IS NULL AND number NOT IN (SELECT blob FROM blob_bytes)""",
    "B4 an object of a blob is in the trash": "SELECT place FROM blobs JOIN trash USING (place)",
    "B4 an object of an upload is in the trash": "SELECT place FROM uploads JOIN trash USING (place)",
    "B6 a blob has no reference and no tombstone": """
        SELECT hex(id) FROM blobs
        WHERE number NOT IN (SELECT blob FROM keys UNION SELECT blob FROM tombstones)
            AND id NOT IN (SELECT blob_id FROM uploads WHERE blob_id IS NOT NULL AND state <> 'failed')""",
    "B6 a tombstone has no blob": "SELECT blob FROM tombstones WHERE blob NOT IN (SELECT number FROM blobs)",
    "B8 usage is not what a recount says": RECOUNT,
    "the totals are wrong": """
        SELECT * FROM blob_totals
        WHERE (blobs, bytes) <> (SELECT count(*), coalesce(sum(size), 0) FROM blobs)""",
}


def check_blobs(folder: Path, database: Path) -> None:
    """Check a folder that no process uses, by a copy of its database. Raises `Broken`."""
    connection = apsw.Connection(str(database / FILE_NAME))
    try:
        for what, statement in NONE.items():
            if found := list(connection.execute(statement)):
                raise Broken(f"{what}: {found[:5]}")
        _check_objects(folder, connection)
    finally:
        connection.close()


def _check_objects(folder: Path, connection: apsw.Connection) -> None:
    blobs = dict(connection.execute("SELECT place, id FROM blobs WHERE place IS NOT NULL"))
    others = "SELECT place FROM uploads WHERE place IS NOT NULL UNION SELECT place FROM trash"
    known = {place for (place,) in connection.execute(others)}
    whole = {path.name: path for path in folder.glob("blobs/??/*")}
    for place, id in blobs.items():
        if place not in whole:
            raise Broken(f"B1 the object {place} is gone")
        if blake3(whole[place].read_bytes()).digest() != id:
            raise Broken(f"B2 the object {place} is not what it was")
    unknown = whole.keys() - blobs.keys() - known
    unknown |= {path.name for path in folder.glob("blobs/uploads/*")} - known - blobs.keys()
    if unknown:
        raise Broken(f"B6 nobody knows of {sorted(unknown)}")


def check_emptied(folder: Path, database: Path) -> None:
    """The collector has had its time: nothing is left but what is referred to, and uploads under way."""
    connection = apsw.Connection(str(database / FILE_NAME))
    try:
        free = """SELECT hex(id) FROM blobs WHERE number NOT IN (SELECT blob FROM keys)
            AND id NOT IN (SELECT blob_id FROM uploads WHERE blob_id IS NOT NULL AND state IN ('open', 'verifying'))"""
        for what, statement in {"a blob": free, "trash": "SELECT place FROM trash"}.items():
            if found := list(connection.execute(statement)):
                raise Broken(f"B6 {what} has stayed: {found[:5]}")
        named = (
            "SELECT place FROM blobs WHERE place IS NOT NULL UNION SELECT place FROM uploads WHERE place IS NOT NULL"
        )
        known = {place for (place,) in connection.execute(named)}
    finally:
        connection.close()
    there = {path.name for shelf in ("??", "uploads") for path in folder.glob(f"blobs/{shelf}/*")}
    if there - known:
        raise Broken(f"B6 objects have stayed: {sorted(there - known)}")
