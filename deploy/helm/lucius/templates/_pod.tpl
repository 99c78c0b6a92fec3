{{- /* The settings of a component as JSON, its own before those of all, those before what the chart knows: root, settings, derived.
   Set one by one: to merge would take false for unset. */}}
{{- define "lucius.settingsOf" -}}
{{- $given := dict }}
{{- range $each := list (.derived | default dict) .root.Values.settings (.settings | default dict) }}
{{- range $name, $value := $each }}{{ $_ := set $given $name $value }}{{ end }}
{{- end }}
{{- $given | toJson }}
{{- end }}

{{- /* Whether the port of a component speaks TLS: root, settings. */}}
{{- define "lucius.hasTls" -}}
{{- if (include "lucius.settingsOf" . | fromJson).LUCIUS_TLS_CERTIFICATE }}true{{ end }}
{{- end }}

{{- /* Whether that port asks callers for a certificate, which a probe has not: root, settings, reads. */}}
{{- define "lucius.asksForCertificate" -}}
{{- $given := include "lucius.settingsOf" . | fromJson }}
{{- if has .reads (list "api" "orchestrator" "invoker" "one-pod") }}
{{- if or $given.LUCIUS_TLS_CLIENT_CA (and (eq .reads "invoker") $given.LUCIUS_INTERNAL_TLS_CLIENT_CA) }}true{{ end }}
{{- end }}
{{- end }}

{{- /* What a probe asks for: the context of a pod, path. */}}
{{- define "lucius.probed" -}}
{{- if include "lucius.asksForCertificate" .pod -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ .path }}, port: http{{ if include "lucius.hasTls" .pod }}, scheme: HTTPS{{ end }}}
{{- end }}
{{- end }}

{{- /* The environment of a component: root, reads (the name of the part), settings (of its own), derived (what the chart knows). */}}
{{- define "lucius.env" -}}
{{- $root := .root }}
{{- $reads := .reads }}
{{- $variables := ($root.Files.Get "files/variables.yaml" | fromYaml).variables }}
{{- $own := .settings | default dict }}
{{- range $name, $value := $own }}
{{- if not (or (eq $reads "one-pod") (has $reads (get $variables $name))) }}{{ fail (printf "%s is not read by %s: docs/reference/settings.md says which part reads it." $name $reads) }}{{ end }}
{{- end }}
{{- $given := include "lucius.settingsOf" . | fromJson }}
{{- range $name := keys $given | sortAlpha }}
{{- if or (eq $reads "one-pod") (has $reads (get $variables $name)) }}
- name: {{ $name }}
  value: {{ include "lucius.text" (get $given $name) | quote }}
{{- end }}
{{- end }}
{{- range $name := include "lucius.secretNames" $root | fromJsonArray }}
{{- if or (eq $reads "one-pod") (has $reads (get $variables $name)) }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef: {name: {{ include "lucius.secretName" $root }}, key: {{ $name }}}
{{- end }}
{{- end }}
{{- with $root.Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lucius.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "lucius.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAsUser }}
runAsUser: {{ int64 . }}
runAsGroup: {{ int64 . }}
fsGroup: {{ int64 . }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The template of a pod: root, component, reads, args, ports (name, number), config (values of the component), derived, data (a volume instead of an empty folder). */}}
{{- define "lucius.podTemplate" -}}
{{- $root := .root }}
{{- $image := include "lucius.imageOf" (dict "root" $root "own" .config.image) | fromJson }}
metadata:
  labels:
    {{- include "lucius.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
    {{- if $root.Values.serviceAccount.azureClientId }}
    azure.workload.identity/use: "true"
    {{- end }}
  annotations:
    {{- if $root.Values.protocols }}
    lucius/protocols: {{ toJson $root.Values.protocols | sha256sum | trunc 16 }}
    {{- end }}
    kubectl.kubernetes.io/default-container: lucius
    {{- with $root.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "lucius.serviceAccount" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ int64 .config.terminationSeconds }}
  securityContext:
    {{- include "lucius.podSecurity" $root | nindent 4 }}
  {{- with $image.pullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $root.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $root.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .spread }}
  topologySpreadConstraints:
    {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ $key }}
      maxSkew: 1
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "lucius.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.component }}
    {{- end }}
  {{- end }}
  containers:
    - name: lucius
      image: {{ include "lucius.image" (dict "root" $root "image" $image) }}
      imagePullPolicy: {{ $image.pullPolicy | default "IfNotPresent" }}
      args:
        {{- toYaml .args | nindent 8 }}
      env:
        {{- include "lucius.env" . | nindent 8 }}
      ports:
        {{- range .ports }}
        - {name: {{ .name }}, containerPort: {{ .number }}}
        {{- end }}
      securityContext:
        {{- include "lucius.containerSecurity" $root | nindent 8 }}
      resources:
        {{- toYaml .config.resources | nindent 8 }}
      {{- if .probed }}
      startupProbe:
        {{- include "lucius.probed" (dict "pod" . "path" "/livez") | nindent 8 }}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        {{- include "lucius.probed" (dict "pod" . "path" "/livez") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        {{- include "lucius.probed" (dict "pod" . "path" "/readyz") | nindent 8 }}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 2
      lifecycle:
        # While the address of this pod leaves the lists of those that call it, it still answers.
        preStop:
          sleep: {seconds: 5}
      {{- end }}
      volumeMounts:
        - {name: data, mountPath: /var/lib/lucius}
        - {name: tmp, mountPath: /tmp}
        {{- if and $root.Values.protocols .protocols }}
        - {name: protocols, mountPath: /etc/lucius/protocols, readOnly: true}
        {{- end }}
        {{- with $root.Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- if .data }}
    {{- toYaml .data | nindent 4 }}
    {{- else }}
    - name: data
      emptyDir: {}
    {{- end }}
    - name: tmp
      emptyDir: {}
    {{- if and $root.Values.protocols .protocols }}
    - name: protocols
      configMap: {name: {{ include "lucius.name" $root }}-protocols}
    {{- end }}
    {{- with $root.Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- /* What the chart knows of itself: the addresses of its parts. Settings go before it. */}}
{{- define "lucius.derived" -}}
LUCIUS_AUTH: required
LUCIUS_LOG_FORMAT: json
{{- $entry := get .Values (ternary "onePod" (include "lucius.entry" .) .Values.onePod.enabled) }}
{{- $scheme := ternary "https" "http" (eq "true" (include "lucius.hasTls" (dict "root" . "settings" $entry.settings))) }}
{{- $invoker := ternary "https" "http" (eq "true" (include "lucius.hasTls" (dict "root" . "settings" .Values.invoker.settings))) }}
LUCIUS_PUBLIC_URL: {{ printf "%s://%s:8420" $scheme (include "lucius.apiHost" .) | quote }}
LUCIUS_URL: {{ printf "%s://%s:8420" $scheme (include "lucius.apiHost" .) | quote }}
LUCIUS_INVOKER_URL: {{ printf "%s://%s-invoker:8421" $invoker (include "lucius.name" .) | quote }}
{{- if .Values.serviceAccount.azureClientId }}
LUCIUS_AZURE_IDENTITY: workload
LUCIUS_AZURE_CLIENT_ID: {{ .Values.serviceAccount.azureClientId | quote }}
{{- end }}
{{- end }}
