"""Protocols and overrides from Azure App Configuration: `registry` lays them over another registry, `azure`
reads them."""
