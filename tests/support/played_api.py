"""A little HTTP server on loopback that plays the API, and a way to run command lines against it."""

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from lucius.cli.main import run_cli


class Asked(NamedTuple):
    """One request as the server saw it; `path` as sent, still quoted."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Said(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})


class Done(NamedTuple):
    code: int
    out: str
    err: str


class PlayedApi:
    """Answers each (method, path) with its list of answers in turn; the last one repeats."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._answers: dict[tuple[str, str], list[Said]] = {}
        self._lock = threading.Lock()
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = played.take(Asked(self.command, parts.path, query, headers, body))
                self.send_response(answer.status)
                for name, value in ({"Content-Type": "application/json"} | dict(answer.headers)).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def on(self, method: str, path: str, *answers: Said) -> None:
        self._answers[method, path] = list(answers)

    def take(self, asked: Asked) -> Said:
        with self._lock:
            self.asked.append(asked)
            answers = self._answers.get((asked.method, asked.path))
            if not answers:
                return self.problem(404, "NOT_FOUND", f"nothing is played at {asked.method} {asked.path}")
            return answers.pop(0) if len(answers) > 1 else answers[0]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @staticmethod
    def said(status: int, doc: object, **headers: str) -> Said:
        return Said(
            status, json.dumps(doc).encode(), {name.replace("_", "-"): text for name, text in headers.items()}
        )

    @staticmethod
    def problem(status: int, code: str, detail: str, errors: list[dict[str, str]] | None = None) -> Said:
        doc: dict[str, Any] = {
            "type": "about:blank",
            "title": code.title(),
            "status": status,
            "detail": detail,
        }
        doc |= {"code": code, "errors": errors or []}
        return Said(status, json.dumps(doc).encode(), {"Content-Type": "application/problem+json"})

    @staticmethod
    def step(number: int, state: str, **more: Any) -> dict[str, Any]:
        return {
            "stepId": f"step_{number:02d}",
            "step_index": number - 1,
            "step_type": ("OCR", "EMBEDDING", "SIS")[number - 1],
            "service": "ocr",
            "state": state,
            "attempt_no": 1,
            "progress": None,
            "next_attempt_at": None,
            "last_error_code": None,
            "last_error_message": None,
            "completed_at": None,
            **more,
        }

    @staticmethod
    def job(state: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "jobId": "job_1",
            "tenant_id": "acme",
            "request_type": "OCR_EMBEDDING",
            "protocol_id": "ocr_embedding_v1",
            "engine": "outbox",
            "doc_id": None,
            "mode": "DEFAULT",
            "state": state,
            "current_step_id": steps[-1]["stepId"] if steps else None,
            "attempts_total": len(steps),
            "created_at": "2026-11-15T07:00:00.000Z",
            "completed_at": None,
            "error_code": None,
            "error_message": None,
            "correlation_id": "c-1",
            "final_output": None,
            "rerun_of": None,
            "steps": list(steps),
            **more,
        }

    @staticmethod
    def event(seq: int, kind: str, **more: Any) -> dict[str, Any]:
        return {
            "seq": seq,
            "type": kind,
            "at": "2026-11-15T07:00:01.250Z",
            "stepId": None,
            "attempt_no": None,
            "data": {},
            **more,
        }

    @staticmethod
    def listed(*items: object, next_cursor: str | None = None) -> Said:
        return PlayedApi.said(200, {"items": list(items), "next_cursor": next_cursor})


@pytest.fixture
def played_api() -> Iterator[PlayedApi]:
    played = PlayedApi()
    yield played
    played.close()


@pytest.fixture
def command_line(
    played_api: PlayedApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Runs a command line in this process against the played API."""
    monkeypatch.setenv("LUCIUS_URL", played_api.url)
    monkeypatch.delenv("LUCIUS_API_KEY", raising=False)

    def run(*arguments: str, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run_cli(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
