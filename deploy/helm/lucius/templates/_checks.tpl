{{- define "lucius.checks" -}}
{{- $known := .Files.Get "files/variables.yaml" | fromYaml }}
{{- range $name, $hint := $known.hints }}
{{- if hasKey $.Values $name }}{{ fail (printf "%s is not a value of this chart: %s." $name $hint) }}{{ end }}
{{- end }}
{{- $secrets := include "lucius.secretNames" . | fromJsonArray }}
{{- if and $secrets (not (include "lucius.secretName" .)) }}{{ fail "secrets.names needs secrets.existing, the Secret that holds them." }}{{ end }}
{{- if and .Values.secrets.external.enabled .Values.secrets.existing }}{{ fail "Set secrets.existing or secrets.external, not both." }}{{ end }}
{{- range $secrets }}
{{- if hasKey $.Values.settings . }}{{ fail (printf "%s is in settings and in the Secret: leave it in one of them." .) }}{{ end }}
{{- end }}
{{- if ne (.Values.settings.LUCIUS_AUTH | default "required") "required" }}{{ fail "settings.LUCIUS_AUTH must be required: pods listen on addresses that others reach." }}{{ end }}
{{- if and .Values.ingress.enabled (not (and .Values.ingress.host .Values.ingress.tlsSecret)) }}{{ fail "ingress needs ingress.host and ingress.tlsSecret." }}{{ end }}
{{- if and .Values.httpRoute.enabled (not (and .Values.httpRoute.hosts .Values.httpRoute.gateway.name)) }}{{ fail "httpRoute needs httpRoute.hosts and httpRoute.gateway.name." }}{{ end }}
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
{{- if hasPrefix "sqlite:" (.Values.settings.LUCIUS_STORE | default "") }}{{ fail "SQLite is for one pod: set onePod.enabled, or name postgresql://… in LUCIUS_STORE." }}{{ end }}
{{- if eq .Values.engine "temporal" }}
{{- if not (or (hasKey .Values.settings "LUCIUS_TEMPORAL_ADDRESS") (hasKey .Values.settings "LUCIUS_APP_CONFIGURATION_ENDPOINT")) }}{{ fail "engine temporal needs settings.LUCIUS_TEMPORAL_ADDRESS: a Temporal server with a database of its own." }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
