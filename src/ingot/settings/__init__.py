"""Settings, read once from environment variables and validated as a whole."""

from ingot.settings.checks import (
    LEASE_SECONDS,
    PORT_MAX,
    RATE_MAX,
    SettingsError,
    is_loopback,
    is_secure_url,
    variable_name,
)
from ingot.settings.environment import (
    cache_folder,
    environment_without_secrets,
    export_client_settings,
    find_setting_errors,
    find_unknown_variables,
    read_client_settings,
    read_database_owner_url,
    read_settings,
)
from ingot.settings.model import SECRET_FIELDS, ClientSettings, Settings

__all__ = [
    "LEASE_SECONDS",
    "PORT_MAX",
    "RATE_MAX",
    "SECRET_FIELDS",
    "ClientSettings",
    "Settings",
    "SettingsError",
    "cache_folder",
    "environment_without_secrets",
    "export_client_settings",
    "find_setting_errors",
    "find_unknown_variables",
    "is_loopback",
    "is_secure_url",
    "read_client_settings",
    "read_database_owner_url",
    "read_settings",
    "variable_name",
]
