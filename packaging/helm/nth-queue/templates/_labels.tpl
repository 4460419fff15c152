{{- define "selector" -}}
app.kubernetes.io/name: nth-queue
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "labels" -}}
{{ include "selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
