"""What the temporal engine is told: where Temporal is, where the invoker is, and the secret between them."""

import msgspec

DEFAULT_INVOKER_URL = "http://127.0.0.1:8421"
SECRET_LENGTH_MIN = 16


class TemporalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`secrets` are those that the invoker takes; whoever calls it shows the first."""

    enabled: bool | None
    """Which engine new jobs are pinned to; None: as usual for the command."""
    address: str | None
    """None: the usual one, or a server of its own in `lucius dev`."""
    namespace: str
    task_queue: str
    tls: bool
    api_key: str | None
    execution_timeout_ms: int | None
    signal_acks: bool
    invoker_url: str
    secrets: tuple[str, ...]

    def __repr__(self) -> str:
        return f"TemporalSettings({self.address}, {self.namespace}, {self.task_queue})"


def secrets_of(text: str) -> tuple[str, ...] | None:
    """The first is shown to others, all are taken from them: so that one can be replaced by another."""
    secrets = tuple(part.strip() for part in text.split(","))
    sound = all(len(one) >= SECRET_LENGTH_MIN and one.isascii() and one.isprintable() for one in secrets)
    return secrets if sound and not any(" " in one for one in secrets) else None
