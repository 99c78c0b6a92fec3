"""What a process that serves clients prints at its start about who may call it."""

from pathlib import Path

from lucius.cli.serving import is_wildcard
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.store import StoreError
from lucius.settings import Settings


async def gate_lines(data: Path, host: str, settings: Settings, keys: ApiKeyStore) -> list[str]:
    """Who may come in, and what is still missing for it."""
    if not settings.auth_required:
        return ["open to this machine only: every local caller may do everything (LUCIUS_AUTH=open)"]
    issuer = "" if settings.oidc is None else f" or a token of {settings.oidc.issuer}"
    lines = [f"authentication is required: an API key{issuer} in every call"]
    try:
        without_keys = not any(key.revoked_at_ms is None for key in await keys.all())
    except StoreError:
        without_keys = False
    if without_keys and settings.oidc is None:
        command = f"lucius keys create NAME --tenant '*' --role admin --data {data}"
        lines.append(f"there is no key yet; make the first one with: {command}")
    if settings.public_url is None and is_wildcard(host):
        lines.append("services elsewhere cannot answer to this address: set LUCIUS_PUBLIC_URL")
    return lines
