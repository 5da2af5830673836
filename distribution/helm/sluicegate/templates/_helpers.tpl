{{- define "sluicegate.labels" -}}
{{ include "sluicegate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluicegate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluicegate.name" -}}
{{ printf "%s-sluicegate" .Release.Name | trimPrefix "sluicegate-" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "sluicegate.secret" -}}
{{ .Values.secret.existing | default (include "sluicegate.name" .) }}
{{- end }}
