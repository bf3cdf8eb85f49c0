"""Settings: one frozen value, read once from the environment, checked whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ingot.kernel.errors import IngotError

LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 86_400.0
DATABASE_SCHEMES = ("postgresql://", "postgres://")
FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class SettingsError(IngotError):
    """A setting cannot be used."""

    code = "invalid_setting"
    hint = "Correct the environment variable and start again."


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How this process runs."""

    data: Path = Path("data")
    database_url: str | None = None
    database_owner_url: str | None = None
    database_pooled: bool = False
    lease_seconds: float = 180.0

    def __post_init__(self) -> None:
        if not LEASE_SECONDS_MIN <= self.lease_seconds <= LEASE_SECONDS_MAX:
            bounds = f"it goes from {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g}"
            raise SettingsError(f"lease_seconds is {self.lease_seconds}; {bounds}")
        for name in ("database_url", "database_owner_url"):
            url = getattr(self, name)
            if url is not None and not url.startswith(DATABASE_SCHEMES):
                raise SettingsError(f"{name} does not begin with {DATABASE_SCHEMES[0]}")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from `INGOT_*` variables. Raises `SettingsError`."""
    environment = os.environ if environment is None else environment
    given: dict[str, object] = {}
    if data := environment.get("INGOT_DATA"):
        given["data"] = Path(data)
    for name in ("database_url", "database_owner_url"):
        if url := environment.get(f"INGOT_{name.upper()}"):
            given[name] = url
    if pooled := environment.get("INGOT_DATABASE_POOLED"):
        if pooled.lower() not in FLAGS:
            raise SettingsError(f"INGOT_DATABASE_POOLED is {pooled!r}; it is true or false")
        given["database_pooled"] = FLAGS[pooled.lower()]
    if lease_seconds := environment.get("INGOT_LEASE_SECONDS"):
        try:
            given["lease_seconds"] = float(lease_seconds)
        except ValueError:
            raise SettingsError(f"INGOT_LEASE_SECONDS is {lease_seconds!r}; it is a number of seconds") from None
    return Settings(**given)  # type: ignore[arg-type]
