{{- define "pilotage.labels" -}}
app: istiod
istio: pilot
app.kubernetes.io/name: pilotage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "pilotage.selector" -}}
app: istiod
istio: pilot
{{- end }}
