"""What has to be so of blobs, whenever their server dies: in the rows of both engines, and of the objects."""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from tests.faults.blob_environment import Premises
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
RECOUNT_POSTGRES = """
    WITH kept (tenant, owner, bytes, reserved, keys) AS (
        SELECT k.tenant, k.owner, b.size, 0, 1 FROM ingot.keys AS k JOIN ingot.blobs AS b ON b.digest = k.blob
        UNION ALL
        SELECT tenant, owner, CASE WHEN state = 'done' AND key IS NULL THEN size ELSE 0 END, reserved, 0
        FROM ingot.uploads
    ),
    counted AS (
        SELECT tenant, owner, bytes, reserved, keys FROM kept
        UNION ALL SELECT tenant, '', bytes, reserved, keys FROM kept
        UNION ALL SELECT tenant, owner, -bytes, -reserved, -keys FROM ingot.usage
    )
    SELECT tenant, owner, sum(bytes), sum(reserved), sum(keys) FROM counted
    GROUP BY tenant, owner HAVING (sum(bytes), sum(reserved), sum(keys)) <> (0, 0, 0)
"""


class Rules(NamedTuple):
    """Statements about one engine: what finds nothing, and which objects have a name."""

    none: dict[str, str]  # Rows that name something which is not there, and totals that are wrong.
    blobs: str  # The places of blobs, and their digests.
    others: str  # The places of uploads, and of trash.
    left: dict[str, str]  # What finds nothing when the collector has had its time.
    named: str  # The places that have an object then.


RULES = {
    "sqlite": Rules(
        none={
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
        },
        blobs="SELECT place, id FROM blobs WHERE place IS NOT NULL",
        others="SELECT place FROM uploads WHERE place IS NOT NULL UNION SELECT place FROM trash",
        left={
            "a blob": """
                SELECT hex(id) FROM blobs WHERE number NOT IN (SELECT blob FROM keys) AND id NOT IN (
                    SELECT blob_id FROM uploads WHERE blob_id IS NOT NULL AND state IN ('open', 'verifying'))""",
            "trash": "SELECT place FROM trash",
        },
        named="SELECT place FROM blobs WHERE place IS NOT NULL UNION SELECT place FROM uploads WHERE place IS NOT NULL",
    ),
    "postgres": Rules(
        none={
            "B1 a key has no blob": "SELECT key FROM ingot.keys WHERE blob NOT IN (SELECT digest FROM ingot.blobs)",
            "B1 a blob has neither bytes nor a place": """
                SELECT encode(digest, 'hex') FROM ingot.blobs LEFT JOIN ingot.blob_contents AS c USING (digest)
                WHERE c.checks IS NULL OR (place IS NULL) <> (c.inline IS NOT NULL)""",
            "B4 an object of a blob is in the trash": "SELECT place FROM ingot.blobs JOIN ingot.trash USING (place)",
            "B4 an object of an upload is in the trash": """
                SELECT place FROM ingot.uploads JOIN ingot.trash USING (place)""",
            "B6 a blob has no reference and no tombstone": """
                SELECT encode(digest, 'hex') FROM ingot.blobs WHERE digest NOT IN (
                    SELECT blob FROM ingot.keys UNION SELECT digest FROM ingot.tombstones
                    UNION SELECT blob FROM ingot.uploads WHERE blob IS NOT NULL AND state <> 'failed')""",
            "B6 bytes have no blob": """
                SELECT encode(digest, 'hex') FROM ingot.blob_contents
                WHERE digest NOT IN (SELECT digest FROM ingot.blobs)""",
            "B8 usage is not what a recount says": RECOUNT_POSTGRES,
            "the totals are wrong": """
                SELECT * FROM (SELECT coalesce(sum(blobs), 0), coalesce(sum(bytes), 0) FROM ingot.blob_totals) AS t
                EXCEPT SELECT count(*), coalesce(sum(size), 0) FROM ingot.blobs""",
        },
        blobs="SELECT place, digest FROM ingot.blobs WHERE place IS NOT NULL",
        others="SELECT place FROM ingot.uploads WHERE place IS NOT NULL UNION SELECT place FROM ingot.trash",
        left={
            "a blob": """
                SELECT encode(digest, 'hex') FROM ingot.blobs WHERE digest NOT IN (
                    SELECT blob FROM ingot.keys UNION SELECT blob FROM ingot.uploads
                    WHERE blob IS NOT NULL AND state IN ('open', 'verifying'))""",
            "a tombstone without a blob": """
                SELECT encode(digest, 'hex') FROM ingot.tombstones
                WHERE digest NOT IN (SELECT digest FROM ingot.blobs)""",
            "trash": "SELECT place FROM ingot.trash",
        },
        named="""SELECT place FROM ingot.blobs WHERE place IS NOT NULL
            UNION SELECT place FROM ingot.uploads WHERE place IS NOT NULL""",
    ),
}


def check_blobs(premises: Premises) -> None:
    """Check what no process uses. Raises `Broken`."""
    rules = RULES[premises.engine]
    rows = premises.read({**rules.none, "blobs": rules.blobs, "others": rules.others})
    if rows is None:
        return
    for what in rules.none:
        if rows[what]:
            raise Broken(f"{what}: {rows[what][:5]}")
    blobs: dict[str, bytes] = dict(rows["blobs"])
    found = premises.find()
    for place, id in blobs.items():
        if place not in found.whole:
            raise Broken(f"B1 the object {place} is gone")
        if blake3(found.whole[place]()).digest() != id:
            raise Broken(f"B2 the object {place} is not what it was")
    known = {place for (place,) in rows["others"]}
    _expect_known(premises, (found.whole.keys() | found.others) - blobs.keys() - known)


def check_emptied(premises: Premises) -> None:
    """The collector has had its time: nothing is left but what is referred to, and uploads under way."""
    rules = RULES[premises.engine]
    rows = premises.read({**rules.left, "named": rules.named})
    if rows is None:
        return
    for what in rules.left:
        if rows[what]:
            raise Broken(f"B6 {what} has stayed: {rows[what][:5]}")
    found = premises.find()
    _expect_known(premises, (found.whole.keys() | found.others) - {place for (place,) in rows["named"]})


def _expect_known(premises: Premises, unknown: set[str]) -> None:
    """No server leaves an object that no row knows. A client can, in a bucket: those are counted."""
    premises.strangers = max(premises.strangers, len(unknown))
    if unknown and premises.objects == "local":
        raise Broken(f"B6 nobody knows of {sorted(unknown)}")
