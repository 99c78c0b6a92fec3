"""The comparison with peers measures the real thing, and its table says what was measured."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from lucius_lab.peers.contenders import CONTENDERS, PeerFault, PeerFolders
from lucius_lab.peers.report import (
    MARK_BEGIN,
    MARK_END,
    PeerRound,
    chart,
    judged,
    put_into_page,
    table,
)
from lucius_lab.peers.run import PeerSizes, measure, measure_all

SCRIPTS = Path(__file__).parents[2] / "lab" / "peers"
SIZES = PeerSizes(jobs=8, in_flight=4, lone=2, rounds=1)
BY_KEY = {each.key: each for each in CONTENDERS}


def round_of(key: str, per_second: float, lone_p50_ms: float = 10.0) -> PeerRound:
    return PeerRound(
        key=key,
        per_second=per_second,
        lone_p50_ms=lone_p50_ms,
        lone_p99_ms=20.0,
        cpu_ms=1.5,
        memory_mb=100.0,
    )


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("lucius"),
        pytest.param("lucius-postgres", marks=pytest.mark.xdist_group("postgres")),
        pytest.param("lucius-postgres-sdk", marks=pytest.mark.xdist_group("postgres")),
        pytest.param("lucius-nats", marks=pytest.mark.xdist_group("nats")),
        # Its library is the one that Lucius uses: the script of a peer runs, too.
        pytest.param("temporal", marks=pytest.mark.xdist_group("temporal")),
    ],
)
async def test_a_contender_is_measured_to_the_last_job(key: str, tmp_path: Path) -> None:
    folders = PeerFolders(scripts=SCRIPTS, environments=tmp_path / "none", home=tmp_path)
    found = await measure(BY_KEY[key], SIZES, folders)
    assert found.key == key
    assert found.per_second > 0
    assert found.lone_p99_ms >= found.lone_p50_ms > 0
    assert found.cpu_ms > 0
    assert found.memory_mb > 10


async def test_a_peer_that_is_not_installed_is_left_out(tmp_path: Path) -> None:
    contenders = [BY_KEY["dbos-sqlite"], BY_KEY["celery"]]
    rounds, missing = await measure_all(contenders, SIZES, SCRIPTS, tmp_path)
    assert rounds == []
    assert "dbos is not installed" in missing["dbos-sqlite"]
    assert "no redis-server" in missing["celery"]


async def test_a_script_that_fails_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "temporal_peer.py").write_text("raise SystemExit('no such thing')")
    folders = PeerFolders(scripts=tmp_path, environments=tmp_path, home=tmp_path)
    with pytest.raises(PeerFault, match="no such thing"):
        await measure(BY_KEY["temporal"], SIZES, folders)


def test_every_contender_has_a_script_or_is_ours() -> None:
    scripts = {path.name for path in SCRIPTS.glob("*_peer.py")}
    assert scripts == {f"{name}_peer.py" for name in ("dbos", "procrastinate", "celery", "temporal", "awa")}
    assert len(BY_KEY) == len(CONTENDERS)


def test_the_table_has_medians_and_their_range(tmp_path: Path) -> None:
    rounds = {"lucius": [round_of("lucius", rate) for rate in (100.0, 300.0, 200.0)]}
    text = table(CONTENDERS, rounds, 64)
    assert "| Lucius, services in process, SQLite | 200 (100 to 300) | 10.0, 20.0 | 1.5 | 100 |" in text
    assert "DBOS" not in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARK_BEGIN}\nold\n{MARK_END}\nafter\n")
    put_into_page(page, text)
    put_into_page(page, text)
    assert page.read_text() == f"before\n{MARK_BEGIN}\n{text}{MARK_END}\nafter\n"
    (tmp_path / "other.md").write_text("no marks")
    with pytest.raises(ValueError, match="no marks"):
        put_into_page(tmp_path / "other.md", text)


def test_goals_are_judged_round_by_round() -> None:
    ours = [round_of("lucius-postgres", rate, 16.0) for rate in (400.0, 100.0, 400.0)]
    theirs = {
        "dbos-postgres": [round_of("dbos-postgres", rate) for rate in (100.0, 25.0, 200.0)],
        "procrastinate": [round_of("procrastinate", 400.0)],
    }
    assert judged({"lucius-postgres": ours, **theirs}) == [
        "Lucius on PostgreSQL beside dbos-postgres: 4.0 times (2.0 to 4.0), goal 4: met",
        "Lucius on PostgreSQL beside procrastinate: 1.0 times (1.0 to 1.0), goal 1.5: NOT MET",
        "lone job p50 16.0 ms, goal 15: NOT MET",
    ]
    assert judged(theirs) == []


def test_the_chart_is_a_picture_of_all_that_was_measured() -> None:
    rounds = {key: [round_of(key, 50.0), round_of(key, 150.0)] for key in ("lucius", "celery")}
    drawn = ElementTree.fromstring(chart(CONTENDERS, rounds, 64))
    texts = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Lucius, services in process, SQLite", "Celery on Redis", "100"} <= set(texts)
