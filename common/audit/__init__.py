"""What makes the audit trail provable: the chain of its events, and signed heads of it that silos keep. Both sides
compute and read them the same way."""
