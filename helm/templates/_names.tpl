{{- /* One scheduler of this name per cluster or pool, since pods name it: so names are fixed, but for the namespace. */ -}}

{{- define "runai.labels" -}}
app.kubernetes.io/name: runai
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* Of a release that has a pool beside another one: what has a namespace in its name is its own. */ -}}
{{- define "runai.suffix" -}}
{{ ternary "" (printf "-%s" .Release.Namespace) .Values.clusterWide }}
{{- end }}

{{- /* What never changes between two upgrades: selectors. */ -}}
{{- define "runai.service.selector" -}}
app.kubernetes.io/name: runai
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: service
{{- end }}

{{- define "runai.agent.selector" -}}
app.kubernetes.io/name: runai
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end }}

{{- /* Where JupyterHub and the notebooks are. */ -}}
{{- define "runai.notebooks" -}}
{{ .Values.jupyterhub.namespace | default .Release.Namespace }}
{{- end }}

{{- define "runai.apiUrl" -}}
{{ .Values.apiUrl | default (printf "http://runai.%s%s" .Release.Namespace (include "runai.prefix" .)) }}
{{- end }}

{{- define "runai.image" -}}
{{ printf "%s:%s" .Values.image.name (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "runai.secret" -}}
{{ .Values.existingSecret | default "runai" }}
{{- end }}

{{- define "runai.prefix" -}}
{{ .Values.jupyterhub.baseUrl }}services/{{ .Values.jupyterhub.serviceName }}/
{{- end }}

{{- define "runai.hubApi" -}}
{{ .Values.jupyterhub.apiUrl | default (printf "http://hub.%s:8081%shub/api" (include "runai.notebooks" .) .Values.jupyterhub.baseUrl) }}
{{- end }}
