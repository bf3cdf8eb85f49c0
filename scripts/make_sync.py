"""Generate `ingot.client.synchronous` from `ingot.client.asynchronous`.

The build hook runs this file, so it needs only the standard library.
"""

from __future__ import annotations

import re
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "ingot" / "client"
SYNCHRONOUS = CLIENT / "synchronous"
NOTICE = (
    "# Generated from ingot.client.asynchronous by scripts/make_sync.py. Edit that package and run `make client`.\n"
)
REPLACEMENTS = {
    r"\basync def\b": "def",
    r"\basync with\b": "with",
    r"\basync for\b": "for",
    r"\bawait ": "",
    r"\bAsyncIterator\b": "Iterator",
    r"\bAsyncClient\b": "Client",
    r"\bAsyncBaseTransport\b": "BaseTransport",
    r"\bAsync(?!Generator)(\w+)\b": r"Sync\1",
    r"\basync_(\w+)\b": r"sync_\1",
    r"\basyncio\.to_thread\(([\w.]+)(?:, )?": r"\1(",
    r"\basynccontextmanager\b": "contextmanager",
    r"\baclosing\b": "closing",
    r"\bAsyncGenerator\[(\w+), None\]": r"Generator[\1, None, None]",
    r"\bAsyncGenerator\b": "Generator",
    r"\bAbstractAsyncContextManager\b": "AbstractContextManager",
    r"\bAwaitable\[(\w+)\]": r"\1",
    r", Awaitable\b": "",
    r"\b__aenter__\b": "__enter__",
    r"\b__aexit__\b": "__exit__",
    r"\b__aiter__\b": "__iter__",
    r"\baclose\b": "close",
    r"\baread\b": "read",
    r"\baiter_(lines|raw)\b": r"iter_\1",
    r"\basyncio\.sleep\b": "time.sleep",
    r"\bimport asyncio\n": "import time\n",
    r"ingot\.client\.asynchronous": "ingot.client.synchronous",
}


def synchronous_source(source: str) -> str:
    """Translate the source text of an asynchronous module."""
    for pattern, replacement in REPLACEMENTS.items():
        source = re.sub(pattern, replacement, source)
    return NOTICE + source


def generated_files() -> dict[Path, str]:
    """Return the text of every file of the synchronous client."""
    return {
        SYNCHRONOUS / path.name: synchronous_source(path.read_text(encoding="utf-8"))
        for path in sorted((CLIENT / "asynchronous").glob("*.py"))
    }


def generate() -> None:
    """Write the synchronous client and delete modules that have no source any more.

    Files that are up to date keep their modification time, so that Python and mypy do not read them again.
    """
    files = generated_files()
    SYNCHRONOUS.mkdir(exist_ok=True)
    for path in set(SYNCHRONOUS.glob("*.py")) - files.keys():
        path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    generate()
