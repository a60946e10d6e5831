"""The silos that this one knows, as `silo peers` shows them.

Tests: tests/silo/cli/test_peers.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from semisilo.common.errors import UsageError
from semisilo.common.text.wrapped import fitted
from semisilo.silo.secure_aggregation.store import SecureStore
from semisilo.silo.secure_aggregation.trust import fingerprint, parse_fingerprint, short_number
from semisilo.silo.site.home import SiloHome, home_option
from semisilo.silo.site.identity_store import load_identity
from semisilo.silo.site.policy import load_policy

__all__ = ["Peer", "forget_peer", "peer_lines", "peers_of"]

State = Literal["this silo", "this silo, but pinned with another key", "pinned", "seen",
                "pinned, and seen with another key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One silo."""

    silo: str
    identity: bytes
    """Its public key: as pinned, else as it was first seen."""
    state: State

    @property
    def number(self) -> str:
        """To be read to each other."""
        return short_number(self.identity)

    def facts(self) -> dict[str, str]:
        """For programs."""
        return {"silo": self.silo, "state": self.state, "number": self.number,
                "fingerprint": fingerprint(self.identity)}


def peers_of(home: SiloHome) -> list[Peer]:
    """This silo first, then others in order of names.

    Raises: UsageError before it is enrolled; BadConfiguration for silo.toml.
    """
    own, store, policy = load_identity(home.folder), SecureStore(home.secure), load_policy(home.policy)
    pinned = {silo: parse_fingerprint(text, where=f"{home.policy}: [peers] {silo}")
              for silo, text in policy.peers.items()}
    identity = store.identity()
    found = [Peer(silo=own.silo, identity=identity, state="this silo" if pinned.get(own.silo, identity) == identity
                  else "this silo, but pinned with another key")]
    for silo in sorted({*pinned, *store.known} - {own.silo}, key=str.encode):
        seen = store.known.get(silo)
        if silo not in pinned:
            found.append(Peer(silo=silo, identity=store.known[silo], state="seen"))
        else:
            found.append(Peer(silo=silo, identity=pinned[silo], state="pinned" if seen in (None, pinned[silo])
                              else "pinned, and seen with another key"))
    return found


def peer_lines(peers: Sequence[Peer], *, width: int | None = None) -> list[str]:
    """For a person.

    Args:
        width: of the terminal; where a line would be longer, number and state stand below the name. What goes into
            silo.toml is never broken. None: whole lines.
    """
    names = max(len(peer.silo) for peer in peers)
    lines = [f"{peer.silo:<{names}}  {peer.number}  {peer.state}" for peer in peers]
    if width is not None and max(map(len, lines)) > width:
        lines = [line for peer in peers for line in (peer.silo, f"  {peer.number}", f"  {peer.state}")]
    new = [peer for peer in peers if peer.state == "seen"]
    if len(peers) == 1:
        lines += ["", *fitted("No other silo was seen yet: that comes with the first round of a study with secure"
                              " aggregation.", width)]
    if new:
        lines += ["", *fitted("Compare the numbers with those silos by telephone. Where they are equal, put into"
                              " silo.toml:", width), "", "[peers]",
                  *(f'{peer.silo} = "{fingerprint(peer.identity)}"' for peer in new)]
    return lines


def forget_peer(home: SiloHome, silo: str) -> str:
    """Drops the key that a silo was first seen with. Returns: a line for a person. Raises: AlreadyRunning; UsageError,
    also before this silo is enrolled: nothing is made in another folder."""
    load_identity(home.folder)
    with home.stopped(f"silo peers --forget {shlex.quote(silo)}{home_option(home.folder)}"):
        if not SecureStore(home.secure).forget(silo):
            raise UsageError(f"No silo '{silo}' was seen here.", remedy="`silo peers` lists those that were.")
    return f"forgotten: the key of {silo} that is seen next counts as its own"
