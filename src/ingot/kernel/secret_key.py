"""The secret key of a server: told, or made once and kept in a file that only the server reads."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from ingot.kernel.errors import IngotError

SECRET_KEY_FILE: Final = "secret.key"
FILE_MODE: Final = 0o600
OTHERS_MODE_MASK: Final = 0o077
KEY_BYTES: Final = 32
KEY_CHARS_MIN: Final = 32
KEY_SEPARATORS: Final = re.compile(r"[,\n]")
FINGERPRINT_CONTEXT: Final = b"ingot: which key it is, 1"  # Nothing else is made of the key with this.


class SecretKeyUnusable(IngotError):
    """The secret key of the server cannot be used."""

    code = "secret_key_unusable"
    hint = f"Restore the previous {SECRET_KEY_FILE}, readable only by the server: secrets cannot be read without it."


def load_secret_keys(folder: Path, told: str | None = None) -> list[bytes]:
    """Return the keys that were told, or else those in the folder, where one is made if there is none.

    The first is the current one. Older keys follow it, after a comma or on lines of their own: they only decrypt. A key
    that is made is durable when this returns, and the same for all who ask at once. Raises `SecretKeyUnusable`.
    """
    if told is not None:
        return _parse_keys(told, "the key that was told")
    path = folder / SECRET_KEY_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _create_key_file(path)
        return _read_key_file(path)
    except OSError as error:
        raise SecretKeyUnusable(f"{path} cannot be read or made: {error.strerror}") from error


def key_fingerprint(key: bytes) -> bytes:
    """What tells one key from another, and nothing of either."""
    return hmac.digest(key, FINGERPRINT_CONTEXT, hashlib.sha256)


def _create_key_file(path: Path) -> None:
    """Write a new key whole before it has its name. Whoever is first to give the name, gives it."""
    new = path.with_name(f"{SECRET_KEY_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # Another was first: its key is the key.
            os.link(new, path)
    finally:
        new.unlink()
    _sync_folder(path.parent)


def _read_key_file(path: Path) -> list[bytes]:
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read()
    if mode & OTHERS_MODE_MASK:
        raise SecretKeyUnusable(f"{path} can be read by others", hint=f"Make it the server's alone: chmod 600 {path}.")
    return _parse_keys(text, str(path))


def _parse_keys(text: str, what: str) -> list[bytes]:
    keys = [key.strip() for key in KEY_SEPARATORS.split(text) if key.strip()] or [""]
    for key in keys:
        if len(key) < KEY_CHARS_MIN or not key.isascii() or not key.isprintable():
            raise SecretKeyUnusable(
                f"{what} is no key: it has less than {KEY_CHARS_MIN} characters, or others than ASCII"
            )
    return [key.encode() for key in keys]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
