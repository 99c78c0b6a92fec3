{{- define "lucius.checks" -}}
{{- $known := .Files.Get "files/variables.yaml" | fromYaml }}
{{- range $name, $hint := $known.hints }}
{{- if hasKey $.Values $name }}{{ fail (printf "%s is not a value of this chart: %s." $name $hint) }}{{ end }}
{{- end }}
{{- $secrets := include "lucius.secretNames" . | fromJsonArray }}
{{- if and $secrets (not (include "lucius.secretName" .)) }}{{ fail "secrets.names needs secrets.existing, the Secret that holds them." }}{{ end }}
{{- if and .Values.secrets.external.enabled .Values.secrets.existing }}{{ fail "Set secrets.existing or secrets.external, not both." }}{{ end }}
{{- range $path, $image := include "lucius.images" . | fromJson }}
{{- if eq ($image.tag | default "") "latest" }}{{ fail (printf "%s.tag: name a version. Pods of one release would run what latest was when each was started." $path) }}{{ end }}
{{- if and (ne $path "image") $image.repository (not (or $image.tag $image.digest)) }}{{ fail (printf "%s.repository is an image of your own: name its version in %s.tag or %s.digest." $path $path $path) }}{{ end }}
{{- end }}
{{- range $path, $settings := include "lucius.allSettings" . | fromJson }}
{{- range $name, $value := $settings }}
{{- if and $secrets (has $name $secrets) }}{{ fail (printf "%s is in %s and in the Secret: leave it in one of them." $name $path) }}{{ end }}
{{- if regexMatch "(?i)://[^/@]*:[^/@]*@|[?&][a-z]*(password|secret|token|sig)=" (toString $value) }}{{ fail (printf "%s.%s holds a secret, which would stand in the release as plain text: put it into the Secret and name it in secrets.names." $path $name) }}{{ end }}
{{- end }}
{{- end }}
{{- range .Values.env }}
{{- if and (hasKey . "value") (regexMatch "(?i)(^|_)(SECRET|PASSWORD|PASSWD|TOKEN|CREDENTIALS?|ACCESS_KEY|API_KEY|CONNECTION_STRING)$" .name) }}{{ fail (printf "env: %s has a value, which would stand in the release as plain text: take it from a Secret with valueFrom.secretKeyRef." .name) }}{{ end }}
{{- end }}
{{- if ne (.Values.settings.LUCIUS_AUTH | default "required") "required" }}{{ fail "settings.LUCIUS_AUTH must be required: pods listen on addresses that others reach." }}{{ end }}
{{- if and .Values.ingress.enabled (not (and .Values.ingress.host .Values.ingress.tlsSecret)) }}{{ fail "ingress needs ingress.host and ingress.tlsSecret." }}{{ end }}
{{- if and .Values.httpRoute.enabled (not (and .Values.httpRoute.hosts .Values.httpRoute.gateway.name)) }}{{ fail "httpRoute needs httpRoute.hosts and httpRoute.gateway.name." }}{{ end }}
{{- range $part := list "api" "orchestrator" "worker" }}
{{- with (get $.Values $part).autoscaling }}
{{- if and .enabled (gt (int64 .replicasMin) (int64 .replicasMax)) }}{{ fail (printf "%s.autoscaling: replicasMin is %d, more than replicasMax, which is %d." $part (int64 .replicasMin) (int64 .replicasMax)) }}{{ end }}
{{- end }}
{{- end }}
{{- if .Values.onePod.enabled }}
{{- if ne .Values.engine "outbox" }}{{ fail "onePod runs the outbox engine alone: the temporal engine has parts in several pods." }}{{ end }}
{{- if .Values.migration.enabled }}{{ fail "migration sets up a store outside; the one pod makes its SQLite file itself: leave migration.enabled out." }}{{ end }}
{{- if .Values.keda.enabled }}{{ fail "keda scales services in pods of their own, which onePod does not install: leave keda.enabled or onePod.enabled out." }}{{ end }}
{{- end }}
{{- if and .Values.keda.enabled (not .Values.onePod.enabled) }}
{{- $bus := include "lucius.bus" . }}
{{- if not (or (eq .Values.keda.source "prometheus") (eq $bus "configured") (eq $bus .Values.keda.source)) }}{{ fail (printf "keda.source is %s, and the bus is %s: what waits there would start nothing." .Values.keda.source $bus) }}{{ end }}
{{- range $name, $given := .Values.services }}
{{- if ne (toString $given.enabled) "false" }}
{{- $scaling := (mergeOverwrite (deepCopy $.Values.serviceDefaults) (deepCopy $given)).scaling }}
{{- if gt (int64 $scaling.replicasMin) (int64 $scaling.replicasMax) }}{{ fail (printf "services.%s.scaling: replicasMin is %d, more than replicasMax, which is %d." $name (int64 $scaling.replicasMin) (int64 $scaling.replicasMax)) }}{{ end }}
{{- $object := printf "%s-service-%s" (include "lucius.name" $) $name }}
{{- if gt (len $object) 57 }}{{ fail (printf "services.%s: KEDA labels objects by their name, and %s has more than 57 characters: shorten the service's name or the release's." $name $object) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.migration.enabled (eq .Values.migration.target "postgres") (not (or (has "LUCIUS_STORE" (concat $secrets .Values.migration.names)) (hasKey .Values.settings "LUCIUS_STORE"))) }}{{ fail "migration.target postgres needs LUCIUS_STORE, in settings, in the Secret or in migration.names." }}{{ end }}
{{- if and .Values.migration.names (not .Values.migration.existingSecret) }}{{ fail "migration.names needs migration.existingSecret, the Secret that holds them." }}{{ end }}
{{- if not .Values.onePod.enabled }}
{{- $needed := list "LUCIUS_CALLBACK_KEYS" "LUCIUS_WEBHOOK_SECRETS" }}
{{- if eq .Values.engine "temporal" }}{{ $needed = append $needed "LUCIUS_INTERNAL_SECRET" }}{{ end }}
{{- range $needed }}
{{- if not (or (has . $secrets) (hasKey $.Values.settings (printf "%s_FILE" .))) }}{{ fail (printf "Parts on one ledger share %s: put it into the Secret and name it in secrets.names, or mount a file and name it in settings.%s_FILE." . .) }}{{ end }}
{{- end }}
{{- $ledger := list "LUCIUS_STORE" "LUCIUS_TABLE_CONNECTION" "LUCIUS_APP_CONFIGURATION_ENDPOINT" "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING" }}
{{- $found := false }}
{{- range $ledger }}{{ if or (has . $secrets) (hasKey $.Values.settings .) }}{{ $found = true }}{{ end }}{{ end }}
{{- if not $found }}{{ fail "Parts in several pods need a ledger that all reach: LUCIUS_STORE=postgresql://… or LUCIUS_TABLE_CONNECTION, in settings or in the Secret. For SQLite on a volume set onePod.enabled." }}{{ end }}
{{- if eq (include "lucius.bus" .) "memory" }}
{{- if eq .Values.engine "temporal" }}{{ fail "engine temporal needs a bus that all parts reach: settings.LUCIUS_NATS_URL or settings.LUCIUS_SERVICEBUS_NAMESPACE." }}{{ end }}
{{- range $name, $given := .Values.services }}
{{- if and (ne (toString $given.enabled) "false") (not (has "LUCIUS_API_KEY" $secrets)) }}{{ fail (printf "Without a bus services.%s leases over HTTP, with an API key that has the role work: put LUCIUS_API_KEY into the Secret and name it in secrets.names, or set the address of a bus." $name) }}{{ end }}
{{- end }}
{{- end }}
{{- if hasPrefix "sqlite:" (.Values.settings.LUCIUS_STORE | default "") }}{{ fail "SQLite is for one pod: set onePod.enabled, or name postgresql://… in LUCIUS_STORE." }}{{ end }}
{{- if eq .Values.engine "temporal" }}
{{- if not (or (hasKey .Values.settings "LUCIUS_TEMPORAL_ADDRESS") (hasKey .Values.settings "LUCIUS_APP_CONFIGURATION_ENDPOINT")) }}{{ fail "engine temporal needs settings.LUCIUS_TEMPORAL_ADDRESS: a Temporal server with a database of its own." }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Settings by where they stand, as JSON. */}}
{{- define "lucius.allSettings" -}}
{{- $found := dict "settings" .Values.settings }}
{{- range $part := list "onePod" "api" "reconciler" "orchestrator" "invoker" "worker" "serviceDefaults" }}
{{- $_ := set $found (printf "%s.settings" $part) ((get $.Values $part).settings | default dict) }}
{{- end }}
{{- range $name, $given := .Values.services }}{{ $_ := set $found (printf "services.%s.settings" $name) ($given.settings | default dict) }}{{ end }}
{{- $found | toJson }}
{{- end }}

{{- /* Images by where they stand, as JSON. */}}
{{- define "lucius.images" -}}
{{- $found := dict "image" .Values.image }}
{{- range $name, $given := .Values.services }}{{ with $given.image }}{{ $_ := set $found (printf "services.%s.image" $name) . }}{{ end }}{{ end }}
{{- $found | toJson }}
{{- end }}

{{- /* What carries directives, found as a process finds it; "configured" where App Configuration may say it. */}}
{{- define "lucius.bus" -}}
{{- $known := concat (keys .Values.settings) (include "lucius.secretNames" . | fromJsonArray) }}
{{- $servicebus := or (has "LUCIUS_SERVICEBUS_NAMESPACE" $known) (has "LUCIUS_SERVICEBUS_CONNECTION" $known) }}
{{- $nats := has "LUCIUS_NATS_URL" $known }}
{{- if .Values.settings.LUCIUS_BUS }}{{ .Values.settings.LUCIUS_BUS }}
{{- else if and $servicebus $nats }}{{ fail "There are addresses of NATS and of Service Bus: say which is the bus in settings.LUCIUS_BUS." }}
{{- else if $servicebus }}servicebus
{{- else if $nats }}nats
{{- else if or (has "LUCIUS_APP_CONFIGURATION_ENDPOINT" $known) (has "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING" $known) }}configured
{{- else }}memory
{{- end }}
{{- end }}
