"""Requests to a bucket, signed with botocore: sent by the server, or by clients that have a signed URL."""

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

SIGNATURE_SECONDS: Final = 300  # How long the signature of a request by the server is valid.
TRIES_MAX: Final = 4
RETRY_PAUSE_SECONDS: Final = 0.1  # Pause after the first failure. It doubles after each further one.
BODY_CHUNK_BYTES: Final = 256 * 1024
RESPONSE_TIMEOUT_SECONDS: Final = 60.0
CONNECT_TIMEOUT_SECONDS: Final = 5.0
CONNECTIONS_MAX: Final = 64
TRANSIENT_STATUSES: Final = frozenset({429, 500, 502, 503, 504})  # Responses after which a retry may succeed.
STORAGE_FULL_CODES: Final = frozenset(
    {"InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XAmzBucketQuotaExceeded"}
)
WRONG_REGION_CODES: Final = frozenset(
    {"AuthorizationHeaderMalformed", "AuthorizationQueryParametersError", "PermanentRedirect"}
)
_STATUS_PATTERN: Final = re.compile(r"status code: (\d{3})")
_CODE_PATTERN: Final = re.compile(r"<Code>(\w+)</Code>")


class BucketResponse(msgspec.Struct, frozen=True):
    """A response of the object store: its status, its error code or `""`, and its parsed body if it is XML."""

    status: int
    code: str
    xml: ElementTree.Element | None

    @property
    def is_success(self) -> bool:
        """Return whether the request succeeded."""
        return 200 <= self.status < 300

    @property
    def is_misdirected(self) -> bool:
        """Return whether this is a 404 that is not about the object: no such bucket, or not an object store."""
        return self.status == 404 and self.code in ("", "NoSuchBucket")

    def xml_text(self, name: str) -> str:
        """Return the text of the first child of the root element with this name, or an empty text."""
        return "" if self.xml is None else self.xml.findtext(f"{{*}}{name}", "")


class BucketClient:
    """A client that sends and signs requests to one bucket. Safe to use from many tasks at once.

    The server sends its requests to `url`. URLs for clients use `public_url` if it is set, because a signature is valid
    for one host only.
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
        """Sign a URL that permits exactly this request, with exactly these headers, for `seconds`."""
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
        """Send a request, with retries, and return its response if it succeeded or has one of `accepted_statuses`.

        An accepted 404 must be about the object and not about the bucket. Raises `StorageFull`, `StoreMisconfigured` or
        `StoreError`.
        """
        failure: StoreError | None = None
        sent_headers = {"content-length": str(len(body))} | dict(headers or {})
        for retry in range(TRIES_MAX):
            if retry:
                await asyncio.sleep(self._retry_pause_seconds * 2 ** (retry - 1))
            url = self._sign(self._url, method, key, seconds=SIGNATURE_SECONDS, query=query, headers=headers)
            try:
                http_response = await self._http.request(method, url, headers=sent_headers, content=_body_chunks(body))
            except httpx.HTTPError as error:
                failure = unreachable_error()
                failure.__cause__ = error
                continue
            response = _parse_response(http_response)
            if response.is_success or (response.status in accepted_statuses and not response.is_misdirected):
                return response
            failure = error_for_status(response.status, response.code)
            if response.status not in TRANSIENT_STATUSES:
                break
        raise failure or unreachable_error()


async def _body_chunks(body: bytes) -> AsyncIterator[bytes]:
    """Yield the body in chunks. httpx would keep a complete body in memory for a while after the request."""
    for start in range(0, len(body), BODY_CHUNK_BYTES):
        yield body[start : start + BODY_CHUNK_BYTES]


def bucket_url(bucket: str, endpoint: str | None, region: str) -> str:
    """Return the URL of a bucket, without a slash at the end."""
    if endpoint is not None:
        return f"{endpoint.removesuffix('/')}/{bucket}"
    if "." in bucket:  # The wildcard certificate of S3 does not cover a name with further dots.
        return f"https://s3.{region}.amazonaws.com/{bucket}"
    return f"https://{bucket}.s3.{region}.amazonaws.com"


def _parse_response(response: httpx.Response) -> BucketResponse:
    """Parse a response. A 200 that contains an error becomes a 500.

    S3 begins its response to the joining of parts before it knows whether that succeeds.
    """
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
    """Create the error for a response that is not a success."""
    if status == 507 or code in STORAGE_FULL_CODES:
        return StorageFull("The object store is full.")
    if code == "NoSuchBucket":
        return StoreMisconfigured(
            "The bucket does not exist in the object store.",
            hint="Check INGOT_S3_BUCKET, INGOT_S3_ENDPOINT and INGOT_S3_REGION. Ingot does not create the bucket.",
        )
    if code == "InvalidAccessKeyId":
        return StoreMisconfigured("The object store does not know the access key.", hint="Check INGOT_S3_ACCESS_KEY.")
    if code == "SignatureDoesNotMatch":
        return StoreMisconfigured(
            "The object store rejected the signature of a request.",
            hint="Check INGOT_S3_SECRET_KEY, and that no proxy on the way to the store changes requests.",
        )
    if code == "RequestTimeTooSkewed":
        return StoreMisconfigured(
            "The clocks of this server and of the object store differ too much.", hint="Correct the clock."
        )
    if code in WRONG_REGION_CODES or status in (301, 307, 308):
        return StoreMisconfigured(
            "The bucket is in another region, or at another endpoint.",
            hint="Check INGOT_S3_REGION and INGOT_S3_ENDPOINT.",
        )
    if status in (401, 403):
        return StoreMisconfigured(
            "The object store denied access.",
            hint="The key in INGOT_S3_ACCESS_KEY needs permission to list the bucket and its multipart uploads, and to "
            "read, write and delete objects in it.",
        )
    return StoreError(f"The object store responded {status} {code}".rstrip() + ".")


def unreachable_error() -> StoreError:
    """Create the error for an object store that does not respond."""
    return StoreError("The object store cannot be reached.")


def status_and_code(error: Exception) -> tuple[int, str]:
    """Parse the status and the code of the response from an error of obstore; 0 and `""` if there was no response."""
    status, code = _STATUS_PATTERN.search(str(error)), _CODE_PATTERN.search(str(error))
    return int(status[1]) if status else 0, code[1] if code else ""


def error_for_exception(error: Exception) -> StoreError:
    """Convert an error of obstore."""
    status, code = status_and_code(error)
    return error_for_status(status, code) if status else unreachable_error()
