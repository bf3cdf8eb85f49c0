"""A token that may read some keys may read their blobs, even if many other keys hold the same bytes."""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from ingot.identity.grants import Grant
from tests.http.serving import serving

SAME = b"the same bytes"


async def test_a_token_reads_a_blob_that_many_hidden_keys_hold_too(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        for n in range(110):
            await served.call("PUT", f"/keys/other/{n}", content=SAME)
        blob = blake3(SAME).hexdigest()
        token = await served.token(Grant(action="blobs.read", resource="keys/pub"))
        for path in (f"/blobs/{blob}", f"/blobs/{blob}/url", f"/blobs/{blob}/references"):
            assert (await served.call("GET", path, token=token)).status_code == 404, path
        await served.call("PUT", "/keys/pub/z", content=SAME)
        assert (await served.call("GET", f"/blobs/{blob}", token=token)).content == SAME
        assert (await served.call("GET", f"/blobs/{blob}/url", token=token)).status_code == 200
        references = (await served.call("GET", f"/blobs/{blob}/references", token=token)).json()["references"]
        assert [reference["name"] for reference in references] == ["pub/z"]
