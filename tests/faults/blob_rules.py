"""Invariants of blobs that hold whenever their server is killed: of the rows in both engines, and of the objects."""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from tests.faults.blob_environment import BlobEnvironment
from tests.faults.invariants import Broken

RECOUNT = """
    WITH kept (tenant, owner, bytes, reserved, keys, deleted) AS (
        SELECT k.tenant, k.owner, b.size, 0, 1, 0 FROM {schema}keys AS k JOIN {schema}blobs AS b ON {blob_of_key}
        UNION ALL
        SELECT tenant, owner, CASE WHEN state = 'done' AND key IS NULL THEN size ELSE 0 END, reserved, 0, 0
        FROM {schema}uploads
        UNION ALL SELECT t.holder, t.owner, 0, 0, 0, b.size
        FROM {schema}tombstones AS t JOIN {schema}blobs AS b ON {blob_of_tombstone}
        UNION ALL SELECT holder, owner, 0, 0, 0, size FROM {schema}trash WHERE holder IS NOT NULL
    ),
    counted AS (
        SELECT * FROM kept
        UNION ALL SELECT tenant, '', bytes, reserved, keys, deleted FROM kept
        UNION ALL SELECT tenant, owner, -bytes, -reserved, -keys, -deleted FROM {schema}usage
    )
    SELECT tenant, owner, sum(bytes), sum(reserved), sum(keys), sum(deleted) FROM counted
    GROUP BY tenant, owner HAVING (sum(bytes), sum(reserved), sum(keys), sum(deleted)) <> (0, 0, 0, 0)
"""
RECOUNT_SQLITE = RECOUNT.format(schema="", blob_of_key="b.number = k.blob", blob_of_tombstone="b.number = t.blob")
RECOUNT_POSTGRES = RECOUNT.format(
    schema="ingot.",
    blob_of_key="b.holder = k.tenant AND b.digest = k.blob",
    blob_of_tombstone="b.holder = t.holder AND b.digest = t.digest",
)
# An object that was deleted stays in the trash while clients have URLs to send it again.
NEVER_DELETED = "due_at = 0"


class Rules(NamedTuple):
    """Statements for one engine."""

    violations: dict[str, str]  # Dangling references and wrong totals, by description.
    blobs: str  # The storage keys of blobs, and their digests.
    pending: str  # The storage keys of uploads and of trash.
    uncollected: dict[str, str]  # Rows that a collector which has finished must have removed, by description.
    referenced: str  # The storage keys that may have an object afterwards.


RULES = {
    "sqlite": Rules(
        violations={
            "B1 a key has no blob": "SELECT key FROM keys WHERE blob NOT IN (SELECT number FROM blobs)",
            "B1 a blob has neither bytes nor an object": """
                SELECT hex(id) FROM blobs WHERE place IS NULL AND number NOT IN (SELECT blob FROM blob_bytes)""",
            "B4 an object of a blob is in the trash": "SELECT place FROM blobs JOIN trash USING (place)",
            "B4 an object of an upload is in the trash": "SELECT place FROM uploads JOIN trash USING (place)",
            "B6 a blob has no reference and no tombstone": """
                SELECT hex(id) FROM blobs
                WHERE number NOT IN (SELECT blob FROM keys UNION SELECT blob FROM tombstones)
                    AND (holder, id) NOT IN (
                        SELECT tenant, blob_id FROM uploads WHERE blob_id IS NOT NULL AND state = 'done')""",
            "B6 a tombstone has no blob": "SELECT blob FROM tombstones WHERE blob NOT IN (SELECT number FROM blobs)",
            "B8 usage differs from a recount": RECOUNT_SQLITE,
            "the totals are wrong": """
                SELECT * FROM blob_totals
                WHERE (blobs, bytes) <> (SELECT count(*), coalesce(sum(size), 0) FROM blobs)
                    OR deleted <> (SELECT deleted FROM usage WHERE owner = '')""",
        },
        blobs="SELECT place, id FROM blobs WHERE place IS NOT NULL",
        pending="SELECT place FROM uploads WHERE place IS NOT NULL UNION SELECT place FROM trash",
        uncollected={
            "a blob": """
                SELECT hex(id) FROM blobs WHERE number NOT IN (SELECT blob FROM keys) AND (holder, id) NOT IN (
                    SELECT tenant, blob_id FROM uploads
                    WHERE blob_id IS NOT NULL AND state IN ('open', 'verifying'))""",
            "trash": f"SELECT place FROM trash WHERE {NEVER_DELETED}",
        },
        referenced="""SELECT place FROM blobs WHERE place IS NOT NULL
            UNION SELECT place FROM uploads WHERE place IS NOT NULL""",
    ),
    "postgres": Rules(
        violations={
            "B1 a key has no blob": """
                SELECT key FROM ingot.keys WHERE (tenant, blob) NOT IN (SELECT holder, digest FROM ingot.blobs)""",
            "B1 a blob has neither bytes nor an object": """
                SELECT encode(digest, 'hex') FROM ingot.blobs LEFT JOIN ingot.blob_contents AS c USING (holder, digest)
                WHERE c.checks IS NULL OR (place IS NULL) <> (c.inline IS NOT NULL)""",
            "B4 an object of a blob is in the trash": "SELECT place FROM ingot.blobs JOIN ingot.trash USING (place)",
            "B4 an object of an upload is in the trash": """
                SELECT place FROM ingot.uploads JOIN ingot.trash USING (place)""",
            "B6 a blob has no reference and no tombstone": """
                SELECT encode(digest, 'hex') FROM ingot.blobs WHERE (holder, digest) NOT IN (
                    SELECT tenant, blob FROM ingot.keys UNION SELECT holder, digest FROM ingot.tombstones
                    UNION SELECT tenant, blob FROM ingot.uploads WHERE blob IS NOT NULL AND state = 'done')""",
            "B6 bytes have no blob": """
                SELECT encode(digest, 'hex') FROM ingot.blob_contents
                WHERE (holder, digest) NOT IN (SELECT holder, digest FROM ingot.blobs)""",
            "B8 usage differs from a recount": RECOUNT_POSTGRES,
            "the totals are wrong": """
                SELECT coalesce(sum(blobs), 0), coalesce(sum(bytes), 0), coalesce(sum(deleted), 0)
                FROM ingot.blob_totals
                EXCEPT SELECT count(*), coalesce(sum(size), 0), (
                    SELECT coalesce(sum(deleted), 0) FROM ingot.usage WHERE owner = ''
                ) FROM ingot.blobs""",
        },
        blobs="SELECT place, digest FROM ingot.blobs WHERE place IS NOT NULL",
        pending="SELECT place FROM ingot.uploads WHERE place IS NOT NULL UNION SELECT place FROM ingot.trash",
        uncollected={
            "a blob": """
                SELECT encode(digest, 'hex') FROM ingot.blobs WHERE (holder, digest) NOT IN (
                    SELECT tenant, blob FROM ingot.keys UNION SELECT tenant, blob FROM ingot.uploads
                    WHERE blob IS NOT NULL AND state IN ('open', 'verifying'))""",
            "a tombstone without a blob": """
                SELECT encode(digest, 'hex') FROM ingot.tombstones
                WHERE (holder, digest) NOT IN (SELECT holder, digest FROM ingot.blobs)""",
            "trash": f"SELECT place FROM ingot.trash WHERE {NEVER_DELETED}",
        },
        referenced="""SELECT place FROM ingot.blobs WHERE place IS NOT NULL
            UNION SELECT place FROM ingot.uploads WHERE place IS NOT NULL""",
    ),
}


def check_blobs(environment: BlobEnvironment) -> None:
    """Check rows and objects while no server runs. Raises `Broken`."""
    rules = RULES[environment.engine]
    rows = environment.read({**rules.violations, "blobs": rules.blobs, "pending": rules.pending})
    if rows is None:
        return
    for what in rules.violations:
        if rows[what]:
            raise Broken(f"{what}: {rows[what][:5]}")
    blobs: dict[str, bytes] = dict(rows["blobs"])
    stored = environment.find()
    for storage_key, id in blobs.items():
        if storage_key not in stored.whole:
            raise Broken(f"B1 the object {storage_key} is missing")
        if blake3(stored.whole[storage_key]()).digest() != id:
            raise Broken(f"B2 the object {storage_key} has other bytes")
    pending_keys = {storage_key for (storage_key,) in rows["pending"]}
    _expect_known(environment, (stored.whole.keys() | stored.unfinished) - blobs.keys() - pending_keys)


def check_emptied(environment: BlobEnvironment) -> None:
    """Check that a collector which has finished left only referenced objects and open uploads. Raises `Broken`."""
    rules = RULES[environment.engine]
    rows = environment.read({**rules.uncollected, "referenced": rules.referenced})
    if rows is None:
        return
    for what in rules.uncollected:
        if rows[what]:
            raise Broken(f"B6 {what} was not collected: {rows[what][:5]}")
    stored = environment.find()
    _expect_known(
        environment, (stored.whole.keys() | stored.unfinished) - {storage_key for (storage_key,) in rows["referenced"]}
    )


def _expect_known(environment: BlobEnvironment, unknown: set[str]) -> None:
    """Fail for objects in a folder that no row refers to, and count those in a bucket, where clients can leave some."""
    environment.unknown_objects = max(environment.unknown_objects, len(unknown))
    if unknown and environment.objects == "local":
        raise Broken(f"B6 no row refers to {sorted(unknown)}")
