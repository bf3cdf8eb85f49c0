"""Secrets: named values of a tenant, encrypted with the secret key of the server and never shown."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from ingot.events.audit import Act
from ingot.identity.model import TenantNotFound
from ingot.kernel.errors import InvalidInput, StoreMisconfigured
from ingot.kernel.redaction import NoRepr
from ingot.kernel.validation import check_storable, check_text
from ingot.records.kinds import RecordKind
from ingot.records.model import Record, RecordChanged, RecordNotFound
from ingot.records.ports import RecordStore
from ingot.records.service import Records

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VALUE_BYTES_MAX: Final = 64 * 1024
NONCE_BYTES: Final = 12
# Nothing else is derived from the secret key with these contexts.
_CIPHER_CONTEXT: Final = b"ingot: values of secrets, 1"
_KEY_ID_CONTEXT: Final = b"ingot: id of the key of secrets, 1"


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """The visible part of a secret: the ID of the key that encrypts it."""

    key_id: str
    """ID of the secret key that encrypts the value."""


class NewSecret(NoRepr, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of a secret. No response contains it."""

    value: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": VALUE_BYTES_MAX})]
    """The value, at most 65,536 bytes of UTF-8. No response contains it."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rotation of the secret key."""

    key_id: str
    """ID of the current secret key."""
    rotated: int
    """Number of secrets that were encrypted again with the current key."""
    unreadable: int
    """Number of secrets that the server has no key for."""


class SecretUnreadable(StoreMisconfigured):
    """The secret was encrypted with a key that this server does not have."""

    code = "secret_unreadable"
    hint = "Add the old key after the new one, as in INGOT_SECRET_KEY=new,old, or store the secret again."


SECRET_KIND: Final = RecordKind(
    name="secret", plural="secrets", body_type=Secret, request_type=NewSecret, example={"value": "correct horse"}
)


class Secrets(Records[Secret]):
    """The service for secrets. The first key encrypts; all keys decrypt."""

    def __init__(self, store: RecordStore, keys: Sequence[bytes]) -> None:
        super().__init__(store, SECRET_KIND)
        self._keys = {hmac.digest(key, _KEY_ID_CONTEXT, hashlib.sha256)[:8].hex(): key for key in keys}
        self.key_id = next(iter(self._keys))

    async def write(
        self, tenant: str | None, name: str, request_body: Any, *, if_version: int | None = None, act: Act | None = None
    ) -> Record[Secret]:
        """Create or replace a secret from a `NewSecret`. Raises `InvalidInput`, and what `put` raises."""
        value = check_storable(check_text(request_body.value, name="value"), name="value").encode()
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise InvalidInput(f"value must have 1 to {VALUE_BYTES_MAX} bytes, got {len(value)}")
        assert tenant is not None, "a secret belongs to a tenant"
        name = self.kind.check_name(name)
        sealed = self._encrypt(tenant, name, value)
        return await self.put(tenant, name, Secret(key_id=self.key_id), sealed=sealed, if_version=if_version, act=act)

    async def reveal(self, tenant: str, name: str) -> str:
        """Return the value of a secret, for code that acts on behalf of the tenant. No route may show it.

        Raises `RecordNotFound` or `SecretUnreadable`.
        """
        _, sealed = await self.get_sealed_value(tenant, name)
        return self._decrypt(tenant, name, sealed).decode()

    async def rotate(self, tenant: str, *, act: Act | None = None) -> Rotated:
        """Encrypt the secrets of a tenant with the current key. Secrets that change meanwhile already use it."""
        rotated = unreadable = 0
        outdated = [record for record in await self._list_all(tenant) if record.body.key_id != self.key_id]
        for record in outdated:
            try:
                version, sealed = await self.get_sealed_value(tenant, record.name)
                resealed = self._encrypt(tenant, record.name, self._decrypt(tenant, record.name, sealed))
                body = Secret(key_id=self.key_id)
                await self.put(
                    tenant, record.name, body, sealed=resealed, if_version=version, audit_verb="rotated", act=act
                )
                rotated += 1
            except SecretUnreadable:
                unreadable += 1
            except (RecordNotFound, RecordChanged, TenantNotFound):
                continue
        return Rotated(key_id=self.key_id, rotated=rotated, unreadable=unreadable)

    async def _list_all(self, tenant: str) -> list[Record[Secret]]:
        """Return all secrets of a tenant, and none if it was removed."""
        try:
            return await self.all(tenant)
        except TenantNotFound:
            return []

    def _encrypt(self, tenant: str, name: str, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        sealed = _load_cipher(self._keys[self.key_id]).encrypt(nonce, value, _associated_data(tenant, name))
        return bytes.fromhex(self.key_id) + nonce + sealed

    def _decrypt(self, tenant: str, name: str, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_load_cipher`

        key = self._keys.get(sealed[:8].hex())
        nonce, ciphertext = sealed[8 : 8 + NONCE_BYTES], sealed[8 + NONCE_BYTES :]
        try:
            if key is not None:
                return _load_cipher(key).decrypt(nonce, ciphertext, _associated_data(tenant, name))
        except InvalidTag:
            pass
        raise SecretUnreadable(f"the secret {name!r} cannot be decrypted")


def _associated_data(tenant: str, name: str) -> bytes:
    """Return data that is authenticated with the value, so that a value cannot be moved to another name or tenant."""
    return msgspec.json.encode((tenant, name))


def _load_cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - slow to import and rarely needed

    return AESGCM(hmac.digest(key, _CIPHER_CONTEXT, hashlib.sha256))
