"""What the parts of the temporal engine were asked to do."""

import msgspec

from lucius.cli.options import PartOptions


class InvokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`callback_port` None: callbacks are served on the internal port alone."""

    part: PartOptions
    callback_host: str = "127.0.0.1"
    callback_port: int | None = None


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    health_host: str = "127.0.0.1"
    health_port: int | None = None
    as_json: bool = False
    log_level: str | None = None
