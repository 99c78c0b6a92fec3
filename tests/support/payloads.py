"""The least payload that a built-in protocol takes."""

from lucius.core.model import Json


def payload_of(request_type: Json) -> dict[str, Json]:
    asked: dict[str, Json] = {"prompt": "What is it about?"}
    if request_type == "SIS":
        return asked
    return {"sis": asked} if isinstance(request_type, str) and "SIS" in request_type else {}
