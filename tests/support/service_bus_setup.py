"""As much of the administration of a Service Bus namespace as provisioning needs: Atom over HTTPS on
loopback, for the SDK as it is. It keeps what it is told, adds what Azure would, and refuses what Azure
refuses."""

import asyncio
import copy
import datetime
import ipaddress
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

ATOM = "{http://www.w3.org/2005/Atom}"
SB = "{http://schemas.microsoft.com/netservices/2010/10/servicebus/connect}"
XSI_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
SECRET = "canary-5ec4e7"
NEVER = "P10675199DT2H48M5.4775807S"
PAGE_MAX = 7  # small, so that lists come in several pages
DEFAULTS = {
    "TopicDescription": {
        "DefaultMessageTimeToLive": NEVER,
        "MaxSizeInMegabytes": "1024",
        "RequiresDuplicateDetection": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "Status": "Active",
        "AutoDeleteOnIdle": NEVER,
    },
    "SubscriptionDescription": {
        "LockDuration": "PT1M",
        "RequiresSession": "false",
        "DefaultMessageTimeToLive": NEVER,
        "DeadLetteringOnMessageExpiration": "false",
        "MaxDeliveryCount": "10",
        "Status": "Active",
        "AutoDeleteOnIdle": NEVER,
    },
    "RuleDescription": {"Name": "$Default"},
}
PINNED = ("RequiresDuplicateDetection", "RequiresSession")


class Refuses(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class AdminApi:
    """`things`: descriptions by path, such as `p0`, `p0/subscriptions/ocr` and
    `p0/subscriptions/ocr/rules/$Default`."""

    def __init__(self) -> None:
        self.things: dict[str, Element] = {}
        self.asked: list[tuple[str, str]] = []
        self.address = ""
        self.may_look = True
        self.may_write = True
        self.shut = ""  # what ends like this may not be looked at
        self.strays = 0  # messages that a new subscription has at once

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://{self.address}/;SharedAccessKeyName=root;SharedAccessKey={SECRET}"

    def setting(self, path: str, name: str) -> str | None:
        return self.things[path.lower()].findtext(f"{SB}{name}")

    def set(self, path: str, name: str, value: str) -> None:
        """Behind everybody's back."""
        thing = self.things[path.lower()]
        found = thing.find(f"{SB}{name}")
        (SubElement(thing, f"{SB}{name}") if found is None else found).text = value

    def add_rule(self, path: str, name: str, kind: str, text: str) -> None:
        rule = Element(f"{SB}RuleDescription")
        SubElement(SubElement(rule, f"{SB}Filter", {XSI_TYPE: kind}), f"{SB}SqlExpression").text = text
        SubElement(rule, f"{SB}Action", {XSI_TYPE: "EmptyRuleAction"})
        SubElement(rule, f"{SB}Name").text = name
        self.things[f"{path}/rules/{name}".lower()] = rule

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = unquote(scope["path"]).strip("/").lower()
        self.asked.append((scope["method"], path))
        try:
            status, told = self._answer(scope, path, headers, body)
        except Refuses as refusal:
            status, told = refusal.status, Element("Error")
            SubElement(told, "Code").text = str(refusal.status)
            SubElement(told, "Detail").text = f"no, and by the way: {SECRET}"
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [(b"content-type", b"application/atom+xml")]})
        await send({"type": "http.response.body", "body": ElementTree.tostring(told)})

    def _answer(self, scope: Any, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Element]:
        if not headers.get("authorization", "").startswith(("SharedAccessSignature ", "Bearer ")):
            raise Refuses(401)
        if scope["method"] == "PUT":
            return self._put(path, headers, body)
        if scope["method"] != "GET" or not self.may_look or (self.shut and path.endswith(self.shut)):
            raise Refuses(401 if scope["method"] == "GET" else 405)
        if path == "$resources/topics" or path.endswith(("/subscriptions", "/rules")):
            return 200, self._feed(path, parse_qs(scope["query_string"].decode()))
        if path in self.things:
            return 200, _entry(path, self.things[path])
        raise Refuses(404)

    def _put(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Element]:
        if not self.may_write:
            raise Refuses(403)
        found = ElementTree.fromstring(body).find(f"{ATOM}content")
        assert found is not None
        thing, before = found[0], self.things.get(path)
        parent = path.rpartition("/")[0].rpartition("/")[0]
        if headers.get("if-match") == "*":
            if before is None:
                raise Refuses(404)
            if any(thing.findtext(f"{SB}{name}") != before.findtext(f"{SB}{name}") for name in PINNED):
                raise Refuses(400)
        elif before is not None:
            raise Refuses(409)
        elif parent and parent not in self.things:
            raise Refuses(404)
        self._keep(path, thing, new=before is None)
        return 200 if before is not None else 201, _entry(path, thing)

    def _keep(self, path: str, thing: Element, *, new: bool) -> None:
        kind = thing.tag.removeprefix(SB)
        for name, value in DEFAULTS[kind].items():
            if thing.find(f"{SB}{name}") is None:
                SubElement(thing, f"{SB}{name}").text = value
        self.things[path] = thing
        if new and kind == "SubscriptionDescription":
            self.add_rule(path, "$Default", "TrueFilter", "1=1")
            SubElement(thing, f"{SB}MessageCount").text = str(self.strays)

    def _feed(self, path: str, query: dict[str, list[str]]) -> Element:
        if path != "$resources/topics" and path.rpartition("/")[0] not in self.things:
            raise Refuses(404)
        names = sorted(_below(path, self.things))
        skip, top = int(query["$skip"][0]), min(int(query["$top"][0]), PAGE_MAX)
        feed = Element(f"{ATOM}feed")
        SubElement(feed, f"{ATOM}link", {"rel": "self", "href": f"https://{self.address}/{path}"})
        if len(names) > skip + top:
            href = f"https://{self.address}/{path}?%24skip={skip + top}&%24top={top}"
            SubElement(feed, f"{ATOM}link", {"rel": "next", "href": href})
        for name in names[skip : skip + top]:
            feed.append(_entry(name, self.things[name]))
        return feed


def _below(path: str, things: dict[str, Element]) -> Iterator[str]:
    for name in things:
        if name.rpartition("/")[0] == ("" if path == "$resources/topics" else path):
            yield name


def _entry(path: str, thing: Element) -> Element:
    name = path.rpartition("/")[2]
    entry = Element(f"{ATOM}entry")
    # A rule is called as it was named; paths are kept in small letters.
    SubElement(entry, f"{ATOM}title").text = thing.findtext(f"{SB}Name") or name
    SubElement(entry, f"{ATOM}content", {"type": "application/xml"}).append(copy.deepcopy(thing))
    return entry


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[AdminApi, str]]:
    """The emulator, and the file with the certificate to trust."""
    admin = AdminApi()
    certificate, key = _certificate(folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        admin.address = f"127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            admin,
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        yield admin, str(certificate)
        server.should_exit = True
        await task


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "desk.pem", folder / "desk.key"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files
