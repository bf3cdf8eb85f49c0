"""The configuration of nginx in the documentation, in front of a real server."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ingot.client import AsyncClient
from ingot.client.errors import ProxyLimit, ServerUnreachable
from ingot.settings import Settings
from tests.http.serving import Served, serving
from tests.processes import started_async
from tests.providers.programs import nginx
from tests.waiting import eventually

pytestmark = pytest.mark.nginx
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-behind-nginx.md"
MIB = 1024 * 1024
CLIENT = {"x-forwarded-for": "203.0.113.9"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def configuration(folder: Path, port: int, server_port: int) -> str:
    """The configuration in the documentation, for these ports, without TLS, and with all files in this folder."""
    match = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None
    text = re.sub(r"\n *(ssl_certificate|server_name).*", "", match[1])
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace(":8080;", f":{server_port};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    head = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
    return f"{head}http {{\naccess_log off;\n{paths}{text}}}\n"


@asynccontextmanager
async def in_front_of(served: Served, folder: Path, **changes: str) -> AsyncIterator[str]:
    """The URL of an nginx in front of a server. `changes` replace values of directives."""
    port, folder = free_port(), folder / "nginx"
    folder.mkdir()
    text = configuration(folder, port, int(served.url.rpartition(":")[2]))
    for name, value in changes.items():
        text, count = re.subn(rf"\b{name} [^;]*;", f"{name} {value};", text)
        assert count == 1, name
    (folder / "nginx.conf").write_text(text)
    arguments = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    async with started_async(nginx(), *arguments):

        def accepts() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        await eventually(accepts)
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "data", Settings(trusted_proxies=("127.0.0.1",))) as served:
        yield served


async def test_large_files_pass_through_nginx(behind: Served, tmp_path: Path) -> None:
    content = os.urandom(20 * MIB)
    async with (
        in_front_of(behind, tmp_path) as url,
        AsyncClient(url, token=behind.operator, tenant="default") as client,
    ):
        await client.blobs.put(content, "a/large file.bin")
        assert await client.blobs.get("a/large file.bin") == content
        headers = {"authorization": f"Bearer {behind.operator}"}
        response = await behind.client.put(f"{url}/api/v1/keys/b%2Fc", content=content, headers=headers)
        assert (response.status_code, response.json()["key"]) == (201, "b/c")
    assert not any((tmp_path / "nginx" / "client_body").iterdir())


async def test_events_and_waiting_requests_pass_through_nginx(behind: Served, tmp_path: Path) -> None:
    async with in_front_of(behind, tmp_path) as url:
        headers = {"authorization": f"Bearer {behind.operator}"}
        async with behind.client.stream("GET", f"{url}/api/v1/events/stream", headers=headers) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            claim = {"types": ["noop"], "worker_id": "w", "wait_seconds": 20}
            claiming = asyncio.create_task(behind.client.post(f"{url}/api/v1/jobs/claim", json=claim, headers=headers))
            await asyncio.sleep(0.1)
            job = await behind.make_job()
            async with asyncio.timeout(15):
                while not (await anext(lines)).startswith("event: job.created"):
                    pass
            assert (await claiming).json()["jobs"][0]["id"] == job["id"]


async def test_the_server_sees_the_address_of_the_client_that_nginx_saw(behind: Served, tmp_path: Path) -> None:
    async with in_front_of(behind, tmp_path) as url:
        headers = {"authorization": f"Bearer {behind.operator}", **CLIENT}
        await behind.client.put(f"{url}/api/v1/pauses/greet", headers=headers)
    entry = (await behind.call("GET", "/admin/audit?action=type.paused")).json()["items"][0]
    assert entry["address"] == "203.0.113.9"  # Appended by nginx: its client, 127.0.0.1, which is trusted here.


async def test_the_client_names_the_errors_of_nginx(behind: Served, tmp_path: Path) -> None:
    async with in_front_of(behind, tmp_path, client_max_body_size="1m") as url:
        headers = {"authorization": f"Bearer {behind.operator}"}
        async with AsyncClient(url, token=behind.operator, tenant="default", patience=0) as client:
            with pytest.raises(ProxyLimit, match="413 Request Entity Too Large"):
                await client.submit_many("noop", ["x" * 60_000] * 40)
            assert (await behind.client.get(f"{url}/healthz", headers=headers)).status_code == 200
            behind.server.stop()

            async def is_down() -> bool:
                try:
                    await client.me()
                except ServerUnreachable as error:
                    return "'502 Bad Gateway'" in error.detail
                return False

            await eventually(is_down)


async def test_a_waiting_client_survives_a_restart_behind_nginx(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with serving(tmp_path / "data") as first:
            url = await stack.enter_async_context(in_front_of(first, tmp_path))
            client = await stack.enter_async_context(AsyncClient(url, token=first.operator, tenant="default"))
            job = await client.submit("noop")
            port = int(first.url.rpartition(":")[2])
        waiting = asyncio.create_task(client.read(job.id))
        await asyncio.sleep(1)
        assert not waiting.done()
        with socket.create_server(("127.0.0.1", port)) as listening:
            async with serving(tmp_path / "data", listening=listening):
                assert (await waiting).id == job.id
