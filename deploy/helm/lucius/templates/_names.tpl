{{- define "lucius.name" -}}
{{- if contains "lucius" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-lucius" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "lucius.selector" -}}
app.kubernetes.io/name: lucius
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lucius.labels" -}}
{{ include "lucius.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lucius.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "lucius.name" .) }}
{{- end }}

{{- define "lucius.secretName" -}}
{{- if .Values.secrets.external.enabled }}{{ include "lucius.name" . }}-secrets{{ else }}{{ .Values.secrets.existing }}{{ end }}
{{- end }}

{{- /* The variables that come from the Secret, as JSON. */}}
{{- define "lucius.secretNames" -}}
{{- if .Values.secrets.external.enabled }}{{ keys .Values.secrets.external.keys | sortAlpha | toJson }}{{ else }}{{ .Values.secrets.names | sortAlpha | toJson }}{{ end }}
{{- end }}

{{- /* The part that serves the public API. */}}
{{- define "lucius.entry" -}}
{{- if .Values.onePod.enabled }}one-pod{{ else if eq .Values.engine "temporal" }}orchestrator{{ else }}api{{ end }}
{{- end }}

{{- define "lucius.apiHost" -}}
{{ include "lucius.name" . }}-api
{{- end }}

{{- /* The image of a component, as JSON: one of its own has its own version, else members of its own go before the chart's. */}}
{{- define "lucius.imageOf" -}}
{{- $image := deepCopy .root.Values.image }}
{{- $own := .own | default dict }}
{{- if $own.repository }}{{ $image = omit $image "tag" "digest" }}{{ else if $own.tag }}{{ $image = omit $image "digest" }}{{ end }}
{{- range $name, $value := $own }}{{ $_ := set $image $name $value }}{{ end }}
{{- $image | toJson }}
{{- end }}

{{- define "lucius.image" -}}
{{- $image := .image }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}{{ else }}{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* A value as the text of an environment variable: numbers of values are floats. */}}
{{- define "lucius.text" -}}
{{- if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}
