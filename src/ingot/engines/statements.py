"""SQL lives in `.sql` files named after nouns. What follows `-- name: claim_jobs` in one becomes `SQL.claim_jobs`."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources

CHUNK_ROWS_MAX = 64

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_ROW = re.compile(r"VALUES (\([^()]+\))")


class Statements:
    """The statements in the files of one folder, as attributes."""

    def __init__(self, package: str) -> None:
        texts: dict[str, str] = {}
        for file in resources.files(package).iterdir():
            if file.name.endswith(".sql"):
                _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
                for name, text in zip(parts[::2], parts[1::2], strict=True):
                    assert name not in texts, f"there are two statements {name}"
                    texts[name] = text.strip()
        vars(self).update(texts)  # As attributes: each is looked up with every transaction.

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"there is no statement {name}")

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(vars(self))


@cache
def repeat_row(statement: str, rows: int) -> str:
    """The statement with its one row of VALUES written `rows` times."""
    found = _ROW.search(statement)
    assert found is not None, "the statement has no row of VALUES"
    row = found.group(1)
    return statement[: found.start(1)] + ", ".join([row] * rows) + statement[found.end(1) :]


@lru_cache(maxsize=1024)
def chunk_sizes(rows: int) -> tuple[int, ...]:
    """Sizes that add up to `rows`, all powers of two, so that few statement texts serve every batch."""
    sizes = [CHUNK_ROWS_MAX] * (rows // CHUNK_ROWS_MAX)
    rest, size = rows % CHUNK_ROWS_MAX, CHUNK_ROWS_MAX // 2
    while rest:
        if rest >= size:
            sizes.append(size)
            rest -= size
        size //= 2
    return tuple(sizes)
