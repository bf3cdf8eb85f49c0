"""Decoding of credential rows, which both engines return as JSON text. Digests in it are hexadecimal."""

from __future__ import annotations

import msgspec

from ingot.engines.json_rows import decode
from ingot.identity.credentials import Token, WorkerCredential
from ingot.identity.ports import StoredToken, StoredWorkerCredential, UserWithRoles


class _CredentialDigest(msgspec.Struct, frozen=True):
    """The digest of a credential's secret."""

    digest: str


class _TokenDigest(_CredentialDigest, frozen=True):
    """The digest of a token's secret, and the person that the token belongs to, if any."""

    owner: UserWithRoles | None


def decode_token(text: bytes | str) -> StoredToken:
    """Decode a token with its digest and its owner."""
    row = decode(_TokenDigest, text)
    return StoredToken(token=decode(Token, text), digest=bytes.fromhex(row.digest), owner=row.owner)


def decode_worker_credential(text: bytes | str) -> StoredWorkerCredential:
    """Decode a worker credential with its digest."""
    digest = bytes.fromhex(decode(_CredentialDigest, text).digest)
    return StoredWorkerCredential(credential=decode(WorkerCredential, text), digest=digest)
