"""`lucius status` and `lucius services`: how the installation does, in a terminal.

In: what the API says of it now. Out: a page of text, once, or again and again with `--watch`.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from lucius.cli.completing import tenants
from lucius.cli.context import CommandContext, JsonFlag, context
from lucius.cli.http import ApiAnswer, ApiFault
from lucius.cli.render import Doc, TableForm, TextLayout, ago, docs_in, plain, set_table, span

OVERVIEW_PATH: Final = "/v1/overview"
SERVICES_PATH: Final = "/v1/services"
WINDOWS: Final = ("15m", "1h", "6h", "24h")
BARS: Final = "▁▂▃▄▅▆▇█"
CHART_WIDTH_MAX: Final = 60
TENANTS_SHOWN: Final = 8
WATCH_SECONDS_MIN: Final = 0.5
CLEAR: Final = "\x1b[H\x1b[2J"

SERVICE_TABLE: Final = TableForm(
    headings=("SERVICE", "WORKERS", "WAITING", "OLDEST", "DONE", "FAILED", "RETRIED", "P50", "P99", "SEEN"),
    whole=("SERVICE", "WAITING", "OLDEST", "DONE", "FAILED", "RETRIED", "P50", "P99", "SEEN"),
    cut=("WORKERS",),
    first_out=("RETRIED", "P50", "SEEN"),
)
_WORDS: Final = {"error": "red", "warning": "yellow", "info": "cyan"}

WindowOption = Annotated[
    str | None,
    typer.Option(
        "--window",
        metavar="TIME",
        help=f"How far back the figures go: {', '.join(WINDOWS)}.",
        autocompletion=lambda incomplete: [each for each in WINDOWS if each.startswith(incomplete)],
    ),
]
WatchFlag = Annotated[bool, typer.Option("--watch", "-w", help="Go on until Ctrl-C.")]
EveryOption = Annotated[
    float, typer.Option("--every", metavar="SECONDS", min=WATCH_SECONDS_MIN, help="With --watch: how often.")
]


def status(
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Of this tenant alone.", autocompletion=tenants)
    ] = None,
    window: WindowOption = None,
    watch: WatchFlag = False,
    every: EveryOption = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Show how the installation does: jobs, services, lanes, and what needs attention."""
    wanted = {"tenant_id": tenant, "window": window}
    params = {name: value for name, value in wanted.items() if value is not None}
    with context(as_json=as_json) as at:
        while True:
            answer = at.api.get(OVERVIEW_PATH, params)
            if not watch or (isinstance(answer, ApiFault) and not answer.passing):
                _show(at, at.need(answer), tenant=tenant, clear=False)
                return
            if isinstance(answer, ApiFault):
                at.out.say(f"{plain(answer.message)} Trying again.")
            else:
                _show(at, answer, tenant=tenant, clear=True)
            at.pause(every)


def _show(at: CommandContext, answer: ApiAnswer, *, tenant: str | None, clear: bool) -> None:
    if at.out.as_json:
        at.out.json(answer.body)
        return
    layout = at.out.layout()
    services = at.api.get(SERVICES_PATH)
    rows = [] if isinstance(services, ApiFault) else docs_in(services.doc.get("items"))
    text = overview_text(answer.doc, rows, at.now_ms(), layout, tenant=tenant)
    at.out.data(f"{CLEAR if clear and sys.stdout.isatty() else ''}{text}")


def overview_text(
    doc: Doc, services: Sequence[Doc], now_ms: int, layout: TextLayout, *, tenant: str | None = None
) -> str:
    width = layout.columns or 100
    parts = [_attention(doc, layout), _counts(doc, width, tenant)]
    if services:
        parts.append(services_text(services, now_ms, layout))
    parts += [_lanes(doc), _tenants(doc), _dependencies(doc)]
    return "\n\n".join(part for part in parts if part)


def _attention(doc: Doc, layout: TextLayout) -> str:
    lines = []
    for each in docs_in(doc.get("attention")):
        severity = plain(each.get("severity"))
        word = _coloured(severity, _WORDS.get(severity, ""), layout)
        lines.append(f"{word}: {plain(each.get('text'))}")
    return "\n".join(lines) if lines else "Nothing needs attention."


def _coloured(text: str, style: str, layout: TextLayout) -> str:
    codes = {"red": "31", "yellow": "33", "cyan": "36"}
    return f"\x1b[{codes[style]}m{text}\x1b[0m" if layout.colour and style in codes else text


def _counts(doc: Doc, width: int, tenant: str | None) -> str:
    """What waits and what failed for good is not kept by tenant: there it is said whose the figure is."""
    totals, series = doc.get("totals") or {}, doc.get("series") or {}
    seconds = doc.get("window_seconds")
    over = f"last {span(seconds * 1000)}" if isinstance(seconds, int) else "so far"
    room = min(CHART_WIDTH_MAX, max(10, width - 24))
    whose, of_all = (f" of {tenant}", " of all tenants") if tenant is not None else ("", "")
    lines = [f"Jobs{whose}, {over}"]
    for name in ("accepted", "succeeded", "failed", "cancelled"):
        chart = sparkline(series.get(name), room)
        lines.append(f"  {name:<10}{plain(totals.get(name)):>8}  {chart}".rstrip())
    outbox = doc.get("outbox") or {}
    oldest = outbox.get("oldest_seconds")
    waits = f", the oldest for {span(int(oldest * 1000))}" if isinstance(oldest, int | float) else ""
    lines.append(f"  {'waiting':<10}{plain(outbox.get('pending')):>8}  directives{of_all}{waits}")
    if doc.get("dlq") is not None:
        lines.append(f"  {'dlq':<10}{plain(doc.get('dlq')):>8}  failed for good{of_all}: `lucius dlq list`")
    return "\n".join(lines)


def sparkline(series: Any, width: int) -> str:
    """Counts as bars, the newest on the right; neighbours are added up where there are more than fit."""
    counts = [count for count in series if isinstance(count, int)] if isinstance(series, list) else []
    if not any(counts):
        return ""
    each = -(-len(counts) // width)
    first = len(counts) % each
    sums = [sum(counts[:first])] if first else []
    sums += [sum(counts[at : at + each]) for at in range(first, len(counts), each)]
    most = max(sums)
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in sums)


def services_text(services: Sequence[Doc], now_ms: int, layout: TextLayout) -> str:
    return set_table(SERVICE_TABLE, [_service_row(each, now_ms) for each in services], layout)


def _service_row(service: Doc, now_ms: int) -> tuple[object, ...]:
    work, oldest = service.get("work") or {}, service.get("oldest_seconds")
    return (
        service.get("service"),
        _workers(service),
        service.get("depth"),
        span(int(oldest * 1000)) if isinstance(oldest, int | float) else None,
        service.get("succeeded"),
        service.get("failed"),
        service.get("retried"),
        _latency(work.get("p50_ms")),
        _latency(work.get("p99_ms")),
        ago(service.get("last_seen_at"), now_ms),
    )


def _workers(service: Doc) -> str:
    if service.get("in_process") is True:
        return "built in"
    clients = service.get("clients")
    if isinstance(clients, list) and clients:
        return ", ".join(plain(client) for client in clients)
    return "none"


def _latency(value: object) -> str | None:
    return span(value) if isinstance(value, int) else None


def _lanes(doc: Doc) -> str:
    busy = [lane for lane in docs_in(doc.get("lanes")) if lane.get("depth")]
    if not busy:
        return ""
    words = ", ".join(f"{plain(lane.get('lane'))}: {plain(lane.get('depth'))}" for lane in busy)
    return f"Lanes with work  {words}"


def _tenants(doc: Doc) -> str:
    listed = docs_in(doc.get("in_flight"))
    if not listed:
        return ""
    shown = [
        f"{plain(each.get('tenant_id'))} {plain(each.get('jobs'))} of {plain(each.get('limit'))}"
        for each in listed[:TENANTS_SHOWN]
    ]
    more = f" and {len(listed) - TENANTS_SHOWN} more" if len(listed) > TENANTS_SHOWN else ""
    return f"In flight        {', '.join(shown)}{more}"


def _dependencies(doc: Doc) -> str:
    words = [
        f"{plain(each.get('name'))} {'ok' if each.get('ok') is True else plain(each.get('note') or 'not ok')}"
        for each in docs_in(doc.get("dependencies"))
    ]
    return f"Depends on       {', '.join(words)}" if words else ""


def services(as_json: JsonFlag = False) -> None:
    """List the services: who works, what waits, how it goes."""
    with context(as_json=as_json) as at:
        answer = at.need(at.api.get(SERVICES_PATH))
        if as_json:
            at.out.json(answer.body)
            return
        rows = docs_in(answer.doc.get("items"))
        if rows:
            at.out.data(services_text(rows, at.now_ms(), at.out.layout()))
        else:
            at.out.say("No services.")
