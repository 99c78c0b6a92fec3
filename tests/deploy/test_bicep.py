"""The Bicep files as a parser reads them, and as checkov judges them, without a compiler of Bicep."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.tools import DEPLOY, TOP, check

from lucius.settings import read_settings

FOLDER = DEPLOY / "azure"
FILES = sorted(FOLDER.glob("*.bicep"))
PARSE = TOP / "tests" / "deploy" / "bicep_documents.py"
ROLE = "Microsoft.Authorization/roleAssignments"
BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
KEEPERS = (
    "Microsoft.AppConfiguration/configurationStores",
    "Microsoft.ServiceBus/namespaces",
    "Microsoft.Storage/storageAccounts/blobServices",
    "Microsoft.Storage/storageAccounts/tableServices",
)
"""What has logs or metrics of its own."""

Document = dict[str, Any]


@pytest.fixture(scope="module")
def documents() -> dict[str, Document]:
    done = check("python", PARSE, *FILES)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def of_type(document: Document, kind: str) -> dict[str, Document]:
    """What the document makes of this type: not what was there before."""
    made = {name: each for name, each in document["resources"].items() if not each["existing"]}
    return {name: each["config"] for name, each in made.items() if each["type"] == kind}


def test_a_parser_reads_every_file(documents: dict[str, Document]) -> None:
    assert set(documents) == {"app-configuration", "main", "service-access", "service-bus", "storage"}
    assert all(document["resources"] for document in documents.values())


def test_a_bracket_that_is_missing_is_found(tmp_path: Path) -> None:
    broken = tmp_path / "broken.bicep"
    broken.write_text((FOLDER / "storage.bicep").read_text("utf-8").replace("  }\n}\n", "  }\n", 1), "utf-8")
    done = check("python", PARSE, broken)
    assert done.returncode != 0 and "Unexpected" in done.stderr


def test_checkov_finds_nothing_that_is_not_explained() -> None:
    config = FOLDER / "checkov.yaml"
    arguments: list[str | Path] = ["--quiet", "--compact", "--framework=bicep", "--output=json"]
    done = check("checkov", *arguments, "--config-file", config, "--directory", FOLDER)
    report = json.loads(done.stdout)
    assert [f"{each['check_id']} {each['resource']}" for each in report["results"]["failed_checks"]] == []
    assert report["summary"]["passed"] >= 6 and report["summary"]["parsing_errors"] == 0
    skips = re.findall(r"^( *#.*\n)*  - CKV", config.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(skips), "each skipped check has its reason above it"


def test_services_may_write_into_their_container_and_into_no_other(documents: dict[str, Document]) -> None:
    storage = documents["storage"]
    (container,) = of_type(storage, "Microsoft.Storage/storageAccounts/blobServices/containers").values()
    assert (container["parent"], container["name"]) == ("blobService", "workspaceContainer")
    assert container["properties"] == {"publicAccess": "None"}
    assert storage["variables"]["blobContributor"]["value"] == BLOB_CONTRIBUTOR
    role = of_type(storage, "Microsoft.Authorization/roleAssignments")["mayUseWorkspace"]
    assert (role["scope"], role["properties"]["principalId"]) == ("workspace", "principalId")
    assert "blobContributor" in json.dumps(role["properties"]["roleDefinitionId"])


def test_the_workspace_root_is_one_that_processes_take(documents: dict[str, Document]) -> None:
    name = documents["main"]["parameters"]["workspaceContainer"]["default"]
    root = documents["storage"]["outputs"]["workspaceRoot"]["value"].replace("${workspace.name}", name)
    account = "https://acme.blob.core.windows.net/"
    settings = read_settings({"LUCIUS_WORKSPACE_ROOT": root, "LUCIUS_BLOB_CONNECTION": account})
    assert settings.workspace_root == "az://workspace"
    assert settings.blob_account is not None and settings.blob_account.opened_by_identity
    outputs = documents["main"]["outputs"]
    assert "workspaceRoot" in json.dumps(outputs["LUCIUS_WORKSPACE_ROOT"])
    assert "blobEndpoint" in json.dumps(outputs["LUCIUS_BLOB_CONNECTION"])


def test_all_that_keeps_something_sends_its_logs(documents: dict[str, Document]) -> None:
    for document in documents.values():
        keepers = {name for kind in KEEPERS for name in of_type(document, kind)}
        logged = list(of_type(document, "Microsoft.Insights/diagnosticSettings").values())
        assert sorted(each["scope"] for each in logged) == sorted(keepers)
        for each in logged:
            sent = each["properties"]
            assert sent["workspaceId"] == "logs"
            assert sent["logs"] and sent["metrics"]
            assert all(part["enabled"] is True for part in [*sent["logs"], *sent["metrics"]])
    (logs,) = of_type(documents["main"], "Microsoft.OperationalInsights/workspaces").values()
    assert logs["properties"]["retentionInDays"] == "logRetentionDays"


def test_each_service_has_an_identity_for_what_is_its_own(documents: dict[str, Document]) -> None:
    access, main, bus = documents["service-access"], documents["main"], documents["service-bus"]
    made = {name for name, each in access["resources"].items() if not each["existing"]}
    roles = {name: each.get("config", each) for name, each in of_type(access, ROLE).items()}
    assert made == set(roles)
    assert {name: _scope(role["scope"]) for name, role in roles.items()} == {
        "mayReceive": "subscription[lane]",
        "mayReply": "replyTopic[lane]",
        "mayUseWorkspace": "workspace",
    }
    for name, role in (("mayReceive", "busReceiver"), ("mayReply", "busSender"), ("mayUseWorkspace", "blob")):
        assert role in json.dumps(roles[name]["properties"]["roleDefinitionId"])
        assert roles[name]["properties"]["principalId"] == "principalId"
    known = {name: each["value"] for name, each in access["variables"].items()}
    assert {known["busReceiver"], known["busSender"]} == set(bus["variables"]["roles"]["value"])
    assert (known["blobContributor"], known["lanes"]) == (
        BLOB_CONTRIBUTOR,
        bus["variables"]["lanes"]["value"],
    )
    text = (FOLDER / "main.bicep").read_text("utf-8")
    assert text.count("in services: {") == 3, "an identity, its rights, and its id for each service"
    assert "serviceClientIds" in main["outputs"]


def _scope(scope: Any) -> str:
    if isinstance(scope, str):
        return scope
    operands = scope["operator"]["operands"]
    return f"{operands['operand_1']}[{operands['operand_2']}]"
