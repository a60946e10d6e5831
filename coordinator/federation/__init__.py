"""The federation's folder: authority, enrolment, invitations, backup and restore. Imported by `rpc`, `studies` and
above; may import `ledger`.
"""
