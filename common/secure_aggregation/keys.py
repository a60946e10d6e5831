"""Keys, signatures, seals and seeds of a secure sum: all of `cryptography`, each with one purpose.

A silo has one identity (Ed25519) for all federations' sums that its peers know it by, and for each sum two key pairs of
its own (X25519): one that shares are sealed for, one that masks are agreed on with. Every derived key names its purpose
and what it is for, so that no two uses share a key; every signature begins with its purpose, so that none is good for
another.

Private keys and secrets are plain bytes here: Python cannot wipe memory, and the state of a sum is written to disk
anyway, by whoever keeps it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from semisilo.common.config import canonical_json
from semisilo.common.errors import BadKey, BadShare, BadSignature
from semisilo.common.secure_aggregation.messages import KEY_BYTES, SEED_BYTES, Confirmation, Member, SecureSum

__all__ = ["agree", "check_card_signature", "check_identity", "check_keys", "check_survivors",
           "commitment", "identity_of", "mask_context", "new_identity", "new_key", "pair_seed", "prove_identity",
           "public_of", "seal", "self_seed", "sign_card", "sign_keys", "sign_survivors", "unseal"]

_SIGNED_NAME = b"semisilo secure aggregation identity v1\0"
_SIGNED_CARD = b"semisilo study card signature v1\0"
_SIGNED_KEYS = b"semisilo secure aggregation keys v1\0"
_SIGNED_SURVIVORS = b"semisilo secure aggregation survivors v1\0"
_SEAL = b"semisilo secure aggregation seal v1\0"
_PAIR_MASK = b"semisilo secure aggregation pair mask v1\0"
_SELF_MASK = b"semisilo secure aggregation self mask v1\0"
_CONTEXT = b"semisilo secure aggregation context v1\0"
_COMMITMENT = b"semisilo secure aggregation commitment v1\0"
_ONCE = bytes(12)
"""The nonce of every seal. A key of `seal` is derived for one text and never used for another, and it is the pair of
key and nonce that must not come twice."""


def new_identity() -> bytes:
    """A new private key to sign with: 32 bytes of Ed25519."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def identity_of(private: bytes) -> bytes:
    """The public key of an identity: 32 bytes.

    Raises: BadKey when the private one does not have 32 bytes.
    """
    return _identity(private).public_key().public_bytes_raw()


def new_key() -> bytes:
    """A new private key to agree with: 32 bytes of X25519."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public key of a private X25519 key: 32 bytes.

    Raises: BadKey when the private one does not have 32 bytes.
    """
    return _private(private).public_key().public_bytes_raw()


def agree(private: bytes, peer_public: bytes) -> bytes:
    """The secret that both holders of a private key can compute: 32 bytes, to derive keys from and for nothing else.

    Raises: BadKey when the peer's key is not one of X25519, or one of the few of low order that give the same secret
        with every private key (RFC 7748, section 6.1).
    """
    own = _private(private)
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(peer_public))
    except ValueError:
        raise BadKey("The other side's key is not a key to agree on a secret with.") from None


def prove_identity(identity_private: bytes, *, federation: str, silo: str) -> bytes:
    """A silo's word that this is its key in a federation: who does not hold the key cannot take it for its own."""
    return _identity(identity_private).sign(_SIGNED_NAME + canonical_json([federation, silo]).encode())


def check_identity(identity: bytes, proof: bytes, *, federation: str, silo: str) -> None:
    """Whether a key is a silo's own. Raises: BadSignature."""
    if not _is_signed(identity, proof, _SIGNED_NAME + canonical_json([federation, silo]).encode()):
        raise BadSignature(f"The key for secure sums is not that of silo '{silo}'.")


def sign_card(identity_private: bytes, *, federation: str, silo: str, study: str, digest: str) -> bytes:
    """A silo's word that it takes part in a study as its card says: 64 bytes.

    Args:
        digest: of the card (`semisilo.common.methods.study_card.digest_of`).
    """
    return _identity(identity_private).sign(_card_message(federation, silo, study, digest))


def check_card_signature(identity: bytes, signature: bytes, *, federation: str, silo: str, study: str,
                         digest: str) -> None:
    """Whether a signature under a study card is that of a silo's key. Raises: BadSignature."""
    if not _is_signed(identity, signature, _card_message(federation, silo, study, digest)):
        raise BadSignature(f"The signature under the card of study '{study}' is not that of silo '{silo}'.")


def sign_keys(identity_private: bytes, total: SecureSum, silo: str, seal_key: bytes, mask_key: bytes) -> bytes:
    """A silo's word that these are its public keys for this sum, and for no other: 64 bytes."""
    return _identity(identity_private).sign(_keys_message(total, silo, seal_key, mask_key))


def check_keys(total: SecureSum, member: Member) -> None:
    """Whether a member's keys were signed by the identity that is listed for it.

    Raises: BadSignature, naming the silo.
    """
    if not _is_signed(member.identity, member.keys.signature,
                      _keys_message(total, member.silo, member.keys.seal_key, member.keys.mask_key)):
        raise BadSignature(f"The keys of silo '{member.silo}' are not signed by its identity.")


def mask_context(total: SecureSum, members: Sequence[Member], context: bytes) -> bytes:
    """What silos must have been told alike, or their masks do not cancel and their confirmations do not fit: the sum,
    who takes part in it with which keys, and what the round is about. 32 bytes.

    Args:
        members: U1, in byte order of names.
        context: of the caller: the digests of the model, of the study's settings, of the roster.
    """
    listed = [[member.silo, member.identity.hex(), member.keys.seal_key.hex(), member.keys.mask_key.hex()]
              for member in members]
    return hashlib.sha256(
        _CONTEXT + canonical_json([total.digest().hex(), listed, context.hex()]).encode()).digest()


def sign_survivors(identity_private: bytes, total: SecureSum, context: bytes, survivors: Sequence[str]) -> bytes:
    """A silo's word that it knows of this list of survivors, and will help to unmask no other: 64 bytes.

    Args:
        context: see `mask_context`.
    """
    return _identity(identity_private).sign(_survivors_message(total, context, survivors))


def check_survivors(total: SecureSum, context: bytes, survivors: Sequence[str], confirmation: Confirmation,
                    identity: bytes) -> None:
    """Whether a silo has signed this list, for this sum and this context.

    Raises: BadSignature, naming the silo.
    """
    if not _is_signed(identity, confirmation.signature, _survivors_message(total, context, survivors)):
        raise BadSignature(f"Silo '{confirmation.silo}' has not signed this list of survivors.")


def seal(private_seal_key: bytes, peer_seal_key: bytes, total: SecureSum, *, sender: str, recipient: str,
         plain: bytes) -> bytes:
    """Encrypts for one silo, in one sum: SEAL_OVERHEAD_BYTES more than `plain`.

    The key is good for one text: it hangs on the sum, the sender, the recipient and both of their keys, and a silo
    seals once for each peer of a sum. So the nonce may be zero.

    Raises: BadKey when the peer's key is none.
    """
    key = _seal_key(private_seal_key, peer_seal_key, total, sender=sender, recipient=recipient)
    return ChaCha20Poly1305(key).encrypt(_ONCE, plain, None)


def unseal(private_seal_key: bytes, peer_seal_key: bytes, total: SecureSum, *, sender: str, recipient: str,
           sealed: bytes) -> bytes:
    """What `seal` has encrypted.

    Raises: BadShare, naming the sender, when it was sealed by another, for another, in another sum, or was changed;
        BadKey when the peer's key is none.
    """
    key = _seal_key(private_seal_key, peer_seal_key, total, sender=sender, recipient=recipient)
    try:
        return ChaCha20Poly1305(key).decrypt(_ONCE, sealed, None)
    except InvalidTag:
        raise BadShare(f"The shares that silo '{sender}' has sealed for '{recipient}' cannot be opened.") from None


def pair_seed(private_mask_key: bytes, peer_mask_key: bytes, *, context: bytes) -> bytes:
    """The seed of the mask of two silos, which both can compute: SEED_BYTES.

    Args:
        context: what both must have been told alike; another gives an unrelated seed.
    Raises: BadKey when the peer's key is none.
    """
    return _derive(agree(private_mask_key, peer_mask_key), salt=context, info=_PAIR_MASK)


def self_seed(secret: bytes, *, context: bytes) -> bytes:
    """The seed of the mask that a silo has for itself: SEED_BYTES."""
    return _derive(secret, salt=context, info=_SELF_MASK)


def commitment(secret: bytes) -> bytes:
    """What a silo publishes of its self mask's secret, so that a wrong one is known: 32 bytes. The secret has 256
    random bits, so that its hash tells nothing of it."""
    return hashlib.sha256(_COMMITMENT + secret).digest()


def _identity(private: bytes) -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(private)
    except ValueError:
        raise BadKey(f"A private identity has {KEY_BYTES} bytes, found {len(private)}.") from None


def _private(private: bytes) -> X25519PrivateKey:
    try:
        return X25519PrivateKey.from_private_bytes(private)
    except ValueError:
        raise BadKey(f"A private key has {KEY_BYTES} bytes, found {len(private)}.") from None


@functools.lru_cache(maxsize=4096)
def _is_signed(identity: bytes, signature: bytes, message: bytes) -> bool:
    """Kept: a silo proves the same identity with every poll, and a list of keys comes to every silo in turn."""
    try:
        Ed25519PublicKey.from_public_bytes(identity).verify(signature, message)
    except (ValueError, InvalidSignature):
        return False
    return True


def _card_message(federation: str, silo: str, study: str, digest: str) -> bytes:
    return _SIGNED_CARD + canonical_json([federation, silo, study, digest]).encode()


def _keys_message(total: SecureSum, silo: str, seal_key: bytes, mask_key: bytes) -> bytes:
    return _SIGNED_KEYS + canonical_json([total.digest().hex(), silo, seal_key.hex(), mask_key.hex()]).encode()


def _survivors_message(total: SecureSum, context: bytes, survivors: Sequence[str]) -> bytes:
    return _SIGNED_SURVIVORS + canonical_json([total.digest().hex(), context.hex(), list(survivors)]).encode()


def _seal_key(private: bytes, peer: bytes, total: SecureSum, *, sender: str, recipient: str) -> bytes:
    # Both keys in the order of a sorted pair: sender and recipient derive the same.
    keys = sorted((public_of(private).hex(), peer.hex()))
    return _derive(agree(private, peer), salt=total.digest(),
                   info=_SEAL + canonical_json([sender, recipient, *keys]).encode())


def _derive(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=salt, info=info).derive(secret)
