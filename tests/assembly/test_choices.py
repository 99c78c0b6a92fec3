"""What a process runs on: options go before variables, variables before addresses, and nothing is ignored in
silence."""

from pathlib import Path

import msgspec
import pytest
import structlog

from lucius.assembly import MEMORY, NATS, SERVICE_BUS
from lucius.assembly.choices import (
    DEFAULT,
    Choice,
    RunsOn,
    Sources,
    choose_bus,
    registry_choice,
    store_choice,
    unused_variables,
    with_store,
)
from lucius.assembly.stores import STORES, open_store
from lucius.cli.options import BUSES, SHARED_BUSES
from lucius.cli.starting import Start, env_of, report_start
from lucius.ledger.store import StoreUnavailable
from lucius.settings import BadSetting, StoreKind, read_settings
from lucius.settings.declaration import Process

STRING = "Endpoint=sb://place.servicebus.windows.net/;SharedAccessKeyName=name;SharedAccessKey=hush"
AZURE = {"LUCIUS_TABLE_CONNECTION": "AccountName=one;AccountKey=aHVzaA=="}
OUTBOX = Choice(name="outbox", origin=DEFAULT)


def chosen(env: dict[str, str], asked: str = "", exported: frozenset[str] = frozenset()) -> tuple[str, str]:
    sources = Sources(env=env, exported=exported)
    choice = choose_bus(asked, sources, read_settings(env), offered=BUSES)
    return choice.name, choice.origin


@pytest.mark.parametrize(
    ("env", "asked", "expected"),
    [
        ({}, "", (MEMORY, "default")),
        ({"LUCIUS_SERVICEBUS_CONNECTION": STRING}, "", (SERVICE_BUS, "LUCIUS_SERVICEBUS_CONNECTION")),
        ({"LUCIUS_SERVICEBUS_NAMESPACE": "a.b"}, "", (SERVICE_BUS, "LUCIUS_SERVICEBUS_NAMESPACE")),
        ({"LUCIUS_NATS_URL": "one:4222"}, "", (NATS, "LUCIUS_NATS_URL")),
        ({"LUCIUS_NATS_URL": "one:4222", "LUCIUS_BUS": "Memory"}, "", (MEMORY, "LUCIUS_BUS")),
        (
            {"LUCIUS_NATS_URL": "one:4222", "LUCIUS_SERVICEBUS_NAMESPACE": "a.b", "LUCIUS_BUS": "nats"},
            "",
            (NATS, "LUCIUS_BUS"),
        ),
        ({"LUCIUS_BUS": "nats", "LUCIUS_SERVICEBUS_NAMESPACE": "a.b"}, SERVICE_BUS, (SERVICE_BUS, "--bus")),
        ({"LUCIUS_NATS_URL": "one:4222"}, MEMORY, (MEMORY, "--bus")),
    ],
)
def test_the_bus_is_what_was_asked_for_or_what_an_address_says(
    env: dict[str, str], asked: str, expected: tuple[str, str]
) -> None:
    assert chosen(env, asked) == expected


def test_two_addresses_without_a_word_are_refused() -> None:
    with pytest.raises(BadSetting, match="LUCIUS_BUS=servicebus or LUCIUS_BUS=nats") as caught:
        chosen({"LUCIUS_NATS_URL": "one:4222", "LUCIUS_SERVICEBUS_CONNECTION": STRING})
    assert "hush" not in str(caught.value)


def test_an_unknown_bus_is_refused_by_name() -> None:
    with pytest.raises(BadSetting, match="LUCIUS_BUS must be memory or nats or servicebus"):
        read_settings({"LUCIUS_BUS": "pigeon"})


def test_a_process_refuses_a_bus_that_it_does_not_take() -> None:
    env = {"LUCIUS_BUS": "memory"}
    with pytest.raises(BadSetting, match="LUCIUS_BUS=memory: this process takes nats or servicebus"):
        choose_bus("", Sources(env=env), read_settings(env), offered=SHARED_BUSES, usual=NATS)


def test_what_app_configuration_chose_is_told_as_such() -> None:
    env = {"LUCIUS_BUS": "nats", "LUCIUS_NATS_URL": "one:4222"}
    assert chosen(env, exported=frozenset({"LUCIUS_BUS"})) == (NATS, "LUCIUS_BUS of App Configuration")


# -- the store ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "asked", "kind", "place", "origin"),
    [
        ({}, "", StoreKind.SQLITE, "data", "default"),
        ({"LUCIUS_STORE": "sqlite:///l/lucius.db"}, "", StoreKind.SQLITE, "/l", "LUCIUS_STORE"),
        ({"LUCIUS_STORE": "sqlite:////l/lucius.db"}, "", StoreKind.SQLITE, "/l", "LUCIUS_STORE"),
        ({"LUCIUS_STORE": "sqlite:l/lucius.db"}, "", StoreKind.SQLITE, "l", "LUCIUS_STORE"),
        ({"LUCIUS_STORE": "memory:"}, "", StoreKind.MEMORY, "", "LUCIUS_STORE"),
        (
            {"LUCIUS_STORE": "postgresql://me:hush@db:5433/lucius?sslmode=require"},
            "",
            StoreKind.POSTGRESQL,
            "db:5433/lucius",
            "LUCIUS_STORE",
        ),
        (
            {
                "LUCIUS_STORE": "postgresql://me:hush@one:5433,two:5434,three/l?target_session_attrs=read-write"
            },
            "",
            StoreKind.POSTGRESQL,
            "one:5433,two:5434,three/l",
            "LUCIUS_STORE",
        ),
        (
            {"LUCIUS_STORE": "postgres:///lucius?host=/run"},
            "",
            StoreKind.POSTGRESQL,
            "/lucius",
            "LUCIUS_STORE",
        ),
        (AZURE, "", StoreKind.AZURE_TABLES, "tables at one", "LUCIUS_TABLE_CONNECTION"),
        (AZURE | {"LUCIUS_STORE": "sqlite:///l/lucius.db"}, "", StoreKind.SQLITE, "/l", "LUCIUS_STORE"),
        (
            AZURE | {"LUCIUS_STORE": "memory:"},
            "azure-tables:",
            StoreKind.AZURE_TABLES,
            "tables at one",
            "--store",
        ),
    ],
)
def test_the_store_is_what_was_asked_for(
    env: dict[str, str], asked: str, kind: StoreKind, place: str, origin: str
) -> None:
    settings = with_store(read_settings(env), asked)
    choice = store_choice(asked, Sources(env=env), settings, Path("data"))
    assert (settings.store, choice.name) == (kind, kind.value)
    assert (choice.place, choice.origin) == (place, origin)
    assert "hush" not in repr(settings) and "hush" not in repr(choice)


@pytest.mark.parametrize(
    "url",
    [
        "lucius.db",
        "sqlite:",
        "sqlite://host/lucius.db",
        "sqlite:///l/other.db",
        "sqlite:///l/lucius.db?mode=ro",
        "memory:x",
        "azure-tables",
        "mysql://hush@h/d",
        "postgresql://hush",
        "postgresql://h:hush/d",
        "postgresql:///hush",
        "postgresql://one,h:hush/d",
        "postgresql://one,/hush",
    ],
)
def test_a_url_that_names_no_store_is_refused_without_its_text(url: str) -> None:
    with pytest.raises(BadSetting, match="LUCIUS_STORE must be sqlite:///FOLDER/lucius") as caught:
        read_settings({"LUCIUS_STORE": url})
    with pytest.raises(BadSetting, match="--store must be sqlite"):
        with_store(read_settings({}), url)
    assert "hush" not in str(caught.value)


def test_tables_need_an_account() -> None:
    with pytest.raises(BadSetting, match="LUCIUS_STORE names Azure Tables, which needs LUCIUS_TABLE"):
        with_store(read_settings({"LUCIUS_STORE": "azure-tables:"}), "")


def test_every_kind_of_store_has_its_way_to_open() -> None:
    assert set(STORES) == set(StoreKind)


async def test_a_file_elsewhere_is_opened_there(tmp_path: Path) -> None:
    settings = read_settings({"LUCIUS_STORE": f"sqlite://{tmp_path}/apart/lucius.db"})
    store = await open_store(settings, "ledger", tmp_path / "data")
    await store.close()
    assert (tmp_path / "apart" / "lucius.db").exists()
    (tmp_path / "apart" / "lucius.db").unlink()
    with pytest.raises(StoreUnavailable, match="is missing"):  # as in a data folder
        await open_store(settings, "ledger", tmp_path / "data")


# -- what is not used --------------------------------------------------------------------------------------


def unused(
    env: dict[str, str], processes: set[Process], runs_on: RunsOn, exported: frozenset[str] = frozenset()
) -> dict[str, str]:
    return unused_variables(Sources(env=env, exported=exported), processes, runs_on, read_settings(env))


def test_a_variable_for_other_processes_is_named() -> None:
    env = {"LUCIUS_MAX_INFLIGHT": "9", "LUCIUS_INVOKER_URL": "http://one:1"}
    said = unused(env, {Process.WORKER}, RunsOn())
    assert said == {"LUCIUS_MAX_INFLIGHT": "it is for api, orchestrator"}
    assert not unused(env, {Process.WORKER}, RunsOn(), exported=frozenset({"LUCIUS_MAX_INFLIGHT"}))


def test_what_jobs_are_created_with_is_read_where_jobs_are_created_or_compared() -> None:
    env = dict.fromkeys(("LUCIUS_MAX_ATTEMPTS", "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS"), "4")
    env |= {"LUCIUS_ACK_TIMEOUT": "9s", "LUCIUS_DISPATCH_TIMEOUT": "9s"}
    for process in (Process.INVOKER, Process.WORKER):
        assert set(unused(env, {process}, RunsOn())) == {"LUCIUS_ACK_TIMEOUT", "LUCIUS_DISPATCH_TIMEOUT"}
    assert set(unused(env, {Process.RECONCILER}, RunsOn())) == set(env)
    for process in (Process.API, Process.ORCHESTRATOR):
        assert not unused(env, {process}, RunsOn())


def test_variables_that_another_choice_puts_out_of_use_are_named() -> None:
    bus = choose_bus(NATS, Sources(env={}), read_settings({"LUCIUS_NATS_URL": "one:1"}), offered=BUSES)
    env = AZURE | {
        "LUCIUS_BUS": "servicebus",
        "LUCIUS_SERVICEBUS_CONNECTION": STRING,
        "LUCIUS_SERVICEBUS_LANES": "16",
        "LUCIUS_NATS_URL": "one:1",
        "LUCIUS_STORE": "sqlite:///l/lucius.db",
        "LUCIUS_TEMPORAL_ADDRESS": "one:2",
    }
    store = store_choice("", Sources(env=env), read_settings(env), Path("data"))
    said = unused(env, set(Process), RunsOn(bus=bus, engine=OUTBOX, store=store))
    assert set(said) == {
        "LUCIUS_BUS",
        "LUCIUS_SERVICEBUS_CONNECTION",
        "LUCIUS_TABLE_CONNECTION",
        "LUCIUS_TEMPORAL_ADDRESS",
    }
    assert said["LUCIUS_SERVICEBUS_CONNECTION"] == "the bus is nats (--bus)"


def test_a_service_on_a_bus_does_not_use_an_address_of_the_api() -> None:
    env = {"LUCIUS_URL": "http://one", "LUCIUS_NATS_URL": "one:1"}
    bus = choose_bus("", Sources(env=env), read_settings(env), offered=BUSES)
    assert set(unused(env, {Process.SERVICE}, RunsOn(bus=bus))) == {"LUCIUS_URL"}
    over_http = choose_bus(MEMORY, Sources(env=env), read_settings(env), offered=BUSES)
    assert set(unused(env, {Process.SERVICE}, RunsOn(bus=over_http))) == {"LUCIUS_NATS_URL"}


def test_a_start_tells_what_it_runs_on_and_what_it_does_not_use() -> None:
    env = {
        "LUCIUS_NATS_URL": "me:hush@one:4222",
        "LUCIUS_NATS_PASSWORD": "",
        "LUCIUS_INVOKER_URL": "http://i",
    }
    settings = msgspec.structs.replace(read_settings(env), log_plain=False)
    sources = Sources(env=env)
    runs_on = RunsOn(
        store=store_choice("", sources, settings, Path("data")),
        bus=choose_bus("", sources, settings, offered=BUSES),
        engine=OUTBOX,
        registry=registry_choice(Path("protocols"), sources, settings),
    )
    with structlog.testing.capture_logs() as lines:
        report_start(Start(settings=settings, sources=sources), {Process.API}, runs_on)
    ran, warned = lines
    assert ran["event"] == "runs_on"
    assert (ran["store"], ran["store_from"]) == ("sqlite at data", "default")
    assert (ran["bus"], ran["bus_from"]) == ("nats at one:4222", "LUCIUS_NATS_URL")
    assert (ran["registry"], ran["registry_from"]) == ("folder protocols over built-in", "--protocols")
    assert ran["engine"] == "outbox"
    assert (warned["event"], warned["log_level"]) == ("variables_not_used", "warning")
    assert warned["variables"] == ["LUCIUS_INVOKER_URL: it is for orchestrator, worker"]
    assert "hush" not in str(lines)


def test_a_process_of_ours_gets_the_variables_that_it_reads() -> None:
    env = {"LUCIUS_INVOKER_URL": "http://i", "LUCIUS_MAX_INFLIGHT": "9", "PATH": "/bin"}
    assert env_of(Process.WORKER, env) == {"LUCIUS_INVOKER_URL": "http://i", "PATH": "/bin"}
