"""`silo leave`: ends this silo's membership at the coordinator, then removes what belongs to it here.

What stays is what the site has written or must be able to show: silo.toml and the record of disclosures. The identity
goes last, so that a command that was cut off can be given again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from semisilo.common.errors import (
    CertificateExpired,
    CertificateRevoked,
    ConnectionRefusedByPeer,
    SemisiloError,
    SiloLeft,
    UnknownSilo,
    Unreachable,
    UsageError,
)
from semisilo.common.identity.certificates import utc_text
from semisilo.silo.site.home import SiloHome, home_option
from semisilo.silo.site.identity_store import Identity, has_identity, load_identity

__all__ = ["Left", "leave"]

_CALL_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """What `silo leave` has done."""

    silo: str
    """Empty when there was no identity that could be read."""
    federation: str
    told: bool
    """Whether the coordinator knows; False with --offline."""
    left_unix: float | None
    """When the coordinator noted it; None when it was not told, or has known for other reasons."""
    note: str
    """What a person should know besides; empty when there is nothing."""
    removed: tuple[str, ...]
    """Names in the home folder."""
    kept: tuple[str, ...]


def leave(folder: Path, *, offline: bool, confirm: Callable[[str], bool], use_http_proxy: bool = True,
          now: Callable[[], float] = time.time) -> Left | None:
    """Leaves the federation and cleans up.

    Args:
        folder: the silo's home.
        offline: does not ask the coordinator.
        confirm: asked with the question; False ends the command with nothing changed.
    Returns: what was done; None when `confirm` said no.
    Raises: UsageError when there is nothing to leave; AlreadyRunning while `silo join` runs; Unreachable and the like,
        with nothing changed here.
    """
    home = SiloHome(folder)
    if not folder.is_dir() or not (has_identity(folder) or any(path.exists() for path in _caches(home))):
        raise UsageError(f"{folder} holds no silo.", remedy="Say which one leaves: silo leave --home DIR")
    with home.stopped(f"silo leave{home_option(folder)}"):
        identity = _identity(folder, offline=offline)
        who = f"silo '{identity.silo}' of federation '{identity.federation}'" if identity else "the silo"
        if not confirm(f"Remove {who} from {folder}: key, certificate, caches and memory?"):
            return None
        left_unix, note = None, ""
        if not offline:
            assert identity is not None, "without --offline an identity that cannot be read is an error"
            left_unix, note = _tell(identity, home, use_http_proxy=use_http_proxy, now=now())
        elif identity is not None:
            note = (f"The coordinator was not told: until {utc_text(identity.not_after_unix)} it takes this silo for a "
                    f"member. Ask its operator to run: coordinator revoke {identity.silo}")
        removed = _clean_up(home)
    kept = tuple(path.name for path in (home.policy, home.disclosures, home.asked, home.cards, home.heads,
                                        home.evaluations, home.privacy, home.secure) if path.exists())
    return Left(silo=identity.silo if identity else "", federation=identity.federation if identity else "",
                told=not offline, left_unix=left_unix, note=note, removed=removed, kept=kept)


def _identity(folder: Path, *, offline: bool) -> Identity | None:
    try:
        return load_identity(folder)
    except SemisiloError as error:
        if offline:
            return None  # what is broken or half removed goes with the rest
        raise type(error)(error.text, remedy=f"{error.remedy} To clean up here only: silo leave --offline") from None


def _tell(identity: Identity, home: SiloHome, *, use_http_proxy: bool, now: float) -> tuple[float | None, str]:
    """Tells the coordinator; (when it noted that, a note for the person).

    Raises: what is in the way, with the alternative.
    """
    import asyncio

    from semisilo.silo.membership.enrollment import leave_federation

    try:
        return asyncio.run(leave_federation(identity, home, use_http_proxy=use_http_proxy,
                                            timeout_seconds=_CALL_SECONDS)), ""
    except SiloLeft as error:
        return None, error.text
    except (CertificateRevoked, UnknownSilo) as error:
        return None, f"It was no member any more: {error.text}"
    except (Unreachable, ConnectionRefusedByPeer):
        from semisilo.silo.link.diagnosis import diagnose

        found = diagnose(identity.folder.parent.parent, identity.address, now, use_http_proxy=use_http_proxy)
        raise type(found)(found.text, remedy=f"{found.remedy} {_alternative(identity)}".strip()) from None
    except CertificateExpired as error:
        raise CertificateExpired(error.text, remedy=_alternative(identity)) from None
    except OSError as error:
        raise SemisiloError(f"{home.disclosures}: what leaves cannot be recorded: {error.strerror or error}.",
                            remedy="Nothing was sent. Free some space, or the right to write.") from None


def _alternative(identity: Identity) -> str:
    return ("To clean up here only, which the coordinator does not notice: silo leave --offline, and ask its operator "
            f"to run: coordinator revoke {identity.silo}")


def _caches(home: SiloHome) -> tuple[Path, ...]:
    return (home.memory, home.outgoing, home.cache, home.status, home.choice, home.rounds, home.day, home.days,
            home.day_of_models, home.days_of_models, home.models, home.study_images, home.study_features,
            home.stop_evaluation, home.page_token, home.torchrun_token)


def _clean_up(home: SiloHome) -> tuple[str, ...]:
    """Removes all but silo.toml, the disclosures and what was spent of the privacy budget; returns the names that were
    there.

    Raises: OSError, naming what cannot be removed; the command may be given again.
    """
    identity, identities = home.folder / "identity", home.folder / "identities"
    removed = []
    for path in (*_caches(home), *sorted(home.folder.glob("*.tmp")), *sorted(home.folder.glob(".*.tmp")),
                 home.folder / ".identity.copied", identity, identities):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():
            path.unlink()
        else:
            continue
        removed.append(path.name)
    return tuple(removed)
