"""The equations: pure functions of tensors, held against oracles. Imported by strategies, trainers and simulations; no
I/O, no grpc, no cryptography.
"""
