"""The blobs of some tenants, as plain dictionaries: what is kept, who refers to it, what it counts, when it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
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
from ingot.kernel.clock import to_datetime
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
    has_object: bool = True
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
    """A blob of a tenant: `broken` when its object is, `damaged` when that is known.

    It was deleted at `free_since` by the owner `deleted_by`. A client may send its object until `sent_until`.
    """

    data: bytes
    broken: bool = False
    damaged: bool = False
    free_since: int | None = None
    deleted_by: str | None = None
    is_here: bool = False  # Whether it has an object.
    sent_until: int = 0


@dataclass
class Thrown:
    """An object in the trash, which a round deletes from `due_at` on. A client may send it until `sent_until`."""

    tenant: str
    owner: str
    size: int
    sent_until: int
    due_at: int = 0


@dataclass
class BlobModel:
    """What has to be so, at the time `now`. A call raises what the room has to raise, and has changed nothing then.

    Clients may send the object of an upload for `url_lifetime`. With `seals`, the object that is kept is a copy.
    """

    tenants: list[str]
    grace: int
    url_lifetime: int = 0
    seals: bool = False
    now: int = 0
    left: int = 0  # Puts that came in steps: an upload of each, which nobody asks for, is swept with the next round.
    quotas: dict[str, int | None] = field(default_factory=dict)
    keys: dict[tuple[str, str], Named] = field(default_factory=dict)
    uploads: dict[str, Coming] = field(default_factory=dict)
    blobs: dict[tuple[str, str], Stored] = field(default_factory=dict)
    trash: list[Thrown] = field(default_factory=list)
    dropped: dict[tuple[str, str], set[str]] = field(default_factory=dict)  # Owners of references that have just gone.
    news: dict[str, list[tuple[str, str, str | None]]] = field(default_factory=dict)

    # -- what follows from it -------------------------------------------------------------------------------

    def usage(self, tenant: str, owner: str | None = None) -> Usage:
        """What a tenant keeps, or one owner in it."""
        keys = [key for (of, _), key in self.keys.items() if of == tenant and owner in (None, key.owner)]
        mine = [one for one in self.uploads.values() if one.tenant == tenant and owner in (None, one.owner)]
        loose = [one for one in mine if one.state is UploadState.DONE and one.key is None]
        deleted = self.deleted_bytes(tenant, owner)
        freed = self.freed_times(tenant) if deleted else (None, None)
        return Usage(
            bytes=sum(len(data) for data in [*(key.data for key in keys), *(one.data for one in loose)]),
            reserved_bytes=sum(len(one.data) for one in mine if one.under_way),
            deleted_bytes=deleted,
            freed_from=freed[0],
            freed_by=freed[1],
            keys=len(keys),
        )

    def deleted_bytes(self, tenant: str | None = None, owner: str | None = None) -> int:
        """The bytes that are deleted and not gone, of all tenants, of one, or of one owner in it."""
        buried = [
            len(blob.data)
            for (of, _), blob in self.blobs.items()
            if blob.free_since is not None and tenant in (None, of) and owner in (None, blob.deleted_by)
        ]
        thrown = [one.size for one in self.trash if tenant in (None, one.tenant) and owner in (None, one.owner)]
        return sum(buried) + sum(thrown)

    def freed_times(self, tenant: str | None = None) -> tuple[datetime, datetime]:
        """When the first deleted bytes are free, and when all are."""
        times = [
            blob.free_since + self.grace
            for (of, _), blob in self.blobs.items()
            if blob.free_since is not None and tenant in (None, of)
        ] + [one.sent_until for one in self.trash if tenant in (None, one.tenant)]
        first, last = min(times, default=0), max(times, default=0)
        return to_datetime(max(self.now, first)), to_datetime(max(self.now, last))

    def references(self, tenant: str, blob_id: str) -> int:
        """How many references there are in a tenant."""
        keys = sum(of == tenant and id_of(key.data) == blob_id for (of, _), key in self.keys.items())
        return keys + sum(one.tenant == tenant and one.refers_to == blob_id for one in self.uploads.values())

    def seen(self, tenant: str, blob_id: str) -> set[str]:
        """What a tenant sees that refers to a blob."""
        keys = {name for (of, name), key in self.keys.items() if of == tenant and id_of(key.data) == blob_id}
        mine = [one for one in self.uploads.values() if one.tenant == tenant and not one.under_way]
        return keys | {one.id for one in mine if one.refers_to == blob_id}

    def settle(self) -> None:
        """Note which blobs lost their last reference now. One that an upload only announced is deleted too."""
        for (tenant, blob_id), blob in self.blobs.items():
            if self.seen(tenant, blob_id):
                blob.free_since = blob.deleted_by = None
            elif blob.free_since is None:
                blob.free_since, blob.deleted_by = self.now, min(self.dropped[tenant, blob_id])
        self.dropped.clear()

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
        # What comes in steps is set aside whole, before anything is given back.
        self._charge(tenant, owner, len(data), self._exchanged(tenant, old, data) if small else [])
        if breaks is not None:
            raise breaks
        self.left += not small
        self._set(tenant, owner.name, key, data)
        if not small:
            self._bring_object(tenant, owner.name, data, sent_until=0)

    def begin(self, id: str, tenant: str, owner: Owner, coming: Coming, *, size: int) -> bool:
        """An upload begins; answers whether it is done at once."""
        blob = None if coming.announced is None else self.blobs.get((tenant, coming.announced))
        known = coming.announced is not None and blob is not None and bool(self.seen(tenant, coming.announced))
        known = known and blob is not None and not blob.damaged
        if known and blob is not None and len(blob.data) != size:
            raise WrongLength
        if coming.key is not None:
            self._check_key(tenant, coming.key, coming.if_match)
        self._charge(tenant, owner, size, [])
        coming.has_object = not known
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
                self._throw_away(upload)
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
        upload = self._upload(tenant, id)
        if upload.state is not UploadState.DONE:
            self._throw_away(upload)
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

    def collect(self) -> tuple[int, int, int, int]:
        """A round: the uploads, blobs and objects that go, and the bytes of the blobs."""
        over = [one for one in self.uploads.values() if one.expires_at <= self.now]
        for upload in over:
            self._throw_away(upload)
            if upload.state is UploadState.DONE and upload.key is None:
                self._drop_reference(upload.tenant, id_of(upload.data), upload.owner)
            del self.uploads[upload.id]
        swept, self.left = len(over) + self.left, 0
        self.settle()
        going, size = self.condemned(), 0
        for tenant, blob_id in going:
            blob = self.blobs.pop((tenant, blob_id))
            size += len(blob.data)
            if len(blob.data) > INLINE_BYTES_MAX:
                assert blob.deleted_by is not None
                self.trash.append(Thrown(tenant, blob.deleted_by, len(blob.data), blob.sent_until))
        return swept, len(going), self._empty_trash(), size

    def _empty_trash(self) -> int:
        due = self.due_trash()
        # An object that a client could send meanwhile is deleted once more.
        gone = [one for one in due if one.sent_until <= one.due_at]
        self.trash = [one for one in self.trash if all(one is not other for other in gone)]
        for one in due:
            one.due_at = max(one.due_at, one.sent_until)
        return len(due)

    def due_trash(self) -> list[Thrown]:
        """The objects that a round deletes now."""
        return [one for one in self.trash if one.due_at <= self.now]

    def condemned(self) -> list[tuple[str, str]]:
        """The blobs that a round would take away now, if no upload were swept before."""
        until = self.now - self.grace
        return [
            (tenant, id)
            for (tenant, id), one in self.blobs.items()
            if one.free_since is not None and one.free_since <= until and self.references(tenant, id) == 0
        ]

    def read(self, tenant: str, blob_id: str) -> bytes:
        """The bytes of a blob. Who finds it broken keeps that in mind."""
        blob = self.blobs[tenant, blob_id]
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

    def _exchanged(self, tenant: str, old: Named | None, data: bytes) -> list[tuple[str, int]]:
        """What changes, beside the bytes that come, when a key gets them: by owner."""
        changes = []
        if old is not None:
            changes.append((old.owner, -len(old.data)))
            if old.data != data and len(self.seen(tenant, id_of(old.data))) == 1:
                changes.append((old.owner, len(old.data)))  # Deleted bytes.
        blob = self.blobs.get((tenant, id_of(data)))
        if blob is not None and blob.deleted_by is not None:
            changes.append((blob.deleted_by, -len(data)))  # Not deleted any more.
        return changes

    def _charge(self, tenant: str, owner: Owner, size: int, changes: list[tuple[str, int]]) -> None:
        for scope, more, limit in (
            (None, size + sum(change for _, change in changes), self.quotas.get(tenant)),
            (owner.name, size + sum(change for of, change in changes if of == owner.name), owner.quota),
        ):
            used = self.usage(tenant, scope)
            taken = used.bytes + used.reserved_bytes + used.deleted_bytes
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
        if len(upload.data) > INLINE_BYTES_MAX and upload.has_object:
            sent_until = 0 if self.seals else self._sent_until()
            self._bring_object(upload.tenant, upload.owner, upload.data, sent_until=sent_until)
        if len(upload.data) <= INLINE_BYTES_MAX or self.seals:
            self._throw_away(upload)
        upload.has_object = False

    def _sent_until(self) -> int:
        return self.now + self.url_lifetime if self.url_lifetime else 0

    def _throw_away(self, upload: Coming) -> None:
        """The object of an upload goes to the trash."""
        if upload.has_object:
            self.trash.append(Thrown(upload.tenant, upload.owner, len(upload.data), self._sent_until()))
        upload.has_object = False

    def _bring_object(self, tenant: str, owner: str, data: bytes, *, sent_until: int) -> None:
        """An object with the bytes of a blob: the first one is kept, or one in the place of a damaged one."""
        blob = self.blobs[tenant, id_of(data)]
        if not blob.is_here:
            blob.is_here = True
        elif not blob.damaged:
            self.trash.append(Thrown(tenant, owner, len(data), sent_until))
            return
        else:
            self.trash.append(Thrown(tenant, owner, len(data), blob.sent_until))
            blob.damaged = blob.broken = False
        blob.sent_until = sent_until

    def _set(self, tenant: str, owner: str, key: str, data: bytes) -> None:
        old = self.keys.get((tenant, key))
        if old is not None:
            self._drop_reference(tenant, id_of(old.data), old.owner)
        self.keys[tenant, key] = Named(data, owner)
        self._store(tenant, data, key)

    def _store(self, tenant: str, data: bytes, key: str | None) -> None:
        self.blobs.setdefault((tenant, id_of(data)), Stored(data))
        self.news.setdefault(tenant, []).append(("blob.stored", id_of(data), key))

    def _drop(self, tenant: str, key: str) -> None:
        gone = self.keys.pop((tenant, key))
        self._drop_reference(tenant, id_of(gone.data), gone.owner)
        self.news.setdefault(tenant, []).append(("blob.deleted", id_of(gone.data), key))

    def _drop_reference(self, tenant: str, blob_id: str, owner: str) -> None:
        self.dropped.setdefault((tenant, blob_id), set()).add(owner)
