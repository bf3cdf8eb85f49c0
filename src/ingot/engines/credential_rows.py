"""Credentials as both engines read them: JSON text in which what recognizes one stands as hexadecimal digits."""

from __future__ import annotations

import msgspec

from ingot.engines.json_rows import decode
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.ports import StoredToken, StoredWorkerCredential, UserWithRoles


class _Recognition(msgspec.Struct, frozen=True):
    """What a credential is recognized by."""

    digest: str


class _TokenRecognition(_Recognition, frozen=True):
    """The same of a token, and the person that it belongs to, if it does to one."""

    owner: UserWithRoles | None


def decode_token(text: bytes | str) -> StoredToken:
    """Decode a token with its digest and its owner."""
    recognition = decode(_TokenRecognition, text)
    digest = bytes.fromhex(recognition.digest)
    return StoredToken(token=decode(Token, text), digest=digest, owner=recognition.owner)


def decode_worker_credential(text: bytes | str) -> StoredWorkerCredential:
    """Decode a worker credential with its digest."""
    digest = bytes.fromhex(decode(_Recognition, text).digest)
    return StoredWorkerCredential(credential=decode(WorkerCredential, text), digest=digest)
