"""Secure sums in the ledger, and the roster of the keys that silos take part with. Imports the ledger alone."""
