"""Loading of SQL statements from `.sql` files. The text after `-- name: claim_jobs` becomes `SQL.claim_jobs`."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources

CHUNK_ROWS_MAX = 64

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW = re.compile(r"VALUES (\([^()]+\))")


class Statements:
    """The statements in the `.sql` files of one package, as attributes."""

    def __init__(self, package: str) -> None:
        texts: dict[str, str] = {}
        for file in resources.files(package).iterdir():
            if file.name.endswith(".sql"):
                _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
                for name, text in zip(parts[::2], parts[1::2], strict=True):
                    assert name not in texts, f"the statement {name} is defined twice"
                    texts[name] = text.strip()
        vars(self).update(texts)  # Attributes are the fastest lookup, and every transaction needs several.

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"the statement {name} does not exist")

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(vars(self))


@cache
def repeat_row(statement: str, rows: int) -> str:
    """Return the statement with its row of VALUES repeated `rows` times."""
    match = _ROW.search(statement)
    assert match is not None, "the statement has no row of VALUES"
    row = match.group(1)
    return statement[: match.start(1)] + ", ".join([row] * rows) + statement[match.end(1) :]


@lru_cache(maxsize=1024)
def chunk_sizes(rows: int) -> tuple[int, ...]:
    """Split `rows` into chunk sizes that are powers of two, so that a few statement texts serve every batch."""
    sizes = [CHUNK_ROWS_MAX] * (rows // CHUNK_ROWS_MAX)
    remaining, size = rows % CHUNK_ROWS_MAX, CHUNK_ROWS_MAX // 2
    while remaining:
        if remaining >= size:
            sizes.append(size)
            remaining -= size
        size //= 2
    return tuple(sizes)
