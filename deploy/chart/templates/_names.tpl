{{- /* Names of objects: those of a revision have its name, so that several run side by side. */ -}}
{{- define "pilotage.name" -}}
istiod{{ with .Values.revision }}-{{ . }}{{ end }}
{{- end }}
{{- define "pilotage.labels" -}}
{{ include "pilotage.selector" . }}
app.kubernetes.io/name: pilotage
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "pilotage.selector" -}}
app: istiod
{{- /* Upstream's labels: the Service without a revision must not select pods of one. */}}
{{- if .Values.revision }}
istio: istiod
istio.io/rev: {{ .Values.revision }}
{{- else }}
istio: pilot
{{- end }}
{{- end }}
{{- define "pilotage.revision" -}}
{{- if not .Values.revision }}
istio.io/rev: default
{{- end }}
{{- end }}
