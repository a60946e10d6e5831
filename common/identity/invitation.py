"""Invitation lines: what an operator sends to a silo, on one line that survives mail, chat and shells.

Tests: tests/common/identity/test_certificates.py.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from semisilo.common.errors import InvitationInvalid, WrongAuthority
from semisilo.common.identity.certificates import federation_of_authority, is_name

__all__ = ["INVITATION_PREFIX", "InvitationLine", "decode_invitation", "encode_invitation", "token_hash"]

INVITATION_PREFIX = "semisilo-invite-v1."
_CHECKSUM_BYTES = 6
_LINE_LIMIT_CHARACTERS = 16384
_ADDRESS = re.compile(r"[!-~]{3,300}")


@dataclass(frozen=True, kw_only=True, slots=True)
class InvitationLine:
    """What an invitation line carries."""

    address: str
    """Where work is served, "host:port"."""
    enrollment_address: str
    """Where Enroll is served, "host:port"."""
    federation: str
    silo: str
    token: str = field(repr=False)
    """Single use, 256 bits; a secret until used."""
    expires_unix: float
    """By the coordinator's clock."""
    authority_der: bytes = field(repr=False)
    """The authority's certificate, pinned from the first byte."""


def token_hash(token: str) -> bytes:
    """SHA-256 of a token: the only form in which the coordinator keeps it. 256 random bits need no salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def encode_invitation(invitation: InvitationLine) -> str:
    """One line of about 1000 characters from a-z A-Z 0-9 - _ and dots: no shell, mail or chat program changes it."""
    head = json.dumps({"a": invitation.address, "e": invitation.enrollment_address, "f": invitation.federation,
                       "s": invitation.silo, "t": invitation.token, "x": invitation.expires_unix},
                      separators=(",", ":")).encode()
    body = len(head).to_bytes(2, "big") + head + invitation.authority_der
    return INVITATION_PREFIX + base64.urlsafe_b64encode(body + _checksum(body)).decode().rstrip("=")


def decode_invitation(line: str) -> InvitationLine:
    """The parts of an invitation line. Spaces, line breaks and quotes that a mail program added are ignored.

    Raises: InvitationInvalid when it is no such line, is damaged or cut, or contradicts itself.
    """
    text = "".join(line[: 2 * _LINE_LIMIT_CHARACTERS].split()).strip("\"'`<>")
    if not text.startswith("semisilo-invite-"):
        raise InvitationInvalid("This is not an invitation line.",
                                remedy=f"Paste the whole line that begins with {INVITATION_PREFIX[:-1]}.")
    if not text.startswith(INVITATION_PREFIX) and "." in text:
        raise InvitationInvalid(f"This invitation has the form '{text.split('.')[0][:40]}', which this version of "
                                "semisilo does not know.", remedy="Install the version that the coordinator runs.")
    damaged = InvitationInvalid("The invitation line is damaged or cut.",
                                remedy="Copy it again from its first to its last character.")
    encoded = text[len(INVITATION_PREFIX):]
    if len(text) > _LINE_LIMIT_CHARACTERS:
        raise damaged
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise damaged from None
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if len(body) < 2 or checksum != _checksum(body):
        raise damaged
    length = int.from_bytes(body[:2], "big")
    return _invitation_from(body[2 : 2 + length], body[2 + length :])


def _invitation_from(head: bytes, authority_der: bytes) -> InvitationLine:
    """Checks every field: the line may come from anybody, with a checksum that fits."""
    wrong = InvitationInvalid("The invitation line contradicts itself.",
                              remedy="Ask the coordinator's operator for a new one.")
    try:
        fields = json.loads(head)
        authority = x509.load_der_x509_certificate(authority_der)
        invitation = InvitationLine(address=fields["a"], enrollment_address=fields["e"], federation=fields["f"],
                                    silo=fields["s"], token=fields["t"], expires_unix=float(fields["x"]),
                                    authority_der=authority_der)
        texts = (invitation.address, invitation.enrollment_address, invitation.federation, invitation.silo,
                 invitation.token)
        if not all(isinstance(text, str) for text in texts) or not math.isfinite(invitation.expires_unix):
            raise wrong
        if federation_of_authority(authority) != invitation.federation:
            raise wrong
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, UnsupportedAlgorithm, WrongAuthority,
            x509.InvalidVersion):
        raise wrong from None
    if not (_ADDRESS.fullmatch(invitation.address) and _ADDRESS.fullmatch(invitation.enrollment_address)
            and is_name(invitation.silo) and 1 <= len(invitation.token) <= 256):
        raise wrong
    return invitation


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(INVITATION_PREFIX.encode() + body).digest()[:_CHECKSUM_BYTES]
