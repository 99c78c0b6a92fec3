"""The Helm chart: every profile of deploy/helm/lucius/ci is rendered and looked over, without a cluster."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from tests.deploy.chart import (
    CHART,
    PROFILES,
    Object,
    container_of,
    environment,
    from_secrets,
    of_kind,
    pod_of,
    refusal,
    refused,
    rendered,
    rendered_text,
    rendered_with,
    workloads,
    written,
)
from tests.deploy.tools import DEPLOY, TOP, check
from typer.testing import CliRunner

from lucius.bus.nats.names import NatsNames
from lucius.bus.service_bus.names import subscription_name
from lucius.cli.main import app
from lucius.core.model import ProtocolSpec, StepPolicy
from lucius.core.routing import LANES, topic
from lucius.registry.documents import load_document, parse_protocol
from lucius.settings import read_settings
from lucius.settings.table import TABLE

SECRETS = {declared.name for declared in TABLE if declared.is_secret}
every_profile = pytest.mark.parametrize("profile", PROFILES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return written(tmp_path_factory.mktemp("chart"))


def test_the_profiles_of_the_guide_are_there() -> None:
    assert set(PROFILES) >= {"one-pod", "postgres-nats", "azure", "temporal"}


@every_profile
def test_helm_lint_finds_nothing(profile: str) -> None:
    done = check("helm", "lint", "--strict", "--quiet", CHART, "--values", PROFILES[profile])
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_takes_every_object(files: list[Path]) -> None:
    done = check("kubernetes-validate", "--strict", "--quiet", "--no-warn", *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_operators_take_their_custom_resources(files: list[Path]) -> None:
    done = check("python", TOP / "tests" / "deploy" / "custom_resources.py", *files)
    *faults, checked = done.stdout.splitlines()
    assert (faults, done.returncode) == ([], 0), done.stderr
    assert int(checked.removeprefix("checked ")) > 0


def test_a_misspelt_member_of_a_custom_resource_is_found(tmp_path: Path) -> None:
    path = tmp_path / "misspelt.yaml"
    path.write_text(rendered_text("azure").replace("interval: 15s", "intervall: 15s"), encoding="utf-8")
    done = check("python", TOP / "tests" / "deploy" / "custom_resources.py", path)
    assert "'intervall' was unexpected" in done.stdout


def test_checkov_finds_nothing_that_is_not_explained(files: list[Path]) -> None:
    config = DEPLOY / "helm" / "checkov.yaml"
    arguments: list[str | Path] = ["--quiet", "--compact", "--framework=kubernetes", "--output=json"]
    arguments += ["--config-file", config, *(part for path in files for part in ("--file", path))]
    done = check("checkov", *arguments)
    report = json.loads(done.stdout)
    failed = [f"{each['check_id']} {each['resource']}" for each in report["results"]["failed_checks"]]
    assert failed == []
    assert report["summary"]["passed"] > 100
    skips = re.findall(r"^( *#.*\n)*  - CKV", config.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(skips), "each skipped check has its reason above it"


def test_every_member_of_the_schema_stands_in_the_values() -> None:
    """So that the file of values is the list of all that can be set."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    hints = yaml.safe_load((CHART / "files" / "variables.yaml").read_text(encoding="utf-8"))["hints"]
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - set(hints) - {"global"}
    missing = [
        f"{name}.{member}"
        for name, known in schema["properties"].items()
        for member in known.get("properties", ())
        if name in values and member not in values[name]
    ]
    assert missing == []


@every_profile
def test_pods_run_with_no_more_rights_than_they_need(profile: str) -> None:
    for workload in workloads(rendered(profile)):
        pod = pod_of(workload)["spec"]
        security = container_of(workload)["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] >= 10_000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["mountPath"] for mount in container_of(workload)["volumeMounts"]}
        assert {"/tmp", "/var/lib/lucius"} <= mounted


@every_profile
def test_containers_have_requests_limits_probes_and_a_pause_before_the_stop(profile: str) -> None:
    for workload in workloads(rendered(profile)):
        container = container_of(workload)
        for bound in ("requests", "limits"):
            assert set(container["resources"][bound]) >= {"cpu", "memory"}
        if workload["kind"] in {"Deployment", "StatefulSet"}:
            paths = {
                name: container[f"{name}Probe"]["httpGet"]["path"]
                for name in ("startup", "liveness", "readiness")
            }
            assert paths == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
            pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert pod_of(workload)["spec"]["terminationGracePeriodSeconds"] >= pause + 10


@every_profile
def test_no_image_is_the_latest(profile: str) -> None:
    for workload in workloads(rendered(profile)):
        image = container_of(workload)["image"]
        assert ":" in image.rpartition("/")[2], image
        assert not image.endswith(":latest")


@pytest.mark.parametrize("image", ["image", "services.transcribe.image"])
def test_the_latest_image_is_refused(image: str) -> None:
    assert f"{image}.tag: name a version" in refusal("azure", f"--set={image}.tag=latest")


def test_a_service_may_have_another_version_of_the_image() -> None:
    objects = rendered(
        "azure", "--set-string=services.ocr.image.tag=2", f"--set=image.digest=sha256:{'a' * 64}"
    )
    images = {
        name: container_of(each)["image"].removeprefix("example.azurecr.io/lucius")
        for name, each in of_kind(objects, "Deployment").items()
    }
    assert images["lucius-service-ocr"] == ":2"
    assert images["lucius-service-sis"] == images["lucius-api"] == f"@sha256:{'a' * 64}"
    assert "name its version" in refusal("azure", "--set=services.ocr.image.repository=registry.example/own")


def test_a_digest_goes_before_the_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    objects = rendered("one-pod", f"--set=image.digest={digest}")
    (workload,) = workloads(objects)
    assert container_of(workload)["image"] == f"registry.example/lucius@{digest}"


@every_profile
def test_secrets_come_from_secrets(profile: str) -> None:
    objects = rendered(profile)
    assert of_kind(objects, "Secret") == {}
    for workload in workloads(objects):
        plain = environment(workload)
        for name in SECRETS & set(plain):
            assert not re.search(r":[^/@]*@|;|password|key=", plain[name], re.IGNORECASE), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LUCIUS_STORE", "postgresql://lucius:secret@host/lucius"),
        ("LUCIUS_TABLE_CONNECTION", "AccountName=a;AccountKey=b"),
        ("LUCIUS_NATS_URL", "nats://lucius:secret@host:4222"),
        ("LUCIUS_CALLBACK_KEYS", f"one:{'x' * 40}"),
        ("LUCIUS_STORE", "postgresql://lucius@host/lucius?password=secret"),
        ("LUCIUS_SIS_URL", "http://lucius:secret@host"),
        ("LUCIUS_BLOB_CONNECTION", "https://host/?sv=1&sig=secret"),
    ],
)
@pytest.mark.parametrize("where", ["settings", "api.settings", "services.ocr.settings"])
def test_a_secret_among_the_settings_is_refused(where: str, name: str, value: str) -> None:
    assert name in refusal("azure", f"--set-string={where}.{name}={value}")


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "HF_TOKEN", "AZURE_CLIENT_SECRET"])
def test_a_secret_in_the_environment_is_refused(name: str) -> None:
    assert f"env: {name}" in refusal("azure", f"--set=env[0].name={name}", "--set=env[0].value=hush")


def test_a_secret_is_in_the_settings_or_in_the_secret() -> None:
    text = refusal("http", "--set=api.settings.LUCIUS_STORE=postgresql://lucius@host/other")
    assert "LUCIUS_STORE is in api.settings and in the Secret" in text


@every_profile
def test_each_part_is_given_what_it_reads_and_can_start_with_it(profile: str) -> None:
    known = yaml.safe_load((CHART / "files" / "variables.yaml").read_text(encoding="utf-8"))["variables"]
    stands_for = {
        "LUCIUS_CALLBACK_KEYS": f"one:{'x' * 40}",
        "LUCIUS_WEBHOOK_SECRETS": f"whsec_{'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'}",
        "LUCIUS_INTERNAL_SECRET": "y" * 32,
        "LUCIUS_STORE": "postgresql://owner:pw@host/lucius",
    }
    for workload in workloads(rendered(profile)):
        part = container_of(workload)["args"][0]
        names = set(environment(workload)) | set(from_secrets(workload))
        for name in names:
            if name.startswith("LUCIUS_") and part in {
                "api",
                "reconciler",
                "orchestrator",
                "invoker",
                "worker",
            }:
                assert part in known[name], (part, name)
        secrets = {name: stands_for.get(name, "z" * 20) for name in from_secrets(workload)}
        read_settings(environment(workload) | secrets)


def test_numbers_stand_as_whole_numbers() -> None:
    api = of_kind(rendered("postgres-nats"), "Deployment")["lucius-api"]
    assert environment(api)["LUCIUS_HTTP_MEMORY_BYTES"] == "268435456"


def test_a_part_may_have_settings_of_its_own_that_it_reads() -> None:
    deployments = of_kind(rendered("temporal"), "Deployment")
    assert environment(deployments["lucius-invoker"])["LUCIUS_POSTGRES_CONNECTIONS_MAX"] == "20"
    assert "LUCIUS_POSTGRES_CONNECTIONS_MAX" not in environment(deployments["lucius-orchestrator"])
    text = refusal("temporal", "--set=worker.settings.LUCIUS_MAX_INFLIGHT=5")
    assert "LUCIUS_MAX_INFLIGHT is not read by worker" in text


def test_what_a_part_has_of_its_own_counts_also_where_it_is_false() -> None:
    name = "LUCIUS_TEMPORAL_SIGNAL_ACKS"
    objects = rendered("temporal", f"--set=settings.{name}=true", f"--set=invoker.settings.{name}=false")
    assert environment(of_kind(objects, "Deployment")["lucius-invoker"])[name] == "false"


@pytest.mark.parametrize("profile", ["http", "temporal"])
def test_every_variable_reaches_each_part_that_reads_it(profile: str) -> None:
    chart = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    readers = yaml.safe_load((CHART / "files" / "variables.yaml").read_text(encoding="utf-8"))["variables"]
    values = yaml.safe_load(PROFILES[profile].read_text(encoding="utf-8"))
    secrets = chart["properties"]["secrets"]["properties"]["names"]["items"]["enum"]
    stands_for = {
        name: known.get("enum", ["1"])[0]
        for name, known in chart["definitions"]["settings"]["properties"].items()
        if name not in secrets
    }
    settings = stands_for | {"LUCIUS_AUTH": "required", "LUCIUS_BUS": "nats"}
    assert set(settings) | set(secrets) == set(readers)
    values |= {"settings": settings, "secrets": {"existing": "all", "names": secrets}}
    values |= {"migration": {"enabled": False}}
    objects = rendered_with(values)
    parts = {container_of(each)["args"][0]: each for each in of_kind(objects, "Deployment").values()}
    assert set(parts) >= {"service"}
    for part, workload in parts.items():
        expected = {name for name, processes in readers.items() if part in processes}
        assert set(environment(workload)) | set(from_secrets(workload)) >= expected, part


@pytest.mark.parametrize(
    ("setting", "scheme"),
    [("settings.LUCIUS_TLS_CERTIFICATE=/tls/tls.crt", "https"), ("api.replicas=2", "http")],
)
def test_pods_with_a_certificate_are_called_and_probed_by_tls(setting: str, scheme: str) -> None:
    objects = rendered("temporal", f"--set={setting}", "--set=monitoring.serviceMonitor.enabled=true")
    for workload in of_kind(objects, "Deployment").values():
        container = container_of(workload)
        for name in ("startup", "liveness", "readiness"):
            assert container[f"{name}Probe"]["httpGet"].get("scheme", "HTTP") == scheme.upper()
        for name in {"LUCIUS_PUBLIC_URL", "LUCIUS_INVOKER_URL", "LUCIUS_URL"} & set(environment(workload)):
            assert environment(workload)[name].startswith(f"{scheme}://")
    (endpoint,) = of_kind(objects, "ServiceMonitor")["lucius"]["spec"]["endpoints"]
    assert endpoint.get("scheme", "http") == scheme


@pytest.mark.parametrize(
    ("name", "asking"),
    [
        ("LUCIUS_TLS_CLIENT_CA", {"lucius-orchestrator", "lucius-invoker"}),
        ("LUCIUS_INTERNAL_TLS_CLIENT_CA", {"lucius-invoker"}),
    ],
)
def test_a_port_that_asks_for_a_certificate_is_probed_without_one(name: str, asking: set[str]) -> None:
    certificate = "--set=settings.LUCIUS_TLS_CERTIFICATE=/tls/tls.crt"
    deployments = of_kind(
        rendered("temporal", certificate, f"--set=settings.{name}=/tls/ca.crt"), "Deployment"
    )
    probed = {
        name for name, each in deployments.items() if "tcpSocket" in container_of(each)["livenessProbe"]
    }
    assert probed == asking


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("engine=temporal", "onePod runs the outbox engine"),
        ("migration.enabled=true", "leave migration.enabled out"),
        ("keda.enabled=true", "leave keda.enabled or onePod.enabled out"),
    ],
)
def test_what_one_pod_has_no_use_for_is_refused(setting: str, hint: str) -> None:
    assert hint in refusal("one-pod", f"--set={setting}")


def test_names_that_keda_could_not_put_into_labels_are_refused() -> None:
    service = f"services.{'a' * 40}.run=ocr"
    rendered("azure", f"--set={service}")
    values = ("--values", str(PROFILES["azure"]), f"--set={service}")
    done = check("helm", "template", "a-release-with-a-long-name", CHART, *values)
    assert "shorten the service's name or the release's" in done.stderr


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("api.autoscaling.replicasMin=7", "api.autoscaling: replicasMin is 7"),
        ("services.ocr.scaling.replicasMin=21", "services.ocr.scaling: replicasMin is 21"),
        ("settings.LUCIUS_MAX_INFLIGHT=-1", "LUCIUS_MAX_INFLIGHT"),
        ("settings.LUCIUS_BUS=nats", "keda.source is servicebus, and the bus is nats"),
        ("settings.LUCIUS_NATS_URL=nats://nats.data:4222", "say which is the bus in settings.LUCIUS_BUS"),
        ("migration.target=postgres", "migration.target postgres needs LUCIUS_STORE"),
        ("migration.names[0]=LUCIUS_STORE", "migration.names needs migration.existingSecret"),
        ("services.ocr.terminationSeconds=10", "services.ocr.terminationSeconds"),
        ("services.ocr.run=", "services.ocr.run"),
        ("api.resources=null", "resources is required"),
        ("api=null", "api is required"),
        (r"protocols.a/b\.yaml=x", "a/b.yaml"),
        ("replicaCount=3", "api.replicas"),
        ("persistence.size=1Gi", "onePod.volume"),
        ("config.LUCIUS_BUS=nats", "members of settings"),
        ("settings.LUCIUS_STORE=sqlite:///data/lucius.db", "onePod.enabled"),
        ("settings.LUCIUS_AUTH=open", "must be required"),
        ("settings.LUCIUS_MAX_INFLIGTH=5", "LUCIUS_MAX_INFLIGTH"),
        ("secrets.external.enabled=false", "LUCIUS_CALLBACK_KEYS"),
        ("env[0].name=LUCIUS_MAX_INFLIGHT", "env.0.name"),
        ("services.Big_Name.run=ocr", "Big_Name"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_hint(setting: str, hint: str) -> None:
    assert hint in refusal("azure", f"--set={setting}")


def test_a_ledger_that_not_all_pods_reach_is_refused() -> None:
    text = refusal("postgres-nats", "--set=settings.LUCIUS_STORE=sqlite:///x/lucius.db")
    assert "SQLite is for one pod" in text


def test_one_pod_keeps_its_data_on_a_volume_of_its_own() -> None:
    objects = rendered("one-pod")
    (workload,) = workloads(objects)
    assert workload["spec"]["replicas"] == 1
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert [volume["name"] for volume in pod_of(workload)["spec"]["volumes"]] == ["tmp"]
    assert (
        of_kind(objects, "Service")["lucius-api"]["spec"]["selector"]["app.kubernetes.io/component"]
        == "one-pod"
    )


def test_one_pod_may_take_a_claim_that_exists() -> None:
    (workload,) = workloads(rendered("one-pod", "--set=onePod.volume.existingClaim=old"))
    assert "volumeClaimTemplates" not in workload["spec"]
    (data,) = (each for each in pod_of(workload)["spec"]["volumes"] if each["name"] == "data")
    assert data["persistentVolumeClaim"] == {"claimName": "old"}


@pytest.mark.parametrize(
    ("profile", "parts"),
    [
        ("one-pod", set()),
        ("azure", {"api", "reconciler", "service-ocr", "service-embedding", "service-sis"}),
        (
            "temporal",
            {"orchestrator", "invoker", "worker", "service-ocr", "service-embedding", "service-sis"},
        ),
    ],
)
def test_each_profile_runs_its_parts(profile: str, parts: set[str]) -> None:
    assert set(of_kind(rendered(profile), "Deployment")) == {f"lucius-{part}" for part in parts}


@every_profile
def test_commands_are_those_that_lucius_has(profile: str) -> None:
    for workload in workloads(rendered(profile)):
        arguments = container_of(workload)["args"]
        depth = 2 if arguments[0] in {"service", "provision"} else 1
        told = CliRunner().invoke(app, [*arguments[:depth], "--help"]).output
        for argument in arguments:
            assert not argument.startswith("--") or argument in told, argument


def test_addresses_lead_to_services_of_the_release() -> None:
    objects = rendered("temporal")
    services = of_kind(objects, "Service")
    for workload in of_kind(objects, "Deployment").values():
        for name in {"LUCIUS_PUBLIC_URL", "LUCIUS_INVOKER_URL", "LUCIUS_URL"} & set(environment(workload)):
            host, port = environment(workload)[name].removeprefix("http://").split(":")
            assert int(port) in {each["port"] for each in services[host]["spec"]["ports"]}


@every_profile
def test_services_reach_pods_and_every_part_may_be_disrupted_one_by_one(profile: str) -> None:
    objects = rendered(profile)
    labels = [pod_of(workload)["metadata"]["labels"] for workload in workloads(objects)]

    def chosen(selector: Object) -> list[Object]:
        return [each for each in labels if selector.items() <= each.items()]

    for service in of_kind(objects, "Service").values():
        assert chosen(service["spec"]["selector"]), service["metadata"]["name"]
    budgets = of_kind(objects, "PodDisruptionBudget")
    assert set(budgets) == set(of_kind(objects, "Deployment"))
    for budget in budgets.values():
        assert len(chosen(budget["spec"]["selector"]["matchLabels"])) == 1
        assert budget["spec"]["maxUnavailable"] == 1


@every_profile
def test_pods_are_called_by_those_that_may_alone(profile: str) -> None:
    policies = of_kind(rendered(profile), "NetworkPolicy")
    closed = policies["lucius"]["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule.get("from") for rule in closed["ingress"])
    assert "169.254.0.0/16" in closed["egress"][0]["to"][0]["ipBlock"]["except"]
    opened = policies["lucius-api"]["spec"]["podSelector"]["matchLabels"]
    assert opened["app.kubernetes.io/component"] in {"api", "orchestrator", "one-pod"}


def test_autoscaled_parts_leave_their_number_to_the_autoscaler() -> None:
    objects = rendered("temporal")
    scaled = of_kind(objects, "HorizontalPodAutoscaler")
    assert set(scaled) == {"lucius-orchestrator", "lucius-worker"}
    for name, deployment in of_kind(objects, "Deployment").items():
        assert ("replicas" in deployment["spec"]) == (name not in scaled)


def test_the_store_is_set_up_before_an_upgrade_by_an_owner_of_its_own() -> None:
    objects = rendered("postgres-nats")
    job = of_kind(objects, "Job")["lucius-migration"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert container_of(job)["args"] == ["provision", "postgres", "--apply"]
    assert from_secrets(job)["LUCIUS_STORE"] == "lucius-owner"
    assert [each["name"] for each in container_of(job)["env"]].count("LUCIUS_STORE") == 1
    account = of_kind(objects, "ServiceAccount")[pod_of(job)["spec"]["serviceAccountName"]]
    assert account["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"


def test_azure_is_reached_by_a_managed_identity_without_any_secret_of_azure() -> None:
    objects = rendered("azure")
    account = of_kind(objects, "ServiceAccount")["lucius"]
    client = "11111111-2222-3333-4444-555555555555"
    assert account["metadata"]["annotations"]["azure.workload.identity/client-id"] == client
    for workload in workloads(objects):
        assert pod_of(workload)["metadata"]["labels"]["azure.workload.identity/use"] == "true"
        assert environment(workload)["LUCIUS_AZURE_CLIENT_ID"] == client
        assert set(from_secrets(workload)) <= {"LUCIUS_CALLBACK_KEYS", "LUCIUS_WEBHOOK_SECRETS"}
    (external,) = of_kind(objects, "ExternalSecret").values()
    made = external["spec"]["target"]["name"]
    assert {name for workload in workloads(objects) for name in from_secrets(workload).values()} == {made}
    assert of_kind(objects, "ResourceQuota")["lucius"]["spec"]["hard"]["pods"] == "80"
    assert of_kind(objects, "LimitRange")["lucius"]["spec"]["limits"][0]["max"]["cpu"] == "4"


@pytest.mark.parametrize("profile", ["azure", "postgres-nats"])
def test_services_scale_on_the_sum_over_all_lanes_up_to_a_cap(profile: str) -> None:
    objects = rendered(profile)
    scaled = of_kind(objects, "ScaledObject")
    deployments = of_kind(objects, "Deployment")
    services = {name for name in deployments if name.startswith("lucius-service-")}
    assert {each["spec"]["scaleTargetRef"]["name"] for each in scaled.values()} == services == set(scaled)
    for name, each in scaled.items():
        spec = each["spec"]
        triggers = [trigger["name"] for trigger in spec["triggers"]]
        modifiers = spec["advanced"]["scalingModifiers"]
        assert triggers == [f"p{lane}" for lane in range(LANES)]
        assert modifiers["formula"] == " + ".join(triggers)
        assert modifiers["metricType"] == "AverageValue"
        assert modifiers["activationTarget"] == "0"
        assert (spec["minReplicaCount"], spec["maxReplicaCount"] > 0) == (0, True)
        assert "replicas" not in deployments[name]["spec"], "an upgrade would undo what KEDA decided"


def test_the_caps_of_the_azure_profile_are_set() -> None:
    caps = {
        name: each["spec"]["maxReplicaCount"]
        for name, each in of_kind(rendered("azure"), "ScaledObject").items()
    }
    assert caps == {"lucius-service-ocr": 20, "lucius-service-embedding": 10, "lucius-service-sis": 6}


def test_triggers_read_the_subscriptions_that_lucius_takes_from() -> None:
    ocr = of_kind(rendered("azure"), "ScaledObject")["lucius-service-ocr"]
    for lane, trigger in enumerate(ocr["spec"]["triggers"]):
        assert trigger["type"] == "azure-servicebus"
        assert trigger["metadata"]["topicName"] == topic(lane)
        assert trigger["metadata"]["subscriptionName"] == subscription_name("ocr")
        assert trigger["metadata"]["namespace"] == "example"
    (identity,) = of_kind(rendered("azure"), "TriggerAuthentication").values()
    assert identity["spec"]["podIdentity"]["provider"] == "azure-workload"


def test_triggers_read_the_consumers_that_lucius_makes_on_nats() -> None:
    translate = of_kind(rendered("postgres-nats"), "ScaledObject")["lucius-service-translate"]
    names = NatsNames("lucius")
    for lane, trigger in enumerate(translate["spec"]["triggers"]):
        queue = names.directive_queue("translate", lane)
        found = (trigger["metadata"]["stream"], trigger["metadata"]["consumer"])
        assert found == (queue.stream, queue.consumer)


def test_without_a_broker_services_scale_on_the_metric_of_lucius() -> None:
    (trigger,) = of_kind(rendered("http"), "ScaledObject")["lucius-service-ocr"]["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["query"].startswith('sum(lucius_outbox_waiting{service="ocr"')


def test_long_work_runs_in_jobs_that_end_when_nothing_is_left() -> None:
    objects = rendered("azure")
    (job,) = of_kind(objects, "ScaledJob").values()
    spec = job["spec"]
    assert len(spec["triggers"]) == LANES
    assert spec["scalingStrategy"]["multipleScalersCalculation"] == "sum"
    assert spec["maxReplicaCount"] == 4
    assert spec["rollout"] == {"strategy": "gradual"}
    arguments = container_of(job)["args"]
    assert arguments[arguments.index("--until-idle") + 1] == "30"
    assert pod_of(job)["spec"]["restartPolicy"] == "Never"
    assert "lucius-service-transcribe" not in of_kind(objects, "Deployment")


@every_profile
def test_services_finish_before_they_are_killed(profile: str) -> None:
    for workload in workloads(rendered(profile)):
        arguments = container_of(workload)["args"]
        if arguments[0] == "service":
            drain = int(arguments[arguments.index("--drain-seconds") + 1])
            assert 0 < drain <= pod_of(workload)["spec"]["terminationGracePeriodSeconds"] - 15


@pytest.mark.parametrize(
    ("profile", "setting", "hint"),
    [
        ("postgres-nats", "keda.nats.monitoringEndpoint=", "keda.nats.monitoringEndpoint"),
        ("http", "keda.prometheus.serverAddress=", "keda.prometheus.serverAddress"),
        ("http", "keda.source=nats", "keda.source is nats, and the bus is memory"),
        ("azure", "settings.LUCIUS_SERVICEBUS_NAMESPACE=", "LUCIUS_SERVICEBUS_NAMESPACE"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused(profile: str, setting: str, hint: str) -> None:
    assert hint in refusal(profile, f"--set={setting}")


def test_services_without_a_bus_need_a_key_and_the_temporal_engine_a_bus() -> None:
    values = yaml.safe_load(PROFILES["http"].read_text(encoding="utf-8"))
    values["secrets"]["names"].remove("LUCIUS_API_KEY")
    assert "put LUCIUS_API_KEY into the Secret" in refused(values)
    values["services"] = {name: {"run": name, "enabled": False} for name in ("ocr", "embedding", "sis")}
    assert set(of_kind(rendered_with(values), "Deployment")) == {"lucius-api", "lucius-reconciler"}
    values = yaml.safe_load(PROFILES["temporal"].read_text(encoding="utf-8"))
    del values["settings"]["LUCIUS_NATS_URL"]
    assert "engine temporal needs a bus" in refused(values)


def test_a_service_of_the_users_own_has_its_image_and_its_time_to_end() -> None:
    service = of_kind(rendered("postgres-nats"), "Deployment")["lucius-service-translate"]
    container = container_of(service)
    assert container["image"] == "registry.example/translation:3.1"
    assert container["args"][:5] == ["service", "run", "translation.work:translate", "--as", "translate"]
    assert pod_of(service)["spec"]["terminationGracePeriodSeconds"] == 300


def test_protocols_are_documents_that_lucius_reads() -> None:
    (protocols,) = (
        each
        for name, each in of_kind(rendered("postgres-nats"), "ConfigMap").items()
        if name.endswith("protocols")
    )
    ((name, text),) = protocols["data"].items()
    document, fault = load_document(text.encode(), is_json=name.endswith(".json"))
    assert fault is None
    assert isinstance(parse_protocol(document, defaults=StepPolicy()), ProtocolSpec)
    assert (
        "--protocols" in container_of(of_kind(rendered("postgres-nats"), "Deployment")["lucius-api"])["args"]
    )


def notes(tmp_path: Path, profile: str, *settings: str) -> str:
    """Helm shows them after an install alone, which needs a cluster: so they are rendered as an object."""
    copy = tmp_path / "lucius"
    shutil.copytree(CHART, copy)
    file = copy / "templates" / "NOTES.txt"
    lines = "".join(f"    {line}\n" for line in file.read_text(encoding="utf-8").splitlines())
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata:\n  text: |\n"
    file.rename(copy / "templates" / "notes.yaml").write_text(head + lines, encoding="utf-8")
    done = check(
        "helm", "template", "lucius", copy, "--namespace=jobs", f"--values={PROFILES[profile]}", *settings
    )
    (text,) = (
        each["data"]["text"] for each in yaml.safe_load_all(done.stdout) if "text" in each.get("data", ())
    )
    return str(text)


def test_the_notes_tell_the_next_command(tmp_path: Path) -> None:
    text = notes(tmp_path, "one-pod")
    assert "kubectl --namespace jobs exec statefulset/lucius" in text
    assert "lucius keys create root" in text
    assert "https://lucius.example.com" in text


@pytest.mark.parametrize(
    ("setting", "scheme"),
    [("api.settings.LUCIUS_TLS_CERTIFICATE=/tls/tls.crt", "https"), ("api.replicas=2", "http")],
)
def test_the_notes_tell_how_the_forwarded_port_is_called(setting: str, scheme: str, tmp_path: Path) -> None:
    text = notes(tmp_path, "http", f"--set={setting}")
    assert f"export LUCIUS_URL={scheme}://127.0.0.1:8420" in text
