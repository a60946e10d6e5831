"""What silos ask of the coordinator: their tasks, the updates that answer them, and what they say beside.

`semisilo.coordinator.rpc` and what stands above it may import this room; it imports rounds, the ledger and compute.
"""
