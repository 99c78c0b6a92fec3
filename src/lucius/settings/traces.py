"""Whether spans leave a process: by OpenTelemetry's own variables, the rest of which its exporter reads."""

from collections.abc import Mapping
from importlib.util import find_spec

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


def spans_wanted(env: Mapping[str, str]) -> bool:
    """The variables say where to, and none says no."""
    return (
        _first(env, ENDPOINTS) is not None
        and env.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
        and env.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("none", "console")
    )


def spans_fault(env: Mapping[str, str]) -> str | None:
    """Why they cannot leave, though they are wanted."""
    if not spans_wanted(env):
        return None
    named, text = _first(env, PROTOCOLS) or ("", PROTOCOL)
    if text.lower() != PROTOCOL:
        return f"{named} must be {PROTOCOL}, which collectors take on port 4318"
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        named, _ = _first(env, ENDPOINTS) or ("", "")
        return f"{named} needs the exporter, which is an extra: pip install 'lucius[otel]'"
    return None


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    for name in names:
        if text := env.get(name, "").strip():
            return name, text
    return None
