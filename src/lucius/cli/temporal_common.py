"""What the parts of the temporal engine have in common on the command line."""

import os
from pathlib import Path

from lucius.assembly import address_fault
from lucius.assembly.app_configuration import export_settings
from lucius.assembly.temporal import target_of
from lucius.cli.serving import refuse
from lucius.settings import BadSetting, Settings, read_settings

SECRETLESS = (
    "LUCIUS_INTERNAL_SECRET must be set: the invoker, the orchestrator and the worker know each other by it."
)


def temporal_settings(bus: str | None, data: Path | None) -> Settings | int:
    try:
        export_settings(os.environ, data)
        settings = read_settings(os.environ)
    except BadSetting as fault:
        return refuse(str(fault))
    if not settings.temporal.secrets:
        return refuse(SECRETLESS)
    text = None if bus is None else address_fault(bus, settings)
    return settings if text is None else refuse(text)


def where_lines(settings: Settings) -> str:
    target = target_of(settings.temporal)
    return f"Temporal at {target.address}, namespace {target.namespace}, task queue {target.task_queue}"


def not_bound(host: str, port: int | None, fault: OSError) -> str:
    return f"Cannot listen on {host}, port {port}: {fault.strerror}."
