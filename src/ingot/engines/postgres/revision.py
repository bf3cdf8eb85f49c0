"""The revision of the schema: which one this program has, and which one was applied to a database last.

Raise `REVISION` with every change of migrations, views, functions, grants, or constants in them, and set `DIGEST`; a
test fails until then. It shows which of two builds is newer.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import import_module, resources
from typing import Final

import msgspec

from ingot.engines.migrations import Migration, read_migrations
from ingot.kernel.build import read_build

REVISION: Final = 2
DIGEST: Final = "b82276f9139b666c5fb4f52655f3e3e03c825a559aa6bb1bb21d999cb57b5bc3"
# Programs from this revision on can use the schema. Raise it when something that an earlier release needs is removed or
# changes its meaning; before that, keep it for one release.
OLDEST_REVISION: Final = 1
_APPLIED: Final = re.compile(r"revision (\d+), for programs from revision (\d+) on, by ingot (\S+), digest ([0-9a-f]+)")
_CONSTANT_REFERENCE: Final = re.compile(r"\{([a-z_.]+)\.([A-Z_]+)\}")
_GRANTED_FUNCTIONS: Final = re.compile(r"GRANT EXECUTE ON FUNCTION\s+([^;]+?)\s+TO (\w+);")


class AppliedRevision(msgspec.Struct, frozen=True):
    """The revision of a database, from the comment of its schema. It is 0 if no program recorded one."""

    revision: int = 0
    oldest: int = 0
    version: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, comment: str | None) -> AppliedRevision:
        """Parse the comment of a schema."""
        match = _APPLIED.fullmatch(comment or "")
        return cls() if match is None else cls(int(match[1]), int(match[2]), match[3], match[4])

    @classmethod
    def of_program(cls) -> AppliedRevision:
        """Return the revision that this program applies."""
        return cls(REVISION, OLDEST_REVISION, read_build().version, schema_digest())

    @property
    def origin(self) -> str:
        """The program that applied the revision."""
        return f"ingot {self.version}" if self.version else "an earlier version"

    def comment(self) -> str:
        """Return the comment to store."""
        return (
            f"revision {self.revision}, for programs from revision {self.oldest} on, by ingot {self.version}, "
            f"digest {self.digest}"
        )


@cache
def migrations() -> list[Migration]:
    """Return all migrations of this program, in order."""
    return read_migrations("ingot.engines.postgres.migrations")


@cache
def sql_texts() -> list[str]:
    """Return the SQL that is always applied completely: views, functions, grants."""
    package = resources.files("ingot.engines.postgres")
    functions = sorted(package.joinpath("functions").iterdir(), key=lambda file: file.name)
    texts = [file.read_text(encoding="utf-8") for file in functions if file.name.endswith(".sql")]
    views, grants = (package.joinpath(name).read_text(encoding="utf-8") for name in ("views.sql", "grants.sql"))
    return [views, *(_CONSTANT_REFERENCE.sub(_constant_value, text) for text in texts), grants]


@cache
def schema_digest() -> str:
    """Return the digest of all SQL that a migration applies."""
    texts = [*(migration.text for migration in migrations()), *sql_texts()]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def granted_functions(role: str) -> list[str]:
    """Return the names of the functions that a role can call."""
    *_, grants = sql_texts()
    texts = [functions for functions, grantee in _GRANTED_FUNCTIONS.findall(grants) if grantee == role]
    return [name.strip().removeprefix("ingot.") for text in texts for name in text.split(",")]


def _constant_value(reference: re.Match[str]) -> str:
    """Return the number of a Python constant such as `{jobs.checks.TAGS_MAX}`, so that SQL does not repeat it."""
    return f"{getattr(import_module(f'ingot.{reference[1]}'), reference[2]):.0f}"
