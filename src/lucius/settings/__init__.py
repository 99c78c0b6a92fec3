"""Every setting is a `LUCIUS_*` variable. A value that cannot be used is refused by name, at start.

`table` declares the variables; `reading` makes `Settings` from an environment; `names` finds misspelt ones;
`documentation` writes docs/reference/settings.md. A new variable is one entry of the table and one line where
its value is read.
"""

from lucius.settings.declaration import BadSetting
from lucius.settings.reading import read_settings
from lucius.settings.values import (
    AppConfigurationSettings,
    IdentitySettings,
    NatsSettings,
    ServiceBusSettings,
    Settings,
    StoreKind,
    StoreUrl,
    TablesSettings,
    TemporalSettings,
    TlsSettings,
)

__all__ = [
    "AppConfigurationSettings",
    "BadSetting",
    "IdentitySettings",
    "NatsSettings",
    "ServiceBusSettings",
    "Settings",
    "StoreKind",
    "StoreUrl",
    "TablesSettings",
    "TemporalSettings",
    "TlsSettings",
    "read_settings",
]
