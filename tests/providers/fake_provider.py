"""An OpenID provider on a real socket whose responses a test sets, correct or not."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from ingot.settings import Settings

NONCE: Final = "the-nonce"
VERIFIER: Final = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"  # With its challenge in RFC 7636.
CODE: Final = "the-code"
CALLBACK: Final = "http://127.0.0.1:1/auth/callback"
DRIP_SECONDS: Final = 0.02
RSA_KEY: Final = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"}, private=True)
OTHER_KEY: Final = RSAKey.generate_key(2048, {"kid": "other", "use": "sig"}, private=True)
EC_KEY: Final = ECKey.generate_key("P-256", {"kid": "ec"}, private=True)
OKP_KEY: Final = OKPKey.generate_key("Ed25519", {"kid": "okp"}, private=True)

Key = RSAKey | ECKey | OKPKey | OctKey


class FakeResponse:
    """The response to requests for a path. With `drips`, its body never ends."""

    def __init__(
        self, body: object = None, *, status: int = 200, headers: dict[str, str] | None = None, drips: bool = False
    ) -> None:
        self.status = status
        self.drips = drips
        self.headers = headers or {}
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


class FakeProvider:
    """A provider that responds correctly unless a test overrides a response."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.metadata: dict[str, Any] = {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "jwks_uri": f"{issuer}/keys",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
        }
        self.keys: list[Key] = [RSA_KEY, EC_KEY, OKP_KEY]
        now = int(time.time())
        self.claims: dict[str, Any] = {
            "iss": issuer,
            "aud": "ingot",
            "sub": "ada",
            "exp": now + 300,
            "iat": now,
            "nonce": NONCE,
            "email": "ada@example.com",
            "email_verified": True,
            "groups": ["staff"],
        }
        self.userinfo: dict[str, Any] = {"sub": "ada"}
        self.id_token: str | None = None
        self.signing_options: dict[str, Any] = {}  # Arguments of `sign` for ID tokens.
        self.callback_parameters: dict[str, str] = {}  # Overrides of what browsers bring back.
        self.overrides: dict[str, FakeResponse | None] = {}
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.release = asyncio.Event()

    def settings(self, **more: Any) -> Settings:
        """Settings of a server whose users sign in here."""
        options = {"oidc_client_secret": "hush", "oidc_redirect_url": CALLBACK, **more}
        return Settings(oidc_issuer=self.issuer, oidc_client_id="ingot", **options)

    def sign(
        self, key: Key = RSA_KEY, *, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token with the claims of this provider; `claims` replace some, and those that are `None` are omitted."""
        payload = {name: value for name, value in {**self.claims, **claims}.items() if value is not None}
        full = {"alg": alg, "kid": key.kid, **(header or {})}
        full = {name: value for name, value in full.items() if value is not None}
        return sign_unchecked(full, json.dumps(payload).encode(), key)

    def paths(self) -> list[str]:
        """The paths of all requests, in order."""
        return [path for path, _, _ in self.requests]

    def response_to(self, path: str) -> FakeResponse | None:
        """The response for a path; `None` sends none until `release` is set."""
        if path in self.overrides:
            return self.overrides[path]
        if path.startswith("/authorize?"):
            return self._redirect_back(dict(parse_qsl(path.partition("?")[2])))
        bodies: dict[str, Any] = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": {"keys": [key.as_dict(private=False) for key in self.keys]},
            "/token": {
                "access_token": "the-access-token",
                "token_type": "Bearer",
                "id_token": self.id_token or self.sign(**self.signing_options),
            },
            "/userinfo": self.userinfo,
        }
        return FakeResponse(bodies[path]) if path in bodies else FakeResponse({}, status=404)

    def _redirect_back(self, query: dict[str, str]) -> FakeResponse:
        """Redirect a browser back at once, and put the nonce that it brought into its ID token."""
        self.claims["nonce"] = query["nonce"]
        parameters = {"code": CODE, "state": query["state"], **self.callback_parameters}
        return FakeResponse(status=303, headers={"location": f"{query['redirect_uri']}?{urlencode(parameters)}"})

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Respond to one request, and close the connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            request_line, *lines = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
            form = await reader.readexactly(int(headers.get("content-length", "0")))
            path = request_line.split(" ")[1]
            self.requests.append((path, headers, dict(parse_qsl(form.decode()))))
            response = self.response_to(path)
            if response is None:
                await self.release.wait()
            elif response.drips:
                await self._drip(response, writer)
            else:
                writer.write(_head(response) + response.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _drip(self, response: FakeResponse, writer: StreamWriter) -> None:
        """Send a body that does not end, one byte at a time."""
        writer.write(_head(response))
        while not self.release.is_set():
            writer.write(b" ")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.release.wait(), DRIP_SECONDS)


def _head(response: FakeResponse) -> bytes:
    headers = {
        "content-type": "application/json",
        "content-length": str(len(response.body)),
        "connection": "close",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} Fake", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class _Anything(jws.JWSRegistry):
    """Signs with any header, so that tests can create tokens that must be rejected."""

    def check_header(self, header: dict[str, Any]) -> None:
        """Accept every header."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms["Ed25519" if name == "EdDSA" else name]


def sign_unchecked(header: dict[str, Any], payload: bytes, key: Key | None) -> str:
    """A token with this header, which may be invalid."""
    return jws.serialize_compact(header, payload, key, registry=_Anything())


@asynccontextmanager
async def open_fake_provider(certificate: Path | None = None) -> AsyncIterator[FakeProvider]:
    """A fake provider on a free port of this machine; with a certificate, on https."""
    listening = socket.create_server(("127.0.0.1", 0))
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    fake = FakeProvider(f"{'http' if context is None else 'https'}://127.0.0.1:{listening.getsockname()[1]}")
    async with await asyncio.start_server(fake.serve, sock=listening, ssl=context):
        try:
            yield fake
        finally:
            fake.release.set()


def make_certificate(file: Path) -> Path:
    """Write a self-signed certificate of this machine with its key. Clients trust it only if they are configured to."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    unencrypted_key = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(certificate.public_bytes(Encoding.PEM) + unencrypted_key)
    return file
