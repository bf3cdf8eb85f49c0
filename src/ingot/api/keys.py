"""Routes of keys: a tenant's names for blobs."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ingot.api.downloads import Downloads
from ingot.blobs import checks
from ingot.blobs.incoming import IncomingBlob
from ingot.blobs.model import Key, PurgeResult, Usage
from ingot.blobs.service import Blobs
from ingot.http.forms import FORM, Form
from ingot.http.request import BytesResponse, Request, RequestBody, Response
from ingot.http.routes import PREFIX, Granted, Route, route_factory
from ingot.identity.grants import allowed_prefixes
from ingot.kernel.errors import InvalidInput
from ingot.kernel.pages import Page
from ingot.wire.blobs import KeyListQuery, PurgeKeysRequest, PutKeyQuery, UsageQuery

# curl sends the second one for files of unknown type.
UNSPECIFIC_CONTENT_TYPES: Final = frozenset({"", "application/x-www-form-urlencoded"})
_OWNER: Final = re.compile(r"(token|worker|user):\S+")


class KeysApi:
    """Routes of keys and usage."""

    def __init__(self, blobs: Blobs, downloads: Downloads) -> None:
        self._blobs = blobs
        self._downloads = downloads

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        read, write = Granted("blobs.read"), Granted("blobs.write")
        route = route_factory("keys")
        return [
            route("GET", "/keys", self.list, read),
            route(
                "POST",
                "/keys",
                self.post,
                write,
                status=201,
                body_bytes_max=None,
                body_content_type=FORM,
                form_fields=("key", "blob"),
            ),
            route("PUT", "/keys/{key*}", self.put, write, status=201, body_bytes_max=None, headers=("If-Match",)),
            route("GET", "/keys/{key*}", self.get, read, other_statuses=(206, 304, 307)),
            route("DELETE", "/keys/{key*}", self.delete, Granted("blobs.delete"), headers=("If-Match",)),
            route("GET", "/usage", self.usage, read),
            route("POST", "/admin/keys/purge", self.purge, Granted("admin.blobs")),
        ]

    async def list(self, request: Request, query: KeyListQuery) -> Page[Key]:
        """List the keys that begin with a prefix, in the order of their UTF-8 bytes."""
        request.require("blobs.read", _resource(query.prefix))
        return await self._blobs.keys(
            request.tenant,
            prefix=query.prefix,
            cursor=query.cursor,
            limit=query.limit,
            within=allowed_prefixes("keys", request.caller.grants, "blobs.read"),
        )

    async def put(self, request: Request, key: str, query: PutKeyQuery, body: RequestBody) -> Response[Key]:
        """Store the body under a new key. To replace an existing key, send `If-Match`."""
        request.require("blobs.write", _resource(checks.key(key)))
        incoming = IncomingBlob(
            tenant=request.tenant,
            owner=request.caller.principal,
            size=body.length,
            blob_id=query.blob_id,
            sha256=query.sha256,
            content_type=_content_type_of(body.content_type, query.name or key),
            original_name=query.name,
            owner_quota=request.caller.limits.quota_bytes,
        )
        return await self._put(request, key, body, incoming)

    async def post(self, request: Request, body: RequestBody) -> Response[Key]:
        """Store a file that is sent as a form: the field `key` first, then the file `blob`."""
        form = await Form.read(body, file="blob")
        key = checks.key(form.fields.get("key") or _raise_missing_key())
        request.require("blobs.write", _resource(key))
        if form.file is None:
            raise InvalidInput("the form has no file", hint="Send it last, as in curl -F key=NAME -F blob=@FILE.")
        incoming = IncomingBlob(
            tenant=request.tenant,
            owner=request.caller.principal,
            blob_id=form.fields.get("blob_id"),
            sha256=form.fields.get("sha256"),
            content_type=_content_type_of(form.file.content_type, form.file.name or key),
            original_name=form.file.name,
            owner_quota=request.caller.limits.quota_bytes,
        )
        return await self._put(request, key, form.file, incoming)

    async def get(self, request: Request, key: str) -> BytesResponse | Response[bytes]:
        """Download the blob of a key, or a range of it. If the blob is in a bucket, redirect there with 307."""
        request.require("blobs.read", _resource(key))
        stored_key, opened = await self._blobs.open_key(request.tenant, key)
        name = stored_key.original_name or key.rpartition("/")[2]
        return await self._downloads.respond(request, opened, content_type=stored_key.content_type, name=name)

    async def delete(self, request: Request, key: str) -> Key:
        """Delete a key and return it as it was. Its blob is deleted later if it has no other references."""
        request.require("blobs.delete", _resource(key))
        if request.headers.has("if-none-match"):
            raise InvalidInput("If-None-Match cannot be used to delete a key", hint="Leave out If-None-Match.")
        return await self._blobs.delete(request.tenant, key, if_match=_if_match(request))

    async def usage(self, request: Request, query: UsageQuery) -> Usage:
        """Return the usage and the quota of the tenant, or of the caller in it.

        The usage of the tenant needs a grant to read all of its blobs.
        """
        if query.of == "caller":
            used = await self._blobs.usage(request.tenant, request.caller.principal)
            return msgspec.structs.replace(used, quota_bytes=request.caller.limits.quota_bytes)
        request.require("blobs.read")
        return await self._blobs.usage(request.tenant)

    async def purge(self, request: Request, body: PurgeKeysRequest) -> PurgeResult:
        """Delete all keys that one caller set, or with `all` the keys of all callers in the tenant."""
        if (body.owner is None) is not body.all:
            raise InvalidInput("owner and all were both set, or neither", hint="Set exactly one of owner and all.")
        if body.owner is not None and not _OWNER.fullmatch(body.owner):
            raise InvalidInput(
                f"owner must be a caller, got {body.owner[:64]!r}", hint="Use token:ID, worker:ID or user:ID."
            )
        return await self._blobs.purge(request.tenant, body.owner, act=request.act(), dry_run=body.dry_run)

    async def _put(self, request: Request, key: str, source: Any, incoming: IncomingBlob) -> Response[Key]:
        stored_key = await self._blobs.put(key, source.chunks(), incoming, if_match=_if_match(request))
        headers = {"etag": f'"{stored_key.blob_id}"', "location": f"{PREFIX}/keys/{quote(key)}"}
        return Response(stored_key, headers=headers)


def _if_match(request: Request) -> str | None:
    request.headers.require_unique(("if-match", "if-none-match"))
    none_match = request.headers.get("if-none-match")
    if none_match is not None and (none_match.strip() != checks.ANY_BLOB or request.headers.has("if-match")):
        raise InvalidInput(
            "If-None-Match must be * and cannot be combined with If-Match",
            hint="Send If-None-Match: * to set a new key, or If-Match to replace one.",
        )
    return checks.if_match(request.headers.get("if-match"))


def _content_type_of(header: str | None, name: str) -> str:
    """Return the content type that the client sent, or a guess from the name."""
    return checks.guess_content_type(name) if header is None or header.lower() in UNSPECIFIC_CONTENT_TYPES else header


def _raise_missing_key() -> str:
    raise InvalidInput("the form has no key", hint="Send key before the file: curl -F key=NAME -F blob=@FILE")


def _resource(key: str) -> str:
    return f"keys/{key}"
