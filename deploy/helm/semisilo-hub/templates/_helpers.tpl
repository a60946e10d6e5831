{{- define "semisilo-hub.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "semisilo-hub.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "semisilo-hub.labels" -}}
{{ include "semisilo-hub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: semisilo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "semisilo-hub.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "semisilo-hub.claim" -}}
{{- .Values.persistence.existingClaim | default (printf "data-%s-0" (include "semisilo-hub.fullname" .)) -}}
{{- end -}}

{{/* The pod listens on the port of the address, and for enrollment on the next one. */}}
{{- define "semisilo-hub.workPort" -}}
{{- splitList ":" .Values.federation.address | last | int -}}
{{- end -}}

{{- define "semisilo-hub.enrollmentPort" -}}
{{- splitList ":" .Values.federation.address | last | int | add1 -}}
{{- end -}}

{{/* The restricted pod security standard. Without an id the platform gives one, as OpenShift does. */}}
{{- define "semisilo-hub.podSecurityContext" -}}
runAsNonRoot: true
{{- with .Values.userId }}
runAsUser: {{ . }}
runAsGroup: 0
fsGroup: {{ . }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "semisilo-hub.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "semisilo-hub.probe" -}}
exec:
  # A glance at a file: Python would take a core for a third of a second each time.
  command: [semisilo-alive, coordinator, /federation]
timeoutSeconds: 10
{{- end -}}
