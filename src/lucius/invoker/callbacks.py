"""HTTP callbacks, where the invoker runs by itself: the same routes as the public API's, and nothing else."""

import msgspec
from fastapi import APIRouter, FastAPI

from lucius.api.app import add_fault_handlers
from lucius.api.work import add_callbacks
from lucius.ledger.jobs import JobLedger
from lucius.progress.apply import Applies
from lucius.progress.tokens import CallbackTokens


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """`progress` tells workflows too (`Telling`)."""

    tokens: CallbackTokens
    progress: Applies
    ledger: JobLedger


def make_callback_app(desk: Desk) -> FastAPI:
    """For a port that services reach. Each call opens nothing but the attempt that its token names."""
    router = APIRouter()
    add_callbacks(router, desk)
    app = FastAPI(title="Lucius callbacks", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    add_fault_handlers(app)
    return app
