"""The composition root of Lifebook: everything, built from settings. Alone reads a clock and draws ids and
chance."""

import importlib
import os
import random
import secrets
import socket
import sys
import time
import traceback
from pathlib import Path
from uuid import uuid4

from lucius.lifebook.analytics import NoSink, Sink
from lucius.lifebook.aws import Aws
from lucius.lifebook.chores import Chores
from lucius.lifebook.credits import Balances, Unlimited
from lucius.lifebook.dynamodb import DynamoTable
from lucius.lifebook.dynamodb_balances import DynamoBalances
from lucius.lifebook.runs import Runs
from lucius.lifebook.settings import BadVariable, LifebookSettings
from lucius.lifebook.sinks import EventBridgeSink, FileSink, SqsSink
from lucius.lifebook.sqs import SqsQueue
from lucius.lifebook.sweeper import LifebookSweeper
from lucius.lifebook.worker import Worker
from lucius.lifebook.workflows import REGISTRY, BadWorkflow, WorkflowRegistry
from lucius.lifebook.writer import LifebookWriter


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return str(uuid4())


class Lifebook:
    """The parts, wired. Call `close` at the end."""

    def __init__(self, settings: LifebookSettings, *, workflows: WorkflowRegistry = REGISTRY) -> None:
        self.settings = settings
        self.workflows = workflows
        self.aws = Aws(chance=random.Random(secrets.randbits(64)).random)  # noqa: S311 (jitter)
        self.queue = SqsQueue(self.aws, queue=settings.queue, dlq=settings.dlq, fair=settings.fair_queue)
        self.balances = self._balances()
        table = DynamoTable(self.aws, settings.table)
        self.writer = LifebookWriter(table=table, policy=settings.policy, now_ms=now_ms)
        self.chores = Chores(writer=self.writer, balances=self.balances, sink=self._sink())
        self.runs = Runs(
            writer=self.writer,
            queue=self.queue,
            chores=self.chores,
            workflows=workflows,
            new_id=new_id,
            max_attempts=settings.max_attempts,
            credits_max=settings.credits_max,
        )
        self.sweeper = LifebookSweeper(
            writer=self.writer, queue=self.queue, runs=self.runs, chores=self.chores
        )

    def worker(self) -> Worker:
        return Worker(
            writer=self.writer,
            queue=self.queue,
            chores=self.chores,
            workflows=self.workflows,
            new_id=new_id,
            step_timeout_ms=self.settings.step_timeout_ms,
            name=f"{socket.gethostname()}-{os.getpid()}",
        )

    def close(self) -> None:
        self.aws.close()

    def _balances(self) -> Balances:
        if self.settings.balances_maker is not None:
            return load_balances(self.settings.balances_maker)
        if self.settings.balances is not None:
            return DynamoBalances(self.aws, self.settings.balances)
        return Unlimited()

    def _sink(self) -> Sink:
        kind, _, where = self.settings.analytics.partition(":")
        match kind:
            case "file":
                return FileSink(Path(where))
            case "sqs":
                return SqsSink(self.aws, where)
            case "events":
                return EventBridgeSink(self.aws, where)
            case _:
                return NoSink()


def load_balances(place: str) -> Balances:
    """What `MODULE:NAME` makes when it is called without arguments."""
    _find_modules_here()
    module, _, name = place.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except Exception as fault:
        raise BadVariable(f"LIFEBOOK_CREDITS: {place} makes no balances: {fault}") from fault
    missing = [each for each in ("hold", "settle", "balance", "grant") if not hasattr(made, each)]
    if missing:
        raise BadVariable(f"LIFEBOOK_CREDITS: what {place} makes has no {missing[0]}.")
    balances: Balances = made
    return balances


def _find_modules_here() -> None:
    """The folder a process was started in counts."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def load_workflows(modules: tuple[str, ...]) -> WorkflowRegistry:
    """Imports the modules, which register their workflows."""
    _find_modules_here()
    for name in modules:
        try:
            importlib.import_module(name)
        except BadWorkflow as fault:
            raise BadVariable(f"The module {name} declares a workflow that cannot run: {fault}") from fault
        except ImportError as fault:
            raise BadVariable(f"The module {name} cannot be imported: {fault}") from fault
        except Exception as fault:
            at = traceback.extract_tb(fault.__traceback__)[-1]
            why = f"{type(fault).__name__}: {fault} ({Path(at.filename).name}, line {at.lineno})"
            raise BadVariable(f"The module {name} cannot be imported: {why}") from fault
    return REGISTRY
