"""The rounds of a study: the engine that opens and closes them, what silos may ask of it, how studies begin and end.

`semisilo.coordinator.rpc` and what stands above it may import this room; it imports the ledger, studies and compute.
"""
