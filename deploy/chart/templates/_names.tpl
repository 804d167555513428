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
{{- /* Values by upstream's names take precedence where they are set: see values.yaml. */}}
{{- define "pilotage.image" -}}
{{- $global := .Values.global }}
{{- $hub := .Values.hub | default $global.hub }}
{{- $tag := .Values.tag | default $global.tag }}
{{- $parts := regexSplit ":" (base .Values.image) 2 }}
{{- if or $hub $tag -}}
{{ $hub | default (dir .Values.image) }}/{{ first $parts }}:{{ $tag | default (last $parts) }}
{{- else -}}
{{ .Values.image }}
{{- end }}
{{- end }}
{{- define "pilotage.domain" -}}
{{ (.Values.global.proxy).clusterDomain | default .Values.domain }}
{{- end }}
{{- /* The Secret of a plugged-in CA. Own volumes that are mounted in its place take precedence. */}}
{{- define "pilotage.caSecret" -}}
{{- $own := false }}
{{- range .Values.volumeMounts }}{{- if eq (trimSuffix "/" .mountPath) "/etc/cacerts" }}{{- $own = true }}{{- end }}{{- end }}
{{- if and .Values.certificateAuthority (not $own) }}{{ .Values.caSecret }}{{- end }}
{{- end }}
{{- define "pilotage.cluster" -}}
{{ (.Values.global.multiCluster).clusterName | default .Values.clusterID }}
{{- end }}
{{- define "pilotage.logLevel" -}}
{{ (.Values.global.logging).level | default .Values.logLevel }}
{{- end }}
{{- define "pilotage.logAsJson" -}}
{{- if or .Values.global.logAsJson .Values.logAsJson }}true{{ end }}
{{- end }}
{{- /* What templates of injected proxies read: `injection.values`, and upstream's values of the same names. */}}
{{- define "pilotage.injectionValues" -}}
{{- $global := dict }}
{{- range $name := list "hub" "tag" "network" "meshID" "caAddress" "imagePullPolicy" "imagePullSecrets" "proxy" "proxy_init" "logAsJson" }}
{{- with index $.Values.global $name }}{{- $_ := set $global $name . }}{{- end }}
{{- end }}
{{- with (.Values.global.multiCluster).clusterName }}{{- $_ := set $global "multiCluster" (dict "clusterName" .) }}{{- end }}
{{- $webhook := omit .Values.sidecarInjectorWebhook "enableNamespacesByDefault" }}
{{- $own := dict "global" $global "sidecarInjectorWebhook" $webhook }}
{{- mergeOverwrite (dict "revision" .Values.revision) (deepCopy .Values.injection.values) (deepCopy $own) | toPrettyJson }}
{{- end }}
