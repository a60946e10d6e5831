"""Keys, certificates and invitations: who somebody is. Imported by enrolment and TLS of both sides; imports
cryptography and no torch.
"""
