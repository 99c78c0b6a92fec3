"""Everything around a webhook but Lucius itself: a world of rows, a receiver with a certificate, names."""

import datetime
import ssl
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from standardwebhooks.webhooks import Webhook
from tests.conformance.ledger_setup import Deployment, T, World, opened_world, submit
from tests.support.webhook_receiver import Received, Receiver, receiver

from lucius.engines.webhooks.address import CallbackPolicy
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.engines.webhooks.sender import WebhookSender
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.webhooks import WebhookPhase, WebhookRows

HOST = "hooks.example.com"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OLD_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])


@cache
def _authority() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def trusted() -> ssl.SSLContext:
    """What a client trusts: an authority of our own."""
    root = _certificate(ISSUER, _authority(), "authority", ca=True)
    return ssl.create_default_context(cadata=root.public_bytes(serialization.Encoding.PEM).decode())


def served(host: str) -> ssl.SSLContext:
    """What a server shows that is called so."""
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _certificate(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]), key, host, ca=False)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(private + leaf.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePrivateKey, host: str, *, ca: bool
) -> x509.Certificate:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ISSUER)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(_authority(), hashes.SHA256())
    )


class Setup:
    """A world with a receiver in it. Its clock starts at the real time, which receivers compare with."""

    def __init__(self, world: World, there: Receiver) -> None:
        self.world, self.there = world, there
        world.clock.now_ms = time.time_ns() // 1_000_000
        self.url = f"https://{HOST}:{there.port}/done?job=1"
        self.secrets = [SECRET]

    def webhooks(
        self, deployment: Deployment, *, seconds: float = 5.0, look_every_ms: int = 50
    ) -> WebhookDelivery:
        async def resolve(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        webhook_sender = WebhookSender(
            CallbackPolicy(private_allowed=True),
            resolve,
            lambda: self.secrets,
            user_agent="Lucius-Webhooks/test",
            tls=trusted(),
            send_seconds_max=seconds,
        )
        return WebhookDelivery(
            deployment.ledger, webhook_sender, now_ms=self.world.clock, look_every_ms=look_every_ms
        )

    async def send(self, deployment: Deployment | None = None, *, seconds: float = 5.0) -> WebhookDelivery:
        """One look of a process, and all that follows from it."""
        webhooks = self.webhooks(deployment or self.world.deployment(), seconds=seconds)
        await webhooks.look()
        await webhooks.settle()
        return webhooks

    async def ended(
        self, deployment: Deployment | None = None, number: int = 1, url: str | None = None
    ) -> str:
        deployment = deployment or self.world.deployment()
        job_id = await submit(deployment, number, callback_urls={"completed": url or self.url})
        await deployment.work()
        return job_id

    async def phase(self, job_id: str) -> WebhookPhase | None:
        loaded = await self.world.deployment().ledger.load(job_id)
        assert loaded is not None
        held = await WebhookRows(self.world.store, T).held(loaded.record.job.lane, job_id)
        return None if held is None else held.state.phase

    async def rows(self) -> list[str]:
        return sorted(key for table, _, key in await self.world.rows() if table == T.webhooks)

    def verified(self, request: Received, secret: str = SECRET) -> dict[str, Any]:
        document: dict[str, Any] = Webhook(secret).verify(request.body, request.headers)
        return document


@asynccontextmanager
async def opened_setup(
    folder: Path, store: str = "memory-no-spans", layout: LayoutName = LayoutName.LEDGER
) -> AsyncIterator[Setup]:
    async with opened_world(store, layout, folder) as world, receiver(tls=served(HOST)) as there:
        yield Setup(world, there)
