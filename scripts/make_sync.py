"""Make `ingot.client.synchronous` of `ingot.client.asynchronous`: the same client, for those who do not await."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "src" / "ingot" / "client"
SYNCHRONOUS = CLIENT / "synchronous"
NOTICE = "# Made of ingot.client.asynchronous by scripts/make_sync.py: change that, and run `make client`.\n"
WORDS = {
    r"\basync def\b": "def",
    r"\basync with\b": "with",
    r"\basync for\b": "for",
    r"\bawait ": "",
    r"\bAsyncIterator\b": "Iterator",
    r"\bAsyncClient\b": "Client",
    r"\bAsyncBaseTransport\b": "BaseTransport",
    r"\bAsync(?!Generator)(\w+)\b": r"Sync\1",
    r"\bawaited_(at_hand|at_once|driver)\b": r"plain_\1",
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


def made_of(text: str) -> str:
    """The synchronous text of an asynchronous one."""
    for word, instead in WORDS.items():
        text = re.sub(word, instead, text)
    return NOTICE + re.sub(r"(import time\n)+", "import time\n", text)


def formatted(texts: dict[str, str]) -> dict[str, str]:
    """The texts in shape, by their names. ruff runs once for all, in a folder with the layout of the project."""
    with TemporaryDirectory() as folder:
        copy = Path(folder) / SYNCHRONOUS.relative_to(ROOT)
        copy.mkdir(parents=True)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for name, text in texts.items():
            (copy / name).write_text(text, encoding="utf-8")
        ours = 'lint.isort.known-first-party=["ingot"]'  # The rest of the package is not there.
        for words in (["check", "--fix-only", "--config", ours], ["format"]):
            subprocess.run([sys.executable, "-m", "ruff", *words, "--quiet", "--no-cache", "."], cwd=folder, check=True)
        return {name: (copy / name).read_text(encoding="utf-8") for name in texts}


def all_made() -> dict[Path, str]:
    """What each file of the synchronous client holds."""
    made = {
        path.name: made_of(path.read_text(encoding="utf-8")) for path in sorted((CLIENT / "asynchronous").glob("*.py"))
    }
    return {SYNCHRONOUS / name: text for name, text in formatted(made).items()}


if __name__ == "__main__":
    for path, text in all_made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
