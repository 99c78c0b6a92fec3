"""Lists and names in variables: what can never work is refused at start, by name and with an example."""

from pathlib import Path

import pytest

from lucius.assembly import NATS, address_fault, bus, credentials_fault
from lucius.cli.main import run_cli
from lucius.settings import BadSetting, read_settings

AZURE = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=c2VjcmV0"
HOSTS = ("LUCIUS_REF_HOSTS", "LUCIUS_CALLBACK_HOSTS")


def refused(env: dict[str, str]) -> str:
    with pytest.raises(BadSetting) as caught:
        read_settings(env)
    return str(caught.value)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize(
    "entry",
    [
        "https://files.example.com",
        "files.example.com/in",
        "files.example.com:443",  # compared is the host alone, so this would fit nothing
        "files example com",
        "*.example.com",
        "files..example.com",
        "me@files.example.com",
        "-files.example.com",
        "::1",
        "b\u00fccher.example",
    ],
)
def test_a_host_that_no_reference_can_name(name: str, entry: str) -> None:
    said = refused({name: f"good.example.com, {entry}"})
    assert said.startswith(f"{name} must be a list of host names") and "files.example.com" in said


@pytest.mark.parametrize("name", HOSTS)
def test_hosts_are_read_in_the_spelling_in_which_they_are_compared(name: str) -> None:
    settings = read_settings(
        {name: " Files.Example.COM., account_1.dfs.core.windows.net ,[2001:DB8::1],10.0.0.7,"}
    )
    read = settings.reference_hosts if name == HOSTS[0] else settings.callback_hosts
    assert read is not None
    assert set(read) == {"files.example.com", "account_1.dfs.core.windows.net", "[2001:db8::1]", "10.0.0.7"}
    assert (read_settings({}).reference_hosts, read_settings({}).callback_hosts) == (None, None)


@pytest.mark.parametrize("entry", ["s3://", "https:", "a b", "1s", "s3;gs", "x" * 33, "*"])
def test_a_scheme_that_no_reference_can_have(entry: str) -> None:
    said = refused({"LUCIUS_REF_SCHEMES": f"https,{entry}"})
    assert said.startswith("LUCIUS_REF_SCHEMES must be") and "s3,https" in said


def test_schemes_of_stores_that_only_services_know_are_taken() -> None:
    read = read_settings({"LUCIUS_REF_SCHEMES": "S3, hdfs,git+ssh"}).reference_schemes
    assert read == frozenset({"s3", "hdfs", "git+ssh"})


@pytest.mark.parametrize(
    "name", ["my table", "1st", "_jobs", "jobs.now", "sqlite_jobs", "j" * 64, "\u017fteps"]
)
def test_a_name_that_no_store_takes(name: str) -> None:
    said = refused({"LUCIUS_JOBS_TABLE": name})
    assert said.startswith("LUCIUS_JOBS_TABLE must be up to 63 letters") and said.endswith("such as Jobs")


def test_a_name_that_is_too_long_for_azure() -> None:
    long = {"LUCIUS_STEPS_TABLE": "the_steps_of_all_jobs_that_were_ever_created_by_us"}
    assert read_settings(long).tables.steps == long["LUCIUS_STEPS_TABLE"]
    said = refused({**long, "LUCIUS_TABLE_CONNECTION": AZURE})
    assert said.startswith("LUCIUS_STEPS_TABLE must be a shorter name") and said.endswith("such as Steps")
    assert "c2VjcmV0" not in said


@pytest.mark.parametrize(
    ("env", "named"),
    [
        (
            {"LUCIUS_JOBS_TABLE": "Work", "LUCIUS_STEPS_TABLE": "work"},
            ["LUCIUS_JOBS_TABLE", "LUCIUS_STEPS_TABLE"],
        ),
        ({"LUCIUS_LEDGER_TABLE": "Jobs"}, ["LUCIUS_LEDGER_TABLE", "LUCIUS_JOBS_TABLE"]),
        ({"LUCIUS_INFLIGHT_TABLE": "LUCIUS_JOB_INDEX"}, ["LUCIUS_INFLIGHT_TABLE", "LUCIUS_JOB_INDEX_TABLE"]),
        ({"LUCIUS_JOBS_TABLE": "events"}, ["LUCIUS_JOBS_TABLE"]),
        ({"LUCIUS_IDEMPOTENCY_TABLE": "lucius_meta"}, ["LUCIUS_IDEMPOTENCY_TABLE"]),
    ],
)
def test_two_tables_of_one_name(env: dict[str, str], named: list[str]) -> None:
    said = refused(env)
    assert all(variable in said for variable in named)
    assert "must not" in said and "=" in said


def test_a_start_says_so_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCIUS_REF_HOSTS", "https://files.example.com")
    monkeypatch.delenv("LUCIUS_TABLE_CONNECTION", raising=False)
    assert run_cli(["provision", "azure", "--check"]) == 2
    told = capsys.readouterr().err
    assert "LUCIUS_REF_HOSTS" in told and "Traceback" not in told


# -- the file that lets us in to NATS ----------------------------------------------------------------------

CREDS = "-----BEGIN NATS USER JWT-----\nhush\n------END\n-----BEGIN USER NKEY SEED-----\nhush\n------END\n"


@pytest.mark.parametrize(
    "command",
    [
        ("reconciler", "--bus", "nats"),
        ("service", "run", "ocr", "--bus", "nats"),
        ("dev", "--bus", "nats", "--port", "0"),
        ("dev", "--engine", "temporal", "--port", "0"),
    ],
    ids=["part", "service", "dev", "temporal"],
)
def test_a_credentials_file_that_is_not_there_is_refused_before_anything_is_made(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LUCIUS_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("LUCIUS_NATS_CREDENTIALS", str(tmp_path / "none.creds"))
    monkeypatch.setenv("LUCIUS_TEMPORAL_ADDRESS", "127.0.0.1:1")
    assert run_cli([*command, "--data", str(tmp_path / "data")]) == 2
    told = capsys.readouterr().err
    assert "LUCIUS_NATS_CREDENTIALS names no file that can be read" in told and "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "has_nkeys", "words"),
    [
        ("hush\n", True, "without a user's JWT and seed"),  # in which the library would look for ever
        (CREDS[:60], True, "without a user's JWT and seed"),
        (CREDS, False, "pip install 'lucius[nats]'"),
        (CREDS, True, None),
    ],
)
def test_a_credentials_file_is_one(
    text: str, has_nkeys: bool, words: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus, "find_spec", lambda name: object() if has_nkeys else None)
    file = tmp_path / "user.creds"
    file.write_text(text)
    env = {"LUCIUS_NATS_CREDENTIALS": str(file), "LUCIUS_NATS_URL": "nats://127.0.0.1:1"}
    said = address_fault(NATS, read_settings(env))
    if words is None:
        assert said is None
    else:
        assert said is not None
        assert said.startswith("LUCIUS_NATS_CREDENTIALS") and words in said and "hush" not in said


def test_a_credentials_file_is_not_looked_for_where_it_opens_nothing() -> None:
    for kind, url in (("memory", "nats://127.0.0.1:1"), (NATS, "")):
        settings = read_settings({"LUCIUS_NATS_CREDENTIALS": "/none", "LUCIUS_NATS_URL": url})
        assert credentials_fault(kind, settings) is None
