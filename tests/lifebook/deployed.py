"""A Lifebook on ministack, with names of its own."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from uuid import uuid4

from tests.lifebook.conftest import environment
from tests.lifebook.servers import TOP

from lucius.lifebook.build import Lifebook, load_workflows
from lucius.lifebook.provision import provision
from lucius.lifebook.settings import read_settings

MODULE = "tests.lifebook.flows"


class Deployed:
    def __init__(self, lifebook: Lifebook, env: Mapping[str, str]) -> None:
        self.lifebook = lifebook
        self.env = {**env, "PATH": os.environ["PATH"], "PYTHONPATH": str(TOP)}
        """What a process needs to be a part of it."""


@asynccontextmanager
async def deployed(variables: Mapping[str, str], **own: str) -> AsyncIterator[Deployed]:
    name = uuid4().hex[:12]
    env = {
        **variables,
        "LIFEBOOK_TABLE": f"jobs-{name}",
        "LIFEBOOK_QUEUE": f"queue-{name}",
        "LIFEBOOK_DLQ": f"dlq-{name}",
        "LIFEBOOK_BALANCES": f"balances-{name}",
        "LIFEBOOK_CREDITS": "table",
        "LIFEBOOK_WORKFLOWS": MODULE,
        **own,
    }
    with environment(env):
        settings = read_settings(env)
        lifebook = Lifebook(settings, workflows=load_workflows(settings.workflows))
        await provision(lifebook.aws, settings)
        await lifebook.balances.grant("ws", Decimal(1_000))
        try:
            yield Deployed(lifebook, env)
        finally:
            lifebook.close()
