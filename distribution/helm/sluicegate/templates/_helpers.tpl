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

{{- /* A duration of the configuration in milliseconds. */}}
{{- define "sluicegate.milliseconds" -}}
{{- $number := toString . | regexFind "^[0-9]+" | int64 }}
{{- $units := dict "ms" 1 "" 1000 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 }}
{{- mul $number (get $units (toString . | regexFind "[a-z]*$") | default 0) }}
{{- end }}

{{- /* Fails if a value does not fit the configuration. */}}
{{- define "sluicegate.check" -}}
{{- $grace := .Values.terminationGracePeriodSeconds }}
{{- $usual := dig "dispatch" "shutdown-timeout" "30s" .Values.config }}
{{- $pipelines := values (.Values.config.pipelines | default dict) | default (list .Values.config) }}
{{- range $pipelines }}
{{- $timeout := dig "dispatch" "shutdown-timeout" $usual (. | default dict) }}
{{- if gt (add (include "sluicegate.milliseconds" $timeout | int64) 5000) (mul $grace 1000) }}
{{- fail (printf "terminationGracePeriodSeconds is %v: it must exceed dispatch.shutdown-timeout (%v) by 5 s" $grace $timeout) }}
{{- end }}
{{- end }}
{{- $listen := dig "admin" "listen" "" .Values.config }}
{{- if ne (toString .Values.adminPort) (regexFind "[0-9]+$" $listen) }}
{{- fail (printf "adminPort is %v: it must be the port of config.admin.listen (%v)" .Values.adminPort $listen) }}
{{- end }}
{{- end }}
