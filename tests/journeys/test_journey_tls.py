"""Parts that speak TLS alone, and know each other by certificates of two CAs."""

import json
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import httpx2
import pytest
from tests.support.api_setup import envelope
from tests.support.certificates import Authority

from lucius.tls import client_tls
from lucius_lab import forks
from lucius_lab.processes import PartProcess, ProcessFault

TRIES_MAX = 10

pytestmark = pytest.mark.xdist_group("parts")


class Certificates:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.servers, clients = Authority(folder, "servers"), Authority(folder, "clients")
        server, self.worker = self.servers.sign("lucius"), clients.sign("worker")
        self.stranger = Authority(folder, "strangers").sign("stranger")
        self.server = {
            "LUCIUS_TLS_CERTIFICATE": str(server.certificate),
            "LUCIUS_TLS_KEY": str(server.key),
            "LUCIUS_TLS_CLIENT_CA": str(clients.file),
        }
        self.client = {
            "LUCIUS_TLS_CA": str(self.servers.file),
            "LUCIUS_TLS_CLIENT_CERTIFICATE": str(self.worker.certificate),
            "LUCIUS_TLS_CLIENT_KEY": str(self.worker.key),
        }

    def context(self, *, shown: bool) -> ssl.SSLContext:
        pair = (self.worker.certificate, self.worker.key) if shown else (None, None)
        context = client_tls(self.servers.file, *pair)
        assert context is not None
        return context


class Begin(Protocol):
    def __call__(self, *arguments: str, env: dict[str, str]) -> PartProcess: ...


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    with ExitStack() as stack:

        def begin_one(*arguments: str, env: dict[str, str]) -> PartProcess:
            option = "--port" if arguments[0] in ("api", "dev") else "--health-port"
            data = ("--data", str(tmp_path / "data"))
            part = PartProcess(tmp_path, arguments[0], *arguments, *data, port_option=option, env=env)
            stack.callback(part.kill)
            part.start()
            return part

        yield begin_one


def test_a_document_goes_through_parts_that_show_each_other_certificates(
    begin: Begin, certificates: Certificates, tmp_path: Path
) -> None:
    api = begin("api", env=certificates.server)
    assert api.url.startswith("https://127.0.0.1:")
    reconciler = begin("reconciler", env=certificates.server)
    caller = {**certificates.client, "LUCIUS_URL": api.url}
    service = begin("service", "run", "ocr", env={**certificates.server, **caller})
    letter = tmp_path / "data" / "letter.txt"
    letter.write_text("The lighthouse was lit for the first time in 1822.")
    command = tmp_path / "command.json"
    refs = {"input_ref": {"uri": letter.as_uri()}, "output_ref": {"uri": f"{letter.as_uri()}.json"}}
    command.write_text(json.dumps(envelope(request_type="OCR", **refs)))
    done = forks.run("run", str(command), env={**os.environ, **caller})
    assert done.returncode == 0, done.stderr
    for part in (reconciler, service):  # a probe has no certificate
        answer = httpx2.get(f"{part.url}/readyz", verify=certificates.context(shown=False), trust_env=False)
        assert answer.status_code == 200, answer.text
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{api.url}/livez", verify=certificates.context(shown=False), trust_env=False)
    answer = httpx2.get(f"{api.url}/readyz", verify=certificates.context(shown=True), trust_env=False)
    assert answer.status_code == 200, answer.text


def test_a_client_is_told_what_its_certificate_lacks(begin: Begin, certificates: Certificates) -> None:
    api = begin("api", env=certificates.server)
    where = {**os.environ, "LUCIUS_URL": api.url}

    def said(env: dict[str, str]) -> str:
        for _ in range(TRIES_MAX):
            done = forks.run("jobs", "list", env={**where, **env})
            assert done.returncode == 4, done.stderr
            if "Timeout" not in done.stderr:  # as on a machine with too much to do
                return done.stderr
        raise AssertionError(done.stderr)

    assert "Set LUCIUS_TLS_CA to the file of the CA" in said({})
    assert "set LUCIUS_TLS_CLIENT_CERTIFICATE" in said({"LUCIUS_TLS_CA": str(certificates.servers.file)})
    done = forks.run("jobs", "list", env={**where, "LUCIUS_TLS_CA": "/nowhere/ca.pem"})
    assert done.returncode == 2
    assert "LUCIUS_TLS_CA: /nowhere/ca.pem cannot be read" in done.stderr


@pytest.mark.parametrize("part", ["api", "reconciler", "dev", "service"])
def test_a_key_of_another_certificate_ends_every_part_at_its_start(
    begin: Begin, certificates: Certificates, tmp_path: Path, part: str
) -> None:
    env = {**certificates.server, "LUCIUS_TLS_KEY": str(certificates.stranger.key)}
    command = ["service", "run", "ocr"] if part == "service" else [part]
    with pytest.raises(
        ProcessFault, match=r"LUCIUS_TLS_KEY: .* is not the key of the certificate in .*; name"
    ):
        begin(*command, env=env)
    assert not (tmp_path / "data").exists()
