"""A provider that says what a test tells it, true or not, on a real socket."""

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
    """What is answered at a path."""

    def __init__(
        self, body: object = None, *, status: int = 200, headers: dict[str, str] | None = None, drips: bool = False
    ) -> None:
        self.status = status
        self.drips = drips
        self.headers = headers or {}
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()


class FakeProvider:
    """A provider whose every answer can be put in its mouth. It tells the truth unless told otherwise."""

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
        self.lies: dict[str, Any] = {}  # How tokens are signed otherwise, for `sign`.
        self.sends: dict[str, str] = {}  # What browsers are sent back with otherwise.
        self.instead: dict[str, FakeResponse | None] = {}
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.release = asyncio.Event()

    def settings(self, **more: Any) -> Settings:
        """Settings of a server that has its people from here."""
        given = {"oidc_client_secret": "hush", "oidc_redirect_url": CALLBACK, **more}
        return Settings(oidc_issuer=self.issuer, oidc_client_id="ingot", **given)

    def sign(
        self, key: Key = RSA_KEY, *, alg: str = "RS256", header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token with its claims, some of them changed, those of `None` left out."""
        said = {name: value for name, value in {**self.claims, **claims}.items() if value is not None}
        full = {"alg": alg, "kid": key.kid, **(header or {})}
        full = {name: value for name, value in full.items() if value is not None}
        return sign_unchecked(full, json.dumps(said).encode(), key)

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _, _ in self.asked]

    def answer(self, path: str) -> FakeResponse | None:
        """What is answered at a path; `None` is silence."""
        if path in self.instead:
            return self.instead[path]
        if path.startswith("/authorize?"):
            return self._send_back(dict(parse_qsl(path.partition("?")[2])))
        said: dict[str, Any] = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": {"keys": [key.as_dict(private=False) for key in self.keys]},
            "/token": {
                "access_token": "the-access-token",
                "token_type": "Bearer",
                "id_token": self.id_token or self.sign(**self.lies),
            },
            "/userinfo": self.userinfo,
        }
        return FakeResponse(said[path]) if path in said else FakeResponse({}, status=404)

    def _send_back(self, asked: dict[str, str]) -> FakeResponse:
        """A browser that comes to sign in is sent back at once, and its token will have the nonce that it brought."""
        self.claims["nonce"] = asked["nonce"]
        sent = {"code": CODE, "state": asked["state"], **self.sends}
        return FakeResponse(status=303, headers={"location": f"{asked['redirect_uri']}?{urlencode(sent)}"})

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *rest = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest if one)}
            form = await reader.readexactly(int(headers.get("content-length", "0")))
            path = line.split(" ")[1]
            self.asked.append((path, headers, dict(parse_qsl(form.decode()))))
            answered = self.answer(path)
            if answered is None:
                await self.release.wait()
            elif answered.drips:
                await self._drip(answered, writer)
            else:
                writer.write(_head(answered) + answered.body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _drip(self, answered: FakeResponse, writer: StreamWriter) -> None:
        """An answer that goes on and on, a little at a time."""
        writer.write(_head(answered))
        while not self.release.is_set():
            writer.write(b" ")
            await writer.drain()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.release.wait(), DRIP_SECONDS)


def _head(answered: FakeResponse) -> bytes:
    headers = {
        "content-type": "application/json",
        "content-length": str(len(answered.body)),
        "connection": "close",
        **answered.headers,
    }
    lines = [f"HTTP/1.1 {answered.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class _Anything(jws.JWSRegistry):
    """Signs under any header: what must be refused has to be made first."""

    def check_header(self, header: dict[str, Any]) -> None:
        """Nothing is wrong."""

    def get_alg(self, name: str) -> Any:
        return self.algorithms["Ed25519" if name == "EdDSA" else name]


def sign_unchecked(header: dict[str, Any], payload: bytes, key: Key | None) -> str:
    """A token with this header, whatever is in it."""
    return jws.serialize_compact(header, payload, key, registry=_Anything())


@asynccontextmanager
async def open_fake_provider(certificate: Path | None = None) -> AsyncIterator[FakeProvider]:
    """A liar on a free port of this machine; with a certificate, on https."""
    listening = socket.create_server(("127.0.0.1", 0))
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    idp = FakeProvider(f"{'http' if context is None else 'https'}://127.0.0.1:{listening.getsockname()[1]}")
    async with await asyncio.start_server(idp.serve, sock=listening, ssl=context):
        try:
            yield idp
        finally:
            idp.release.set()


def make_certificate(file: Path) -> Path:
    """A certificate of this machine and its key, which nobody trusts who is not told to."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
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
    unlocked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(made.public_bytes(Encoding.PEM) + unlocked)
    return file
