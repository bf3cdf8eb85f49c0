"""Secrets: values that a tenant names and nobody is ever shown, encrypted with the key of the server."""

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
_CIPHER_CONTEXT: Final = b"ingot: values of secrets, 1"  # Nothing else is derived from the key with these.
_KEY_ID_CONTEXT: Final = b"ingot: id of the key of secrets, 1"


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a secret: the id of the key that encrypts it."""

    key_id: str
    """ID of the secret key that encrypts the value."""


class NewSecret(NoRepr, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value of a secret, which no answer shows."""

    value: Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": VALUE_BYTES_MAX})]
    """The value, at most 65,536 bytes of UTF-8. No response contains it."""


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation did: how many secrets have the current key now, and how many have a key that is not known."""

    key_id: str
    """ID of the current secret key."""
    rotated: int
    """Number of secrets that were encrypted again with the current key."""
    unreadable: int
    """Number of secrets that the server has no key for."""


class SecretUnreadable(StoreMisconfigured):
    """The key that this secret was encrypted with is not known."""

    code = "secret_unreadable"
    hint = "Name the old key after the new one, as in INGOT_SECRET_KEY=new,old, or put the secret again."


SECRET_KIND: Final = RecordKind(
    name="secret", plural="secrets", body_type=Secret, request_type=NewSecret, example={"value": "correct horse"}
)


class Secrets(Records[Secret]):
    """The secrets of all tenants. The first key encrypts; all of them decrypt."""

    def __init__(self, store: RecordStore, keys: Sequence[bytes]) -> None:
        super().__init__(store, SECRET_KIND)
        self._keys = {hmac.digest(key, _KEY_ID_CONTEXT, hashlib.sha256)[:8].hex(): key for key in keys}
        self.key_id = next(iter(self._keys))

    async def write(
        self, tenant: str | None, name: str, sent: Any, *, if_version: int | None = None, act: Act | None = None
    ) -> Record[Secret]:
        """Create or replace a secret. Raises as `put` does."""
        value = check_storable(check_text(sent.value, name="value"), name="value").encode()
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise InvalidInput(f"the value has {len(value)} bytes; it must have 1 to {VALUE_BYTES_MAX}")
        assert tenant is not None, "a secret belongs to a tenant"
        name = self.kind.check_name(name)
        sealed = self._encrypt(tenant, name, value)
        return await self.put(tenant, name, Secret(key_id=self.key_id), sealed=sealed, if_version=if_version, act=act)

    async def reveal(self, tenant: str, name: str) -> str:
        """Return the value of a secret, for what acts on behalf of the tenant. No route may show it.

        Raises `RecordNotFound` or `SecretUnreadable`.
        """
        _, sealed = await self.get_sealed_value(tenant, name)
        return self._decrypt(tenant, name, sealed).decode()

    async def rotate(self, tenant: str, *, act: Act | None = None) -> Rotated:
        """Encrypt a tenant's secrets with the current key. One that is changed meanwhile has it already."""
        rotated = unreadable = 0
        old = [record for record in await self._list_all(tenant) if record.body.key_id != self.key_id]
        for record in old:
            try:
                version, sealed = await self.get_sealed_value(tenant, record.name)
                again = self._encrypt(tenant, record.name, self._decrypt(tenant, record.name, sealed))
                body = Secret(key_id=self.key_id)
                await self.put(
                    tenant, record.name, body, sealed=again, if_version=version, audit_verb="rotated", act=act
                )
                rotated += 1
            except SecretUnreadable:
                unreadable += 1
            except (RecordNotFound, RecordChanged, TenantNotFound):
                continue
        return Rotated(key_id=self.key_id, rotated=rotated, unreadable=unreadable)

    async def _list_all(self, tenant: str) -> list[Record[Secret]]:
        """Read all secrets of a tenant; of one that was removed there are none."""
        try:
            return await self.all(tenant)
        except TenantNotFound:
            return []

    def _encrypt(self, tenant: str, name: str, value: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        about = _associated_data(tenant, name)
        return bytes.fromhex(self.key_id) + nonce + _load_cipher(self._keys[self.key_id]).encrypt(nonce, value, about)

    def _decrypt(self, tenant: str, name: str, sealed: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see `_cipher`

        key = self._keys.get(sealed[:8].hex())
        nonce, rest = sealed[8 : 8 + NONCE_BYTES], sealed[8 + NONCE_BYTES :]
        try:
            if key is not None:
                return _load_cipher(key).decrypt(nonce, rest, _associated_data(tenant, name))
        except InvalidTag:
            pass
        raise SecretUnreadable(f"the secret {name!r} cannot be decrypted")


def _associated_data(tenant: str, name: str) -> bytes:
    """What is authenticated with a value, so that it cannot be moved to another name or tenant."""
    return msgspec.json.encode((tenant, name))


def _load_cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - it takes long, and few need it

    return AESGCM(hmac.digest(key, _CIPHER_CONTEXT, hashlib.sha256))
