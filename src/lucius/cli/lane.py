"""`lucius lane`: where a tenant's directives go. Works here, with the code that routes jobs; needs no
server.
"""

from typing import Annotated

import msgspec
import typer

from lucius.cli.context import JsonFlag, Output
from lucius.core.routing import lane_of, normalise, reply_topic, topic
from lucius.core.states import Mode


def lane(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="The tenant's id.")],
    doc: Annotated[
        str | None, typer.Argument(metavar="DOC", help="A document's id: the lane of a BURST job for it.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell the lane of a tenant's jobs.

    With a document, the lane of a BURST job for it.
    """
    key = normalise(tenant)
    if not key or (doc is not None and not normalise(doc)):
        raise typer.BadParameter("TENANT and DOC must not be blank.")
    mode = Mode.DEFAULT if doc is None else Mode.BURST
    if doc is not None:
        key += normalise(doc)
    number = lane_of(key)
    facts: dict[str, object] = {
        "lane": number,
        "topic": topic(number),
        "reply_topic": reply_topic(number),
        "routing_key_used": key,
        "mode": mode.value,
    }
    out = Output(as_json=as_json)
    if as_json:
        out.json(msgspec.json.encode(facts))
    else:
        out.facts(*facts.items())
