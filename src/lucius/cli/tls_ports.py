"""Which of the ports and calls of a process are encrypted, and how.

In: the settings. Out: contexts, None where plain HTTP is spoken. All files are tried at the start, so that a
file that cannot be used stops it.
"""

import ssl
from enum import StrEnum

from lucius.settings import BadSetting, TlsSettings
from lucius.tls import CERTIFICATE, CLIENT_CA, INTERNAL_CLIENT_CA, KEY, BadTls, client_tls, server_tls


class Port(StrEnum):
    PUBLIC = "public"
    """Of the API, and of callbacks."""
    INTERNAL = "internal"
    """Of the invoker."""
    HEALTH = "health"
    """Probes have no certificate, so these ports ask for none."""


def port_tls(asked: TlsSettings, port: Port) -> ssl.SSLContext | None:
    """Raises `BadTls`."""
    if asked.certificate is None:
        return None
    client_ca, name = (None if port is Port.HEALTH else asked.client_ca), CLIENT_CA
    if port is Port.INTERNAL and asked.internal_client_ca is not None:
        client_ca, name = asked.internal_client_ca, INTERNAL_CLIENT_CA
    return server_tls(asked.certificate, asked.key, client_ca, names=(CERTIFICATE, KEY, name))


def calls_tls(asked: TlsSettings) -> ssl.SSLContext | None:
    """For calls of Lucius. Raises `BadTls`."""
    return client_tls(asked.ca, asked.client_certificate, asked.client_key)


def check_tls(asked: TlsSettings) -> None:
    """Raises `BadSetting`."""
    try:
        for port in Port:
            port_tls(asked, port)
        calls_tls(asked)
    except BadTls as fault:
        raise BadSetting(str(fault)) from None
