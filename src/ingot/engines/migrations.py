"""Migrations: numbered SQL files, forward only, in the `migrations` folder of each engine."""

from __future__ import annotations

import re
from importlib import resources

import msgspec

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """A numbered change of the schema."""

    number: int
    name: str
    text: str


def read_migrations(package: str) -> list[Migration]:
    """Read all migrations in a package, in order."""
    migrations = []
    for file in resources.files(package).iterdir():
        if match := _NAME.fullmatch(file.name):
            migrations.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(migrations, key=lambda migration: migration.number)
