"""How tensors are computed on this machine: what must be equal for equal bits, and how its cores are used. Imported by
the equations and by the compute processes; knows no method, no I/O, no grpc.
"""
