"""App Configuration by its address and an identity: over TLS, since the library sends no token without."""

import asyncio
import ipaddress
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lucius_lab.emulators.app_configuration.app import AppConfigurationEmulator, serving

PROCESS_SECONDS_MAX = 60

# In a process of its own, since the certificates that are trusted are read once.
READ = """
import asyncio, json, sys, time
from azure.core.credentials import AccessToken, AccessTokenInfo
from lucius.assembly.azure.identity import AzureIdentity
from lucius.registry.app_configuration.azure import AzureAppConfiguration, ConfigurationAddress
from lucius.registry.app_configuration.values import ConfigurationUnavailable

class Given:
    async def get_token(self, *scopes, **more):
        return AccessToken(sys.argv[2], int(time.time()) + 3600)
    async def get_token_info(self, *scopes, options=None):
        return AccessTokenInfo(sys.argv[2], int(time.time()) + 3600)
    async def close(self):
        pass

async def main():
    where = ConfigurationAddress(endpoint=sys.argv[1], label="prod")
    source = AzureAppConfiguration(where, clock=time.monotonic, credential=AzureIdentity("given", Given()))
    try:
        found = await source.read()
        print(json.dumps([dict(found.values), dict(found.features)]))
    except ConfigurationUnavailable as fault:
        print(fault)
    finally:
        await source.close()

asyncio.run(main())
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """For 127.0.0.1, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "certificate.pem"
    file.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return file


async def read_with(token: str, port: int, certificate: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", READ, f"https://127.0.0.1:{port}", token),
        env={**os.environ, "SSL_CERT_FILE": str(certificate)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(process.communicate(), PROCESS_SECONDS_MAX)
    return out.decode().strip()


async def test_an_identity_opens_the_store(certificate: Path) -> None:
    emulator = AppConfigurationEmulator(now_seconds=time.time, token="token-of-ours")
    emulator.put("lucius/tenants/acme", "x", label="prod")
    emulator.put_feature("beta", enabled=True)
    async with serving(emulator, certificate=certificate) as port:
        assert (
            await read_with("token-of-ours", port, certificate) == '[{"tenants/acme": "x"}, {"beta": true}]'
        )
        told = await read_with("canary-5c0ffee", port, certificate)
    assert told == "App Configuration cannot be read (HTTP 401)"
