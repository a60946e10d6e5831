"""The connection to the hub: dialling, calls that are repeated, transfers that resume, diagnosis. Imported by
`agent`, `check` and `membership`.
"""
