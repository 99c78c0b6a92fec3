"""What was measured, as a table for a page, a chart, and verdicts.

In: rounds of contenders. Out: texts. Each figure is the median of the rounds, with the least and the most.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from lucius_lab.peers.contenders import Contender

MARK_BEGIN: Final = "<!-- peers: written by make bench-peers -->"
MARK_END: Final = "<!-- peers: end -->"
# Lucius on PostgreSQL beside each: at least so many times as many jobs a second.
RATIOS: Final = {"dbos-postgres": 4.0, "procrastinate": 1.5}
OURS: Final = "lucius-postgres"
LONE_P50_MS_MAX: Final = 15.0

_ROW, _LEFT, _WIDTH, _BAR = 26, 330, 760, 16
_HEAD, _FOOT = 44, 34
_OWN_COLOUR, _PEER_COLOUR = "#2563eb", "#94a3b8"


class PeerRound(msgspec.Struct, frozen=True, kw_only=True):
    """`cpu_ms`: a job, of servers, workers and the load together. `memory_mb`: the same processes."""

    key: str
    per_second: float
    lone_p50_ms: float
    lone_p99_ms: float
    cpu_ms: float
    memory_mb: float


Rounds = Mapping[str, Sequence[PeerRound]]


def table(contenders: Sequence[Contender], rounds: Rounds, in_flight: int) -> str:
    count = max(len(found) for found in rounds.values())
    head = (
        f"| medians of {count} rounds | jobs/s, {in_flight} in flight (range) | lone job p50, p99 ms | "
        "CPU ms a job | memory MB | what is on the disk |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        _line(contender, rounds[contender.key]) for contender in contenders if rounds.get(contender.key)
    )


def _line(contender: Contender, found: Sequence[PeerRound]) -> str:
    rates = [one.per_second for one in found]
    cells = (
        contender.name,
        f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
        f"{median(one.lone_p50_ms for one in found):,.1f}, {median(one.lone_p99_ms for one in found):,.1f}",
        f"{median(one.cpu_ms for one in found):,.1f}",
        f"{median(one.memory_mb for one in found):,.0f}",
        contender.durable,
    )
    return f"| {' | '.join(cells)} |\n"


def judged(rounds: Rounds) -> list[str]:
    """How Lucius does beside what it is measured by. Rounds are compared with those of the same number: a
    machine changes its pace."""
    ours = rounds.get(OURS, ())
    found = []
    for key, least in RATIOS.items():
        if ours and (theirs := rounds.get(key)):
            ratios = [a.per_second / b.per_second for a, b in zip(ours, theirs, strict=False)]
            ratio = median(ratios)
            spread = f"{min(ratios):.1f} to {max(ratios):.1f}"
            met = "met" if ratio >= least else "NOT MET"
            found.append(
                f"Lucius on PostgreSQL beside {key}: {ratio:.1f} times ({spread}), goal {least:g}: {met}"
            )
    if ours:
        lone = median(one.lone_p50_ms for one in ours)
        met = "met" if lone <= LONE_P50_MS_MAX else "NOT MET"
        found.append(f"lone job p50 {lone:.1f} ms, goal {LONE_P50_MS_MAX:g}: {met}")
    return found


def chart(contenders: Sequence[Contender], rounds: Rounds, in_flight: int) -> str:
    """Bars of jobs a second, with a line from the least to the most of the rounds."""
    shown = [contender for contender in contenders if rounds.get(contender.key)]
    most = max(one.per_second for contender in shown for one in rounds[contender.key])
    height = _HEAD + len(shown) * _ROW + _FOOT
    scale = (_WIDTH - _LEFT - 90) / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>Completed jobs of three steps a second, {in_flight} in flight</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="26" font-size="15" font-weight="600" fill="#0f172a">'
        f"Completed jobs of three steps a second, {in_flight} in flight</text>",
    ]
    for number, contender in enumerate(shown):
        rates = [one.per_second for one in rounds[contender.key]]
        middle, y = median(rates), _HEAD + number * _ROW
        colour = _OWN_COLOUR if contender.key.startswith("lucius") else _PEER_COLOUR
        centre = y + _BAR / 2
        lines += [
            f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end" fill="#0f172a">'
            f"{escape(contender.name)}</text>",
            f'<rect x="{_LEFT}" y="{y}" width="{max(1.0, middle * scale):.1f}" height="{_BAR}" rx="2"'
            f' fill="{colour}"/>',
            f'<line x1="{_LEFT + min(rates) * scale:.1f}" x2="{_LEFT + max(rates) * scale:.1f}"'
            f' y1="{centre}" y2="{centre}" stroke="#0f172a" stroke-width="2"/>',
            f'<text x="{_LEFT + max(rates) * scale + 8:.1f}" y="{y + 13}" fill="#0f172a">'
            f"{middle:,.0f}</text>",
        ]
    lines += [
        f'<text x="12" y="{height - 12}" fill="#475569" font-size="12">'
        "Medians; the line goes from the slowest round to the fastest. One machine, all by turns.</text>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def put_into_page(page: Path, text: str) -> None:
    """Between the two marks. Raises `ValueError` where they are not there."""
    before = page.read_text(encoding="utf-8")
    head, begun, rest = before.partition(MARK_BEGIN)
    _, ended, tail = rest.partition(MARK_END)
    if not begun or not ended:
        raise ValueError(f"{page} has no marks for the table of peers")
    page.write_text(f"{head}{MARK_BEGIN}\n{text}{MARK_END}{tail}", encoding="utf-8")
