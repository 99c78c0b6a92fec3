{{- /* One trigger for each lane, or one for all lanes where the source adds them up: root, name, config. */}}
{{- define "lucius.triggers" -}}
{{- $root := .root }}
{{- $name := .name }}
{{- $scaling := .config.scaling }}
{{- $settings := merge (deepCopy (.config.settings | default dict)) $root.Values.settings }}
{{- $source := $root.Values.keda.source }}
{{- $waiting := int64 $scaling.backlogPerReplica | toString | quote }}
{{- $activation := int64 $scaling.activationBacklog | toString | quote }}
{{- if eq $source "prometheus" }}
- type: prometheus
  name: all
  metadata:
    serverAddress: {{ required "keda.source prometheus needs keda.prometheus.serverAddress." $root.Values.keda.prometheus.serverAddress | quote }}
    query: sum(lucius_outbox_waiting{service={{ $name | quote }},namespace={{ $root.Release.Namespace | quote }}}) or vector(0)
    threshold: {{ $waiting }}
    activationThreshold: {{ $activation }}
{{- else }}
{{- range $lane := until 16 }}
{{- if eq $source "nats" }}
- type: nats-jetstream
  name: p{{ $lane }}
  metadata:
    natsServerMonitoringEndpoint: {{ required "keda.source nats needs keda.nats.monitoringEndpoint, the host and port where NATS shows its figures." $root.Values.keda.nats.monitoringEndpoint | quote }}
    account: {{ $root.Values.keda.nats.account | quote }}
    useHttps: {{ $root.Values.keda.nats.https | quote }}
    stream: {{ $settings.LUCIUS_NATS_PREFIX | default "lucius" }}-directives-{{ mod $lane 4 }}
    consumer: {{ $name }}-p{{ $lane }}
    lagThreshold: {{ $waiting }}
    activationLagThreshold: {{ $activation }}
{{- else }}
- type: azure-servicebus
  name: p{{ $lane }}
  metadata:
    topicName: global-bus-p{{ $lane }}
    subscriptionName: {{ $name }}
    {{- with $settings.LUCIUS_SERVICEBUS_NAMESPACE }}
    namespace: {{ . | trimSuffix ".servicebus.windows.net" }}
    {{- end }}
    messageCount: {{ $waiting }}
    activationMessageCount: {{ $activation }}
  authenticationRef: {name: {{ include "lucius.name" $root }}-servicebus}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "lucius.scaledObject" }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ include "lucius.name" .root }}-service-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "lucius.labels" .root | nindent 4 }}
spec:
  scaleTargetRef:
    name: {{ include "lucius.name" .root }}-service-{{ .name }}
  pollingInterval: {{ int64 .root.Values.keda.pollingSeconds }}
  cooldownPeriod: {{ int64 .root.Values.keda.cooldownSeconds }}
  minReplicaCount: {{ int64 .config.scaling.replicasMin }}
  maxReplicaCount: {{ int64 .config.scaling.replicasMax }}
  advanced:
    {{- if ne .root.Values.keda.source "prometheus" }}
    # Of several triggers the largest counts, unless a formula says otherwise.
    scalingModifiers:
      formula: {{ range $lane := until 16 }}{{ if $lane }} + {{ end }}p{{ $lane }}{{ end }}
      target: {{ int64 .config.scaling.backlogPerReplica | toString | quote }}
      activationTarget: {{ int64 .config.scaling.activationBacklog | toString | quote }}
      metricType: AverageValue
    {{- end }}
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown:
          stabilizationWindowSeconds: 120
          policies:
            - {type: Percent, value: 50, periodSeconds: 60}
  triggers:
    {{- include "lucius.triggers" . | nindent 4 }}
{{- end }}

{{- define "lucius.scaledJob" }}
{{- $pod := include "lucius.podTemplate" .pod | fromYaml }}
{{- $_ := set $pod.spec "restartPolicy" "Never" }}
{{- $container := first $pod.spec.containers }}
{{- $_ := set $container "args" (concat $container.args (list "--until-idle" (int64 .config.scaling.idleSeconds | toString))) }}
apiVersion: keda.sh/v1alpha1
kind: ScaledJob
metadata:
  name: {{ include "lucius.name" .root }}-service-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "lucius.labels" .root | nindent 4 }}
spec:
  pollingInterval: {{ int64 .root.Values.keda.pollingSeconds }}
  minReplicaCount: {{ int64 .config.scaling.replicasMin }}
  maxReplicaCount: {{ int64 .config.scaling.replicasMax }}
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 10
  # A new version starts no second pod for work that an old one does.
  rollout: {strategy: gradual}
  scalingStrategy:
    strategy: default
    multipleScalersCalculation: sum
  jobTargetRef:
    backoffLimit: 0
    activeDeadlineSeconds: {{ int64 .config.scaling.jobSecondsMax }}
    template:
      {{- toYaml $pod | nindent 6 }}
  triggers:
    {{- include "lucius.triggers" . | nindent 4 }}
{{- end }}
