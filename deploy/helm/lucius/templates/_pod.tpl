{{- /* The environment of a component: root, reads (the name of the part), settings (of its own), derived (what the chart knows). */}}
{{- define "lucius.env" -}}
{{- $root := .root }}
{{- $reads := .reads }}
{{- $variables := ($root.Files.Get "files/variables.yaml" | fromYaml).variables }}
{{- $own := .settings | default dict }}
{{- range $name, $value := $own }}
{{- if not (or (eq $reads "one-pod") (has $reads (get $variables $name))) }}{{ fail (printf "%s is not read by %s: docs/reference/settings.md says which part reads it." $name $reads) }}{{ end }}
{{- end }}
{{- $given := merge (deepCopy $own) $root.Values.settings .derived }}
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
{{- $image := .config.image | default $root.Values.image }}
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
        httpGet: {path: /livez, port: http}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /readyz, port: http}
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
LUCIUS_PUBLIC_URL: {{ include "lucius.publicUrl" . | quote }}
LUCIUS_URL: {{ printf "http://%s:8420" (include "lucius.apiHost" .) | quote }}
LUCIUS_INVOKER_URL: {{ printf "http://%s-invoker:8421" (include "lucius.name" .) | quote }}
{{- if .Values.serviceAccount.azureClientId }}
LUCIUS_AZURE_IDENTITY: workload
LUCIUS_AZURE_CLIENT_ID: {{ .Values.serviceAccount.azureClientId | quote }}
{{- end }}
{{- end }}

{{- define "lucius.publicUrl" -}}
http://{{ include "lucius.apiHost" . }}:8420
{{- end }}
