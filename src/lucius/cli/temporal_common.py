"""What the parts of the temporal engine have in common on the command line."""

from pathlib import Path

from lucius.assembly import NATS, address_fault
from lucius.assembly.choices import Choice, choose_bus
from lucius.assembly.temporal import target_of
from lucius.cli.options import SHARED_BUSES
from lucius.cli.serving import refuse
from lucius.cli.starting import Start, read_start
from lucius.settings import BadSetting, Settings

SECRETLESS = (
    "LUCIUS_INTERNAL_SECRET must be set: the invoker, the orchestrator and the worker know each other by it."
)


def temporal_start(data: Path | None, store: str = "") -> Start | int:
    """Or the exit code, once the reason was printed."""
    try:
        start = read_start(data, store)
    except BadSetting as fault:
        return refuse(str(fault))
    return start if start.settings.temporal.secrets else refuse(SECRETLESS)


def shared_bus(asked: str, start: Start) -> Choice | int:
    """`asked`: by `--bus`, or ""."""
    try:
        bus = choose_bus(asked, start.sources, start.settings, offered=SHARED_BUSES, usual=NATS)
    except BadSetting as fault:
        return refuse(str(fault))
    text = address_fault(bus.name, start.settings)
    return bus if text is None else refuse(text)


def where_lines(settings: Settings) -> str:
    target = target_of(settings.temporal)
    return f"Temporal at {target.address}, namespace {target.namespace}, task queue {target.task_queue}"


def not_bound(host: str, port: int | None, fault: OSError) -> str:
    return f"Cannot listen on {host}, port {port}: {fault.strerror}."
