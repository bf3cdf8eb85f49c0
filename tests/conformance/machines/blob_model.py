"""The blobs of some tenants, as plain dictionaries: what is kept, who refers to it, what it counts, when it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from blake3 import blake3

from ingot.blobs.errors import (
    BlobDamaged,
    KeyChanged,
    KeyExists,
    KeyNotFound,
    QuotaExceeded,
    UploadEnded,
    UploadIncomplete,
    UploadNotFound,
    UploadOffsetWrong,
    WrongDigest,
    WrongLength,
)
from ingot.blobs.incoming import UPLOAD_LIFETIME_MICROS
from ingot.blobs.model import INLINE_BYTES_MAX, UploadState, Usage
from ingot.kernel.errors import IngotError

VERIFY_BYTES = 20_000  # What is larger is read back in the background.
ENDS = {error.code: error for error in (WrongDigest, WrongLength, KeyExists, KeyChanged)}


def id_of(data: bytes) -> str:
    """What the blob with these bytes is called."""
    return blake3(data).hexdigest()


def sha256_of(data: bytes) -> str:
    """Its other digest."""
    return sha256(data).hexdigest()


@dataclass(frozen=True)
class Owner:
    """Who brings bytes, and how many there may be."""

    name: str
    quota: int | None = None


@dataclass
class Named:
    """A key."""

    data: bytes
    owner: str


@dataclass
class Coming:
    """An upload. `data` is what is sent for it."""

    id: str
    tenant: str
    owner: str
    data: bytes
    announced: str | None
    key: str | None
    if_match: str | None
    expires_at: int
    state: UploadState = UploadState.OPEN
    received: int = 0
    error: str | None = None

    @property
    def under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in (UploadState.OPEN, UploadState.VERIFYING)

    @property
    def refers_to(self) -> str | None:
        """The blob that it keeps, if there is one."""
        if self.under_way:
            return self.announced
        return id_of(self.data) if self.state is UploadState.DONE and self.key is None else None


@dataclass
class Stored:
    """A blob: `broken` when its object is, `damaged` when that is known, without a reference since `free_since`."""

    data: bytes
    broken: bool = False
    damaged: bool = False
    free_since: int | None = None


@dataclass
class BlobModel:
    """What has to be so, at the time `now`. A call raises what the room has to raise, and has changed nothing then."""

    tenants: list[str]
    grace: int
    now: int = 0
    left: int = 0  # Puts that came in steps: an upload of each, which nobody asks for, is swept with the next round.
    quotas: dict[str, int | None] = field(default_factory=dict)
    keys: dict[tuple[str, str], Named] = field(default_factory=dict)
    uploads: dict[str, Coming] = field(default_factory=dict)
    blobs: dict[str, Stored] = field(default_factory=dict)
    news: dict[str, list[tuple[str, str, str | None]]] = field(default_factory=dict)

    # -- what follows from it -------------------------------------------------------------------------------

    def usage(self, tenant: str, owner: str | None = None) -> Usage:
        """What a tenant keeps, or one owner in it."""
        keys = [key for (of, _), key in self.keys.items() if of == tenant and owner in (None, key.owner)]
        mine = [one for one in self.uploads.values() if one.tenant == tenant and owner in (None, one.owner)]
        loose = [one for one in mine if one.state is UploadState.DONE and one.key is None]
        return Usage(
            bytes=sum(len(data) for data in [*(key.data for key in keys), *(one.data for one in loose)]),
            reserved_bytes=sum(len(one.data) for one in mine if one.under_way),
            keys=len(keys),
        )

    def references(self, blob_id: str) -> int:
        """How many references there are in all tenants."""
        keys = sum(id_of(key.data) == blob_id for key in self.keys.values())
        return keys + sum(one.refers_to == blob_id for one in self.uploads.values())

    def seen(self, tenant: str, blob_id: str) -> set[str]:
        """What a tenant sees that refers to a blob."""
        keys = {name for (of, name), key in self.keys.items() if of == tenant and id_of(key.data) == blob_id}
        mine = [one for one in self.uploads.values() if one.tenant == tenant and not one.under_way]
        return keys | {one.id for one in mine if one.refers_to == blob_id}

    def settle(self) -> None:
        """Note which blobs lost their last reference now."""
        for blob_id, blob in self.blobs.items():
            free = self.references(blob_id) == 0
            blob.free_since = None if not free else self.now if blob.free_since is None else blob.free_since

    # -- bytes come in --------------------------------------------------------------------------------------

    def put(
        self,
        tenant: str,
        owner: Owner,
        key: str,
        data: bytes,
        *,
        if_match: str | None,
        breaks: type[Exception] | None,
    ) -> None:
        """A put in one call; with `breaks` it ends so, if nothing else is wrong before."""
        small = len(data) <= INLINE_BYTES_MAX
        if small and breaks is not None:
            raise breaks
        old = self._check_key(tenant, key, if_match)
        back = old if small else None  # What comes in steps is set aside whole, before anything is given back.
        self._charge(tenant, owner, len(data), back)
        if breaks is not None:
            raise breaks
        self.left += not small
        self._set(tenant, owner.name, key, data)

    def begin(self, id: str, tenant: str, owner: Owner, coming: Coming, *, size: int) -> bool:
        """An upload begins; answers whether it is done at once."""
        blob = None if coming.announced is None else self.blobs.get(coming.announced)
        known = coming.announced is not None and blob is not None and bool(self.seen(tenant, coming.announced))
        known = known and blob is not None and not blob.damaged
        if known and blob is not None and len(blob.data) != size:
            raise WrongLength
        if coming.key is not None:
            self._check_key(tenant, coming.key, coming.if_match)
        self._charge(tenant, owner, size, None)
        coming.id, coming.expires_at = id, self.now + UPLOAD_LIFETIME_MICROS
        self.uploads[id] = coming
        if known and blob is not None:
            coming.data = blob.data
            self._done(coming)
        return known

    def receive(self, tenant: str, id: str, offset: int, count: int, *, breaks: bool) -> None:
        """Some bytes of an upload come."""
        upload = self._upload(tenant, id)
        if upload.state is not UploadState.OPEN:
            raise UploadEnded
        if offset != upload.received:
            raise UploadOffsetWrong
        if upload.received == len(upload.data) > 0:
            return
        upload.received = offset + count
        upload.expires_at = self.now + UPLOAD_LIFETIME_MICROS
        if breaks:
            raise OSError

    def look(self, tenant: str, id: str) -> None:
        """Somebody asks for the offset of an upload."""
        if self._upload(tenant, id).state is not UploadState.OPEN:
            raise UploadEnded

    def complete(self, tenant: str, id: str, *, here: int, announced: str | None) -> UploadState:
        """All bytes of an upload were sent; `here` tells how many the store has. Answers what is answered."""
        upload = self._upload(tenant, id)
        if upload.state is UploadState.FAILED:
            raise ENDS[upload.error or ""]
        if upload.state is UploadState.DONE:
            return upload.state
        later = upload.state is UploadState.VERIFYING or len(upload.data) > VERIFY_BYTES
        if upload.state is UploadState.OPEN:
            if here < len(upload.data):
                raise UploadIncomplete
            if announced is not None and upload.announced not in (None, announced):
                raise WrongDigest
            upload.announced = announced or upload.announced
            upload.expires_at = self.now + UPLOAD_LIFETIME_MICROS
        try:
            if upload.announced not in (None, id_of(upload.data)):
                raise WrongDigest
            if upload.key is not None:
                self._check_key(tenant, upload.key, upload.if_match)
        except IngotError as error:
            if later or isinstance(error, WrongDigest):
                upload.state, upload.error, upload.expires_at = (
                    UploadState.FAILED,
                    error.code,
                    self.now + UPLOAD_LIFETIME_MICROS,
                )
            if not later:
                raise
        else:
            self._done(upload)
        return UploadState.VERIFYING if later else upload.state

    def give_up(self, tenant: str, id: str) -> None:
        """Nobody goes on with an upload."""
        if self._upload(tenant, id).state is not UploadState.DONE:
            del self.uploads[id]

    # -- and go ---------------------------------------------------------------------------------------------

    def delete(self, tenant: str, key: str, if_match: str | None) -> None:
        """A key goes."""
        known = self.keys.get((tenant, key))
        if known is None:
            raise KeyNotFound
        if if_match not in (None, "*", id_of(known.data)):
            raise KeyChanged
        self._drop(tenant, key)

    def purge(self, tenant: str, owner: str | None) -> tuple[int, int]:
        """All keys of an owner go; how many, and their bytes."""
        going = [name for (of, name), key in self.keys.items() if of == tenant and owner in (None, key.owner)]
        size = sum(len(self.keys[tenant, name].data) for name in going)
        for name in sorted(going, key=str.encode):
            self._drop(tenant, name)
        return len(going), size

    def collect(self) -> tuple[int, int, int]:
        """A round: the uploads and the blobs that go, and the bytes of those."""
        over = [id for id, one in self.uploads.items() if one.expires_at <= self.now]
        for id in over:
            del self.uploads[id]
        swept, self.left = len(over) + self.left, 0
        self.settle()
        going = self.condemned()
        size = sum(len(self.blobs.pop(blob_id).data) for blob_id in going)
        return swept, len(going), size

    def condemned(self) -> list[str]:
        """The blobs that a round would take away now, if no upload were swept before."""
        until = self.now - self.grace
        return [id for id, one in self.blobs.items() if one.free_since is not None and one.free_since <= until]

    def read(self, blob_id: str) -> bytes:
        """The bytes of a blob. Who finds it broken keeps that in mind."""
        blob = self.blobs[blob_id]
        blob.damaged = blob.damaged or blob.broken
        if blob.damaged:
            raise BlobDamaged
        return blob.data

    # -- parts ----------------------------------------------------------------------------------------------

    def _upload(self, tenant: str, id: str) -> Coming:
        found = self.uploads.get(id)
        if found is None or found.tenant != tenant:
            raise UploadNotFound
        return found

    def _check_key(self, tenant: str, key: str, if_match: str | None) -> Named | None:
        known = self.keys.get((tenant, key))
        if if_match is None and known is not None:
            raise KeyExists
        if if_match not in (None, "*") and (known is None or id_of(known.data) != if_match):
            raise KeyChanged
        return known

    def _charge(self, tenant: str, owner: Owner, size: int, back: Named | None) -> None:
        given = 0 if back is None else len(back.data)
        own = given if back is not None and back.owner == owner.name else 0
        for scope, more, limit in (
            (None, size - given, self.quotas.get(tenant)),
            (owner.name, size - own, owner.quota),
        ):
            used = self.usage(tenant, scope)
            taken = used.bytes + used.reserved_bytes
            if limit is not None and more > 0 and taken + more > limit:
                raise QuotaExceeded(scope="token" if scope else "tenant", usage=taken, limit=limit, requested=more)

    def _done(self, upload: Coming) -> None:
        upload.state, upload.received, upload.expires_at = (
            UploadState.DONE,
            len(upload.data),
            self.now + UPLOAD_LIFETIME_MICROS,
        )
        if upload.key is None:
            self._store(upload.tenant, upload.data, None)
        else:
            self._set(upload.tenant, upload.owner, upload.key, upload.data)

    def _set(self, tenant: str, owner: str, key: str, data: bytes) -> None:
        self.keys[tenant, key] = Named(data, owner)
        self._store(tenant, data, key)

    def _store(self, tenant: str, data: bytes, key: str | None) -> None:
        blob = self.blobs.setdefault(id_of(data), Stored(data))
        if blob.damaged:
            blob.damaged = blob.broken = False
        self.news.setdefault(tenant, []).append(("blob.stored", id_of(data), key))

    def _drop(self, tenant: str, key: str) -> None:
        gone = self.keys.pop((tenant, key))
        self.news.setdefault(tenant, []).append(("blob.deleted", id_of(gone.data), key))
