"""How large a job may be where one commit takes four megabytes: what is accepted can also be cancelled.

Each of its 32 steps keeps the same part of the payload, random text that hardly gets smaller when it is
compressed. On Azurite, which refuses what Azure refuses.
"""

import json
import random
import string
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.azurite_setup import open_store

from lucius.assembly import Embedded
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.inputs import Cancel
from lucius.core.refusal import Code, Refused
from lucius.core.states import JobState
from lucius.jobs.sizes import STEP_ROOM_BYTES
from lucius.jobs.submit import Submitted
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.store import COMMIT_BYTES_MAX
from lucius.settings import read_settings

pytestmark = pytest.mark.xdist_group("azurite")

STEPS = 32
STEP_BYTES_MAX = (COMMIT_BYTES_MAX * 3 // 4) // STEPS - STEP_ROOM_BYTES
LETTERS = string.ascii_letters + string.digits + "!#$%&()*+,-./:;<=>?@[]^_`{|}~"


@pytest.fixture
async def store() -> AsyncIterator[AzureTablesStore]:
    opened = await open_store()
    yield opened
    await opened.close()


# The HTTP client would like a file above a megabyte; to send one takes it a few milliseconds.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("layout", LayoutName)
async def test_a_job_that_one_commit_cannot_change_is_refused_and_any_other_can_be_cancelled(
    store: AzureTablesStore, layout: LayoutName, tmp_path: Path
) -> None:
    protocols = tmp_path / "protocols"
    protocols.mkdir()
    steps = [{"step_type": f"S{n}", "service": f"s{n}", "payload_key": "part"} for n in range(STEPS)]
    many = {"protocol_id": "many_v1", "request_types": ["MANY"], "steps": steps}
    (protocols / "many.json").write_text(json.dumps(many), encoding="utf-8")
    lucius = Embedded(
        store,
        read_settings({}),
        layout=layout,
        data=tmp_path / "data",
        base_url="http://house",
        protocols=protocols,
    )
    submitter, ledger = lucius.deployment.submitter, lucius.deployment.ledger

    refused = await submitter.submit(_command("too-large", STEP_BYTES_MAX))
    assert isinstance(refused, Refused) and refused.code is Code.BODY_TOO_LARGE
    assert [(error.pointer, error.message) for error in refused.errors] == [
        ("/payload", "is too large for this many steps")
    ]
    # Nothing was written under its key: the same key is free for a smaller one.
    accepted = await submitter.submit(_command("too-large", STEP_BYTES_MAX - 100))
    assert isinstance(accepted, Submitted) and not accepted.duplicate
    await lucius.deployment.inputs.apply(accepted.job_id, Cancel())
    loaded = await ledger.load(accepted.job_id, fresh=True)
    assert loaded is not None and loaded.record.job.state is JobState.CANCELLED


def _command(key: str, part_bytes: int) -> Envelope:
    chance = random.Random(1)
    text = "".join(chance.choices(LETTERS, k=part_bytes - len('{"text":""}')))
    parsed = parse_envelope(
        {
            "tenant_id": "acme",
            "request_type": "MANY",
            "input_ref": {"uri": "s3://in/1"},
            "output_ref": {"uri": "s3://out/1"},
            "payload": {"part": {"text": text}},
            "schema_version": "1",
            "idempotency_key": key,
        }
    )
    assert not isinstance(parsed, Refused)
    return parsed
