"""Prints what the schemas of KEDA and of the Prometheus operator find in rendered objects, line by line.

Usage: python custom_resources.py FILE...   (YAML; run by the tests in .venv-checks, which holds the models)
The models come from the operators' own definitions of custom resources; unknown members are faults, too.
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from cloudcoil.models.keda import v1alpha1 as keda  # type: ignore[import-not-found]
from cloudcoil.models.prometheus_operator import v1 as prometheus  # type: ignore[import-not-found]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

MODELS = {
    "ScaledObject": keda.ScaledObject,
    "ScaledJob": keda.ScaledJob,
    "TriggerAuthentication": keda.TriggerAuthentication,
    "ServiceMonitor": prometheus.ServiceMonitor,
    "PrometheusRule": prometheus.PrometheusRule,
}
GROUPS = ("keda.sh/", "monitoring.coreos.com/")


def strict(schema: Any) -> Any:
    """Kubernetes drops members that it does not know: a misspelt one would be lost in silence."""
    if isinstance(schema, list):
        return [strict(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(member) for name, member in schema.items()}
    if made.get("type") == "object" and "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


def main() -> None:
    checked = 0
    validators = {}
    for path in sys.argv[1:]:
        for document in yaml.safe_load_all(Path(path).read_text("utf-8")):
            if not document or not document["apiVersion"].startswith(GROUPS):
                continue
            kind = document["kind"]
            if kind not in validators:
                schema = strict(MODELS[kind].model_json_schema(by_alias=True))
                validators[kind] = Draft202012Validator(schema)
            # Metadata is Kubernetes' own, and the model leaves parts of it out.
            spec = {name: value for name, value in document.items() if name != "metadata"}
            checked += 1
            for fault in validators[kind].iter_errors(spec | {"metadata": {}}):
                place = "/".join(map(str, fault.absolute_path))
                print(f"{path}: {kind} {document['metadata']['name']}: {place}: {fault.message[:200]}")
    print(f"checked {checked}")


if __name__ == "__main__":
    main()
