"""TLS from files: what a server shows and asks for, and whom a client trusts and what it shows.

In: paths of PEM files, with the names of the variables they come from. Out: an `ssl.SSLContext`, or `BadTls`
with one line that names the variable and says what to do. Depends on the standard library alone, so that the
client, the sdk and the servers share it.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FILE_BYTES_MAX: Final = 1024 * 1024
ALPN: Final = ("http/1.1",)

CERTIFICATE: Final = "LUCIUS_TLS_CERTIFICATE"
KEY: Final = "LUCIUS_TLS_KEY"
CLIENT_CA: Final = "LUCIUS_TLS_CLIENT_CA"
INTERNAL_CLIENT_CA: Final = "LUCIUS_INTERNAL_TLS_CLIENT_CA"
CA: Final = "LUCIUS_TLS_CA"
CLIENT_CERTIFICATE: Final = "LUCIUS_TLS_CLIENT_CERTIFICATE"
CLIENT_KEY: Final = "LUCIUS_TLS_CLIENT_KEY"

_CERTIFICATE_MARKS: Final = (b"-----BEGIN CERTIFICATE-----", b"-----BEGIN TRUSTED CERTIFICATE-----")
_KEY_MARK: Final = b"PRIVATE KEY-----"


class BadTls(ValueError):
    """A file cannot be used. The text says which, and what to do."""


def server_tls(
    certificate: Path,
    key: Path | None,
    client_ca: Path | None = None,
    *,
    names: tuple[str, str, str] = (CERTIFICATE, KEY, CLIENT_CA),
) -> ssl.SSLContext:
    """For a port. `key` None: it is in the certificate's file. With `client_ca` a client that has no
    certificate of that CA is refused in the handshake. `names`: of the variables. Raises `BadTls`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(list(ALPN))
    _show(context, certificate, key, names[:2])
    if client_ca is not None:
        _trust(context, client_ca, names[2])
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """For calls. `ca` None: those that the system trusts. None: nothing was asked for, and the usual holds.
    Raises `BadTls`."""
    if key is not None and certificate is None:
        raise BadTls(f"{CLIENT_KEY} needs {CLIENT_CERTIFICATE} beside it: the certificate of that key")
    if ca is None and certificate is None:
        return None
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(ALPN))
    if ca is not None:
        _trust(context, ca, CA)
    if certificate is not None:
        _show(context, certificate, key, (CLIENT_CERTIFICATE, CLIENT_KEY))
    return context


def client_tls_of(env: Mapping[str, str]) -> ssl.SSLContext | None:
    """The same as the variables say. Raises `BadTls`."""

    def path(name: str) -> Path | None:
        text = env.get(name, "").strip()
        return Path(text) if text else None

    return client_tls(path(CA), path(CLIENT_CERTIFICATE), path(CLIENT_KEY))


def _trust(context: ssl.SSLContext, path: Path, name: str) -> None:
    text = _read(path, name)
    if not any(mark in text for mark in _CERTIFICATE_MARKS):
        raise BadTls(f"{name}: {path} holds no certificate of a CA; name a PEM file that does")
    try:
        context.load_verify_locations(cadata=text.decode("ascii", "replace"))
    except ssl.SSLError as fault:
        raise BadTls(f"{name}: {path} cannot be used ({_reason(fault)}); name a PEM file of CAs") from None


def _show(context: ssl.SSLContext, certificate: Path, key: Path | None, names: tuple[str, ...]) -> None:
    certificate_name, key_name = names
    text = _read(certificate, certificate_name)
    if not any(mark in text for mark in _CERTIFICATE_MARKS):
        raise BadTls(f"{certificate_name}: {certificate} holds no certificate; name a PEM file that does")
    if key is None and _KEY_MARK not in text:
        raise BadTls(
            f"{key_name} is not set, and {certificate} holds no private key: name the key's PEM file"
        )
    if key is not None and _KEY_MARK not in _read(key, key_name):
        raise BadTls(f"{key_name}: {key} holds no private key; name the PEM file of the certificate's key")
    asked_for_password: list[bool] = []

    def no_password() -> str:
        """Without it OpenSSL would ask at the terminal."""
        asked_for_password.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, no_password)
    except (ssl.SSLError, OSError, ValueError) as fault:
        where = key or certificate
        if asked_for_password:
            what = "has a password; name one without, which only this user may read"
        elif isinstance(fault, ssl.SSLError) and fault.reason == "KEY_VALUES_MISMATCH":
            what = f"is not the key of the certificate in {certificate}; name the one that it was made with"
        else:
            what = f"cannot be used with {certificate} ({_reason(fault)}); name a certificate and its key"
        raise BadTls(f"{key_name if key else certificate_name}: {where} {what}") from None


def _read(path: Path, name: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as fault:
        why = os.strerror(fault.errno) if isinstance(fault, OSError) and fault.errno else "not a path"
        raise BadTls(
            f"{name}: {path} cannot be read ({why}); name a PEM file that this user may read"
        ) from None
    if len(content) > FILE_BYTES_MAX:
        raise BadTls(f"{name}: {path} is larger than {FILE_BYTES_MAX} bytes; name a PEM file")
    return content


def _reason(fault: Exception) -> str:
    reason = fault.reason if isinstance(fault, ssl.SSLError) else None
    return (reason or type(fault).__name__).lower().replace("_", " ")
