"""The rounds of a study: the engine that opens and closes them, how studies begin and end.

`semisilo.coordinator.tasks` and what stands above it may import this room; it imports the ledger, studies and compute.
"""
