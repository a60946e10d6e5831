"""gRPC as both sides use it: TLS, chunks, messages, errors, and what the wire carried. Imported by
`semisilo.coordinator.rpc` and `semisilo.silo.link`.
"""
