"""Requests to a bucket, signed with botocore: sent by us, or by whoever has the address."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final
from urllib.parse import quote, urlencode
from xml.etree import ElementTree

import httpx
import msgspec
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from ingot.kernel.errors import StorageFull, StoreError, StoreMisconfigured

SIGNATURE_SECONDS: Final = 300  # How long the address of a request of ours is good.
TRIES_MAX: Final = 4
RETRY_PAUSE_SECONDS: Final = 0.1  # After the first failure, and twice as long after each further one.
BODY_CHUNK_BYTES: Final = 256 * 1024
RESPONSE_TIMEOUT_SECONDS: Final = 60.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 64
TRANSIENT_STATUSES: Final = frozenset({429, 500, 502, 503, 504})  # What may be better the next time.
STORAGE_FULL_CODES: Final = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XAmzBucketQuotaExceeded"}
)
WRONG_REGION_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "PermanentRedirect"}
)
_STATUS_PATTERN: Final = re.compile(r"status code: (\d{3})")
_CODE_PATTERN: Final = re.compile(r"<Code>(\w+)</Code>")


class BucketResponse(msgspec.Struct, frozen=True):
    """What the store said: its status, the code of its error, and the tree of its body where it has one."""

    status: int
    code: str
    xml: ElementTree.Element | None

    @property
    def is_success(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    @property
    def is_misdirected(self) -> bool:
        """Whether it says nothing of what was asked for: the bucket is away, or this is no object store."""
        return self.status == 404 and self.code in ("", "NoSuchBucket")

    def xml_text(self, name: str) -> str:
        """The text of the first element of this name at the top, or nothing."""
        return "" if self.xml is None else self.xml.findtext(f"{{*}}{name}", "")


class BucketClient:
    """Signed requests to one bucket. Safe to use from many tasks at once.

    We send ours to `url`. Others come to `public_url`, where that is another: a signature is for one host.
    """

    def __init__(
        self,
        url: str,
        *,
        access_key: str,
        secret_key: str,
        region: str,
        public_url: str | None = None,
        retry_pause_seconds: float = RETRY_PAUSE_SECONDS,
    ) -> None:
        self._url = url
        self._public_url = public_url or url
        self._retry_pause_seconds = retry_pause_seconds
        self._region = region
        self._credentials = ReadOnlyCredentials(access_key, secret_key, None)
        self._http = httpx.AsyncClient(
            verify=ssl.create_default_context() if self._url.startswith("https:") else False,
            timeout=httpx.Timeout(RESPONSE_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            follow_redirects=False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def presigned_url(
        self,
        method: str,
        key: str,
        *,
        seconds: int,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Where whoever has it can do this, and nothing else, for so long, with exactly these headers."""
        return self._sign(self._public_url, method, key, seconds=seconds, query=query, headers=headers)

    def _sign(
        self,
        base: str,
        method: str,
        key: str,
        *,
        seconds: int,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> str:
        url = f"{base}/{quote(key)}" if key else base
        if query:
            url += "?" + urlencode(query, quote_via=quote)
        request = AWSRequest(method=method, url=url, headers=dict(headers or {}))
        S3SigV4QueryAuth(self._credentials, "s3", self._region, expires=seconds).add_auth(request)
        return str(request.url)

    async def send(
        self,
        method: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        accepted_statuses: Collection[int] = (),
    ) -> BucketResponse:
        """The answer, if it is a success or one of the statuses that are fine too. Tried again a few times.

        That something is not there counts as fine only when the store says what. Raises `StorageFull`,
        `StoreMisconfigured` or `StoreError`.
        """
        failure: StoreError | None = None
        told = {"content-length": str(len(body))} | dict(headers or {})
        for again in range(TRIES_MAX):
            if again:
                await asyncio.sleep(self._retry_pause_seconds * 2 ** (again - 1))
            url = self._sign(self._url, method, key, seconds=SIGNATURE_SECONDS, query=query, headers=headers)
            try:
                response = await self._http.request(method, url, headers=told, content=_body_chunks(body))
            except httpx.HTTPError as error:
                failure = unreachable_error()
                failure.__cause__ = error
                continue
            answer = _parse_response(response)
            if answer.is_success or (answer.status in accepted_statuses and not answer.is_misdirected):
                return answer
            failure = error_for_status(answer.status, answer.code)
            if answer.status not in TRANSIENT_STATUSES:
                break
        raise failure or unreachable_error()


async def _body_chunks(body: bytes) -> AsyncIterator[bytes]:
    """The body bit by bit: what httpx has of a request stays in memory for a while after it."""
    for start in range(0, len(body), BODY_CHUNK_BYTES):
        yield body[start : start + BODY_CHUNK_BYTES]


def bucket_url(bucket: str, endpoint: str | None, region: str) -> str:
    """The address of a bucket, without a slash at its end."""
    if endpoint is not None:
        return f"{endpoint.removesuffix('/')}/{bucket}"
    if "." in bucket:  # No certificate is for names below a name.
        return f"https://s3.{region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{region}.amazonaws.com"


def _parse_response(response: httpx.Response) -> BucketResponse:
    """A success can hold an error: joining parts begins to answer before it is done. It counts as one of the store."""
    try:
        tree = ElementTree.fromstring(response.content) if response.content else None
    except ElementTree.ParseError:
        tree = None
    code = ""
    if tree is not None and tree.tag.rpartition("}")[2] == "Error":
        code = tree.findtext("{*}Code", "Error")
    status = 500 if code and response.is_success else response.status_code
    return BucketResponse(status, code, tree)


def error_for_status(status: int, code: str) -> StoreError:
    """What it means that the store answered so."""
    if status == 507 or code in STORAGE_FULL_CODES:
        return StorageFull("The object store is full.")
    if code == "NoSuchBucket":
        return StoreMisconfigured(
            "There is no such bucket in the object store.",
            hint="Check INGOT_S3_BUCKET, INGOT_S3_ENDPOINT and INGOT_S3_REGION; Ingot does not make the bucket.",
        )
    if code == "InvalidAccessKeyId":
        return StoreMisconfigured("The object store does not know the key.", hint="Check INGOT_S3_ACCESS_KEY.")
    if code == "SignatureDoesNotMatch":
        return StoreMisconfigured(
            "The object store does not accept our signature.",
            hint="Check INGOT_S3_SECRET_KEY, and that nothing on the way to the store changes requests.",
        )
    if code == "RequestTimeTooSkewed":
        return StoreMisconfigured("The object store has another time than we do.", hint="Correct the clock.")
    if code in WRONG_REGION_CODES or status in (301, 307, 308):
        return StoreMisconfigured(
            "The bucket is in another region, or at another address.", hint="Check INGOT_S3_REGION, INGOT_S3_ENDPOINT."
        )
    if status in (401, 403):
        return StoreMisconfigured(
            "The object store does not let us do this.",
            hint="The key of INGOT_S3_ACCESS_KEY needs to list the bucket and its multipart uploads, and to read, "
            "write and delete in it.",
        )
    return StoreError(f"The object store answered {status} {code}".rstrip() + ".")


def unreachable_error() -> StoreError:
    """What is told when nothing answered."""
    return StoreError("The object store cannot be reached.")


def status_and_code(error: Exception) -> tuple[int, str]:
    """The status and the code that the store answered, from what obstore raised; 0 when nothing answered."""
    status, code = _STATUS_PATTERN.search(str(error)), _CODE_PATTERN.search(str(error))
    return int(status[1]) if status else 0, code[1] if code else ""


def error_for_exception(error: Exception) -> StoreError:
    """What it means that obstore raised this."""
    status, code = status_and_code(error)
    return error_for_status(status, code) if status else unreachable_error()
