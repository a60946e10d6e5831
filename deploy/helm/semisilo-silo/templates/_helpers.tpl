{{- define "semisilo-silo.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "semisilo-silo.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "semisilo-silo.labels" -}}
{{ include "semisilo-silo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: semisilo
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "semisilo-silo.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "semisilo-silo.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "semisilo-silo.env" -}}
- {name: SEMISILO_LOG_FORMAT, value: {{ .Values.logFormat }}}
- {name: SEMISILO_IMAGES, value: {{ .Values.images.data | quote }}}
{{- with .Values.timeZone }}
- {name: TZ, value: {{ . | quote }}}
{{- end }}
{{- with .Values.proxy }}
- {name: https_proxy, value: {{ . | quote }}}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "semisilo-silo.mounts" -}}
- {name: home, mountPath: /silo, subPath: silo}
{{- if .Values.policy }}
- {name: policy, mountPath: /silo/silo.toml, subPath: silo.toml, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "semisilo-silo.probe" -}}
exec:
  # A glance at a lock: Python would take a core for a third of a second each time.
  command: [semisilo-alive, silo, /silo]
timeoutSeconds: 10
{{- end -}}
