"""Study files, the hub's images, the queue. Imported by `rounds`, `compute` and above; may import `federation` and
`ledger`.
"""
