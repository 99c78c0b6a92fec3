"""An emulator of Azure App Configuration for one machine: `app` serves it, `values` holds the key-values."""
