"""gRPC at the hub: who is calling, messages in and out, transfer slots, the meter. Imported by `serve` only; may
import `rounds` and what lies below.
"""
