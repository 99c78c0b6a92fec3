"""Writes what the Helm chart takes from the settings table: the schema of values, who reads which variable.

Usage: python tools/chart_schema.py [--check]   (from the top of the repository; --check only fails on drift)
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from lucius.settings.declaration import Process, Setting
from lucius.settings.table import TABLE

CHART = Path("deploy/helm/lucius")
SCHEMA = CHART / "values.schema.json"
VARIABLES = CHART / "files" / "variables.yaml"
PARTS = {
    Process.API: "api",
    Process.RECONCILER: "reconciler",
    Process.ORCHESTRATOR: "orchestrator",
    Process.INVOKER: "invoker",
    Process.WORKER: "worker",
    Process.SERVICE: "service",
}
WITHOUT_A_SECRET = {
    "LUCIUS_STORE": "^((sqlite|azure-tables):.*|postgresql://([^:@/]+@)?[^@]+)$",
    "LUCIUS_TABLE_CONNECTION": "^https://[^;@?]+$",
    "LUCIUS_BLOB_CONNECTION": "^https://[^;@?]+$",
    "LUCIUS_NATS_URL": "^[^@]+$",
}
"""May hold a secret; values of this form hold none, and may stand among the settings."""
HINTS = {
    "replicaCount": "each part has its own: api.replicas, reconciler.replicas, serviceDefaults.replicas",
    "resources": "each part has its own: api.resources, serviceDefaults.resources",
    "service": "the API's Service is a ClusterIP; publish it with ingress or httpRoute",
    "config": "LUCIUS_* variables are members of settings",
    "extraEnv": "it is called env",
    "existingSecret": "it is secrets.existing, with secrets.names",
    "autoscaling": "api.autoscaling, orchestrator.autoscaling, worker.autoscaling; services scale with keda",
    "persistence": "it is onePod.volume",
}
"""Members that other charts have: the templates refuse each with its hint."""

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
SWITCH: Schema = {"type": "boolean"}
MAP: Schema = {"type": "object"}
TEXTS: Schema = {"type": "array", "items": TEXT}
OBJECTS: Schema = {"type": "array", "items": MAP}
DURATION: Schema = {"type": "string", "pattern": "^([0-9]+(h|m|s))+$"}
VOLUME_SIZE: Schema = {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti)$"}
RESOURCES: Schema = {
    "type": "object",
    "required": ["requests", "limits"],
    "properties": {name: MAP | {"required": ["cpu", "memory"]} for name in ("requests", "limits")},
    "additionalProperties": False,
}
SERVICE_NAME = "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"


def number(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def closed(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "additionalProperties": False}


def one_of(*words: str) -> Schema:
    return {"enum": list(words)}


def variable(declared: Setting[Any]) -> Schema:
    """What may stand for it. The process checks it fully at its start; this finds what YAML gets wrong."""
    default = f" Default: {declared.unset_text}." if declared.unset_text != "–" else ""
    known: Schema = {"description": declared.help + default}
    if declared.name in WITHOUT_A_SECRET:
        return known | {"type": "string", "pattern": WITHOUT_A_SECRET[declared.name]}
    words = re.findall(r"`([^`]*)`", declared.kind.form)
    if words == ["true", "false"]:
        return known | {"enum": [True, False, "true", "false"]}
    if words and re.fullmatch(r"(`[^`]*`(, )?)+", declared.kind.form) and not any(map(str.isupper, words)):
        return known | {"enum": words}
    if declared.kind.form.startswith("number "):
        return known | {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+$"}
    return known | {"type": ["string", "integer"], "minLength": 1}


def part(**more: Schema) -> Schema:
    members: Schema = {
        "replicas": number(0, 100),
        "resources": RESOURCES,
        "settings": {"$ref": "#/definitions/settings"},
        "terminationSeconds": number(10, 86_400),
    }
    return closed(**(members | more))


def whole(known: Schema) -> Schema:
    """All its members have defaults, and null would take one away."""
    return known | {"required": sorted(known["properties"])}


AUTOSCALING = closed(
    enabled=SWITCH, replicasMin=number(1, 100), replicasMax=number(1, 100), cpuPercent=number(10, 100)
)
IMAGE = closed(
    repository=TEXT | {"minLength": 1},
    tag=TEXT,
    digest={"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
    pullPolicy=one_of("Always", "IfNotPresent", "Never"),
    pullSecrets=OBJECTS,
)
SERVICE_MEMBERS = {
    "concurrency": number(1, 1000),
    "results": TEXT,
    "scaling": closed(
        replicasMin=number(0, 1000),
        replicasMax=number(1, 1000),
        backlogPerReplica=number(1, 100_000),
        activationBacklog=number(0, 100_000),
        asJobs=SWITCH,
        idleSeconds=number(1, 86_400),
        jobSecondsMax=number(60, 604_800),
    ),
}


def schema() -> Schema:
    offered = [one for one in TABLE if is_offered(one)]
    plain = {one.name: variable(one) for one in offered if not one.is_secret or one.name in WITHOUT_A_SECRET}
    secret = [one.name for one in offered if one.is_secret or one.name in WITHOUT_A_SECRET]
    names = {"type": "array", "items": {"enum": secret}, "uniqueItems": True}
    # What a service has 15 s less of for what it has begun.
    ends = number(20, 86_400)
    service = part(
        **SERVICE_MEMBERS,
        terminationSeconds=ends,
        run=TEXT | {"minLength": 1},
        image=IMAGE,
        enabled=SWITCH,
    )
    members: Schema = {
        "image": IMAGE,
        "engine": one_of("outbox", "temporal"),
        "onePod": closed(
            enabled=SWITCH,
            services=TEXT,
            volume=closed(size=VOLUME_SIZE, storageClass=TEXT, existingClaim=TEXT),
            resources=RESOURCES,
            settings={"$ref": "#/definitions/settings"},
            terminationSeconds=number(10, 86_400),
        ),
        "settings": {"$ref": "#/definitions/settings"},
        "secrets": closed(
            existing=TEXT,
            names=names,
            external=closed(
                enabled=SWITCH,
                store=closed(name=TEXT, kind=one_of("SecretStore", "ClusterSecretStore")),
                refreshInterval=DURATION,
                keys={"type": "object", "propertyNames": {"enum": secret}, "additionalProperties": TEXT},
            ),
        ),
        "env": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string", "not": {"pattern": "^LUCIUS_"}}},
            },
        },
        "protocols": {
            "type": "object",
            "propertyNames": {"pattern": "^[-._A-Za-z0-9]+\\.(yaml|yml|json)$"},
            "additionalProperties": {"type": ["string", "object"]},
        },
        "volumes": OBJECTS,
        "volumeMounts": OBJECTS,
        "serviceAccount": closed(create=SWITCH, name=TEXT, annotations=MAP, azureClientId=TEXT),
        "runAsUser": {"type": ["integer", "null"], "minimum": 1},
        "podAnnotations": MAP,
        "nodeSelector": MAP,
        "tolerations": OBJECTS,
        "priorityClassName": TEXT,
        "api": whole(part(autoscaling=AUTOSCALING)),
        "reconciler": whole(part()),
        "orchestrator": whole(part(autoscaling=AUTOSCALING)),
        "invoker": whole(part()),
        "worker": whole(part(autoscaling=AUTOSCALING)),
        "serviceDefaults": whole(part(**SERVICE_MEMBERS, terminationSeconds=ends)),
        "services": {
            "type": "object",
            "propertyNames": {"pattern": SERVICE_NAME},
            "additionalProperties": service | {"required": ["run"]},
        },
        "keda": closed(
            enabled=SWITCH,
            source=one_of("servicebus", "nats", "prometheus"),
            nats=closed(monitoringEndpoint=TEXT, account=TEXT, https=SWITCH),
            prometheus=closed(serverAddress=TEXT),
            pollingSeconds=number(1, 3600),
            cooldownSeconds=number(0, 86_400),
        ),
        "ingress": closed(enabled=SWITCH, className=TEXT, host=TEXT, tlsSecret=TEXT, annotations=MAP),
        "httpRoute": closed(
            enabled=SWITCH, hosts=TEXTS, gateway=closed(name=TEXT, namespace=TEXT, listener=TEXT)
        ),
        "networkPolicy": closed(enabled=SWITCH, apiFrom=OBJECTS, metricsFrom=OBJECTS, egressExcept=TEXTS),
        "quota": closed(enabled=SWITCH, hard=MAP),
        "limitRange": closed(enabled=SWITCH, default=MAP, defaultRequest=MAP, max=MAP),
        "migration": closed(
            enabled=SWITCH,
            target=one_of("postgres", "azure"),
            existingSecret=TEXT,
            names=names,
            secondsMax=number(10, 86_400),
        ),
        "monitoring": closed(
            serviceMonitor=closed(
                enabled=SWITCH,
                interval=DURATION,
                labels=MAP,
                tlsConfig=MAP,
                keySecret=closed(name=TEXT, key=TEXT),
            ),
            prometheusRule=closed(enabled=SWITCH, labels=MAP, runbooks=TEXT),
            dashboards=closed(enabled=SWITCH, labels=MAP, annotations=MAP),
        ),
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart lucius",
        "description": "Written by tools/chart_schema.py from src/lucius/settings/table.py.",
        "type": "object",
        "additionalProperties": False,
        "required": sorted(set(members) - {"runAsUser"}),
        "properties": members
        | {name: {"description": f"Not a value: {hint}."} for name, hint in HINTS.items()}
        | {"global": MAP},
        "definitions": {"settings": {"type": "object", "properties": plain, "additionalProperties": False}},
    }


def is_offered(declared: Setting[Any]) -> bool:
    return any(process in PARTS for process in declared.read_by)


def variables() -> Schema:
    return {
        "variables": {
            one.name: [PARTS[process] for process in one.read_by if process in PARTS]
            for one in TABLE
            if is_offered(one)
        },
        "hints": HINTS,
    }


def main() -> int:
    wanted = {
        SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n",
        VARIABLES: "# Written by tools/chart_schema.py from src/lucius/settings/table.py.\n"
        + yaml.safe_dump(variables(), sort_keys=False, width=110),
    }
    check = "--check" in sys.argv[1:]
    drifted = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in drifted:
        if check:
            sys.stdout.write(f"{path} is not what the settings table says: run `make docs`\n")
        else:
            path.write_text(wanted[path], "utf-8")
    return int(check and bool(drifted))


if __name__ == "__main__":
    raise SystemExit(main())
