"""temporary"""
from __future__ import annotations

import hashlib
from dataclasses import dataclass

EMPTY_ROSTER = bytes(32)
@dataclass(frozen=True, kw_only=True, slots=True)
class RosterEntry:
    number: int
    silo: str
    identity: bytes
    removed: bool
    chain: bytes
def next_entry(number: int, chain: bytes, *, silo: str, identity: bytes, removed: bool) -> RosterEntry:
    return RosterEntry(number=number+1, silo=silo, identity=identity, removed=removed, chain=hashlib.sha256(chain+silo.encode()+identity+bytes([removed])).digest())
