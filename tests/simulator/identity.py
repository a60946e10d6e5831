"""The identity of the simulated federation: made once and written down, for keys that are drawn anew would make every
run another one. It guards nothing.

Tests: tests/simulator/test_simulator.py.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ed25519

from semisilo.common.identity.certificates import certificate_der, load_certificate
from semisilo.coordinator.federation.audit_key import AuditKey

__all__ = ["AUTHORITY", "audit_key"]

AUTHORITY = load_certificate(b"""-----BEGIN CERTIFICATE-----
MIIB2jCCAYCgAwIBAgIUIUx3ohkIRXPE4/OZEcrUNr0UCC8wCgYIKoZIzj0EAwIw
KTEKMAgGA1UECgwBZjEbMBkGA1UEAwwSc2VtaXNpbG8gYXV0aG9yaXR5MB4XDTI3
MDExNTA1MDMyMFoXDTM3MDExNDA1MTMyMFowKTEKMAgGA1UECgwBZjEbMBkGA1UE
AwwSc2VtaXNpbG8gYXV0aG9yaXR5MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
ZedMBxY/YmiJYTp0+RBjChrL4b8sOufv+S0guLT/SvY6vEnc/O8xLn9EqMmFxIBP
oEiIF9pWL8lJ+e9Vv44smKOBhTCBgjAdBgNVHQ4EFgQUsr9Flz4IoSoNqBGP6e2s
2OxJ6TowHwYDVR0jBBgwFoAUsr9Flz4IoSoNqBGP6e2s2OxJ6TowEgYDVR0TAQH/
BAgwBgEB/wIBADAOBgNVHQ8BAf8EBAMCAQYwHAYDVR0eAQH/BBIwEKAOMAyCCmYu
c2VtaXNpbG8wCgYIKoZIzj0EAwIDSAAwRQIgP3qI4OX9h5ZQcpGqQFkJmyT0QmrI
fQnhsmHHVyC+TnsCIQCznGqwybtgNZjg0Cy3qAA7brhOJOQTm0Hn+m+xOxc5Qw==
-----END CERTIFICATE-----
""")
_AUDIT = load_certificate(b"""-----BEGIN CERTIFICATE-----
MIIBrDCCAVKgAwIBAgIUKL9EzG2kaz+wd9ro5TZE0L4eMrUwCgYIKoZIzj0EAwIw
KTEKMAgGA1UECgwBZjEbMBkGA1UEAwwSc2VtaXNpbG8gYXV0aG9yaXR5MB4XDTI3
MDExNTA1MDMyMFoXDTM3MDExNDA1MTMyMFowHDEKMAgGA1UECgwBZjEOMAwGA1UE
AwwFYXVkaXQwKjAFBgMrZXADIQA7aie8zrakLWKjqNAqbw1zZTIVdx3iQ6Y6wEih
i1naKaOBkzCBkDAdBgNVHQ4EFgQUjDDJfn/VRgzjuWLbTNdYee7Nir0wHwYDVR0j
BBgwFoAUsr9Flz4IoSoNqBGP6e2s2OxJ6TowDAYDVR0TAQH/BAIwADAOBgNVHQ8B
Af8EBAMCB4AwEwYDVR0lBAwwCgYIKwYBBQUHAyQwGwYDVR0RBBQwEoIQYXVkaXQu
Zi5zZW1pc2lsbzAKBggqhkjOPQQDAgNIADBFAiBWyl6VDJQQAG8aPLYYesSiEO7K
r/w8wl8KW6HWi283cgIhAOjLvmMsyoP4HPL4gJqFcAJX9H8mJQMvkJMltgzlpmfT
-----END CERTIFICATE-----
""")


def audit_key() -> AuditKey:
    """The key that signs heads of the audit trail."""
    return AuditKey(key=ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32)),
                    certificate_der=certificate_der(_AUDIT), authority=AUTHORITY)
