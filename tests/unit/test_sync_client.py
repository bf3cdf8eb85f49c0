"""The client for those who do not await is made of the one for those who do, and is not behind it."""

from __future__ import annotations

from scripts.make_sync import all_made


def test_the_synchronous_client_is_made_of_the_asynchronous_one() -> None:
    for path, text in all_made().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is behind: run `make client`"
