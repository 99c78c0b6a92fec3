"""What a service may be called: the name is part of a subject, a subscription and a path wherever it goes."""

import re
from typing import Final

SERVICE_PATTERN: Final = "[a-z0-9][a-z0-9_-]{0,62}"
_match_service = re.compile(SERVICE_PATTERN).fullmatch


def is_service_name(text: str) -> bool:
    return _match_service(text) is not None
