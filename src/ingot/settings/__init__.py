"""Settings: one frozen value, read once from the environment, checked whole."""

from ingot.settings.checks import PORT_MAX, RATE_MAX, SettingsError, is_loopback, is_trusted, variable_of
from ingot.settings.model import SECRET, ClientSettings, Settings
from ingot.settings.reading import (
    cache_folder,
    faults,
    have_clients_find,
    read_client_settings,
    read_owner_url,
    read_settings,
    unknown_names,
    without_secrets,
)

__all__ = [
    "PORT_MAX",
    "RATE_MAX",
    "SECRET",
    "ClientSettings",
    "Settings",
    "SettingsError",
    "cache_folder",
    "faults",
    "have_clients_find",
    "is_loopback",
    "is_trusted",
    "read_client_settings",
    "read_owner_url",
    "read_settings",
    "unknown_names",
    "variable_of",
    "without_secrets",
]
