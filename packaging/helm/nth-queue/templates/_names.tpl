{{- /* What the objects are called. Labels tell a release's pods from those of others, and by them they find each other. */}}
{{- define "nth-queue.chart" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "nth-queue.name" -}}
{{- $chart := include "nth-queue.chart" . -}}
{{- $name := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{ .Values.fullnameOverride | default $name | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "nth-queue.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "nth-queue.name" .) "default") }}
{{- end -}}

{{- define "nth-queue.selector" -}}
app.kubernetes.io/name: nth-queue
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nth-queue.labels" -}}
{{ include "nth-queue.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* The metadata of an object in the release's namespace, or of one that is in none, from its name on. */}}
{{- define "nth-queue.metadata" -}}
name: {{ include "nth-queue.name" . }}
labels: {{- include "nth-queue.labels" . | nindent 2 }}
{{- with .Values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
