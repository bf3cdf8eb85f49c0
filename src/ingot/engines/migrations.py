"""The steps of a schema: numbered SQL files, forward only, that every engine keeps in its `migrations` folder."""

from __future__ import annotations

import re
from importlib import resources

import msgspec

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema."""

    number: int
    name: str
    text: str


def read_migrations(package: str) -> list[Migration]:
    """All steps this program knows, in order."""
    steps = []
    for file in resources.files(package).iterdir():
        if match := _NAME.fullmatch(file.name):
            steps.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    return sorted(steps, key=lambda step: step.number)
