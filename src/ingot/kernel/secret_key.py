"""The secret key of a server: configured, or generated once and stored in a file that only the server can read."""

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
FINGERPRINT_CONTEXT: Final = b"ingot: which key it is, 1"  # Used for no other value that is derived from the key.


class SecretKeyUnusable(IngotError):
    """The secret key of the server cannot be used."""

    code = "secret_key_unusable"
    hint = (
        f"Restore the previous {SECRET_KEY_FILE} and make it readable only by the server. "
        "Stored secrets cannot be decrypted without it."
    )


def load_secret_keys(folder: Path, configured: str | None = None) -> list[bytes]:
    """Return the configured keys, or else those of the file in the folder, which is created if it is missing.

    The first key is the current one. Older keys follow it, separated by commas or newlines; they only decrypt. A
    generated key is durable when this returns, and concurrent callers get the same one. Raises `SecretKeyUnusable`.
    """
    if configured is not None:
        return _parse_keys(configured, "INGOT_SECRET_KEY")
    path = folder / SECRET_KEY_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _create_key_file(path)
        return _read_key_file(path)
    except OSError as error:
        raise SecretKeyUnusable(f"{path} cannot be read or created: {error.strerror}") from error


def key_fingerprint(key: bytes) -> bytes:
    """Return a value that identifies the key without revealing it."""
    return hmac.digest(key, FINGERPRINT_CONTEXT, hashlib.sha256)


def _create_key_file(path: Path) -> None:
    """Write a new key to a temporary file and link it once it is durable. The first of several callers wins."""
    new = path.with_name(f"{SECRET_KEY_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):  # Another process was faster, so its key is used.
            os.link(new, path)
    finally:
        new.unlink()
    _sync_folder(path.parent)


def _read_key_file(path: Path) -> list[bytes]:
    with path.open(encoding="utf-8", errors="replace") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read()
    if mode & OTHERS_MODE_MASK:
        raise SecretKeyUnusable(
            f"{path} can be accessed by others", hint=f"Make it accessible only to the server: chmod 600 {path}."
        )
    return _parse_keys(text, str(path))


def _parse_keys(text: str, source: str) -> list[bytes]:
    keys = [key.strip() for key in KEY_SEPARATORS.split(text) if key.strip()] or [""]
    for key in keys:
        if len(key) < KEY_CHARS_MIN or not key.isascii() or not key.isprintable():
            raise SecretKeyUnusable(
                f"every key in {source} must have at least {KEY_CHARS_MIN} printable ASCII characters"
            )
    return [key.encode() for key in keys]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
