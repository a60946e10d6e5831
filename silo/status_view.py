"""What `silo status` shows: identity and the agent's own notes, as facts and as lines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.describe import describe_bytes, describe_seconds
from common.identity import utc_text
from silo.home import SiloHome, StatusFile
from silo.identity_store import load_identity

__all__ = ["facts", "lines"]


def facts(folder: Path, *, now: float) -> dict[str, Any]:
    """Plain JSON types: who this silo is, its certificate, and what the agent last wrote.

    Args:
        folder: the silo's home.
        now: Unix seconds.
    Raises: UsageError when it is not enrolled.
    """
    identity = load_identity(folder)
    home = SiloHome(folder)
    running = home.is_running()
    noted = asdict(StatusFile.load(home.status))
    noted.pop("pid")
    if not running and noted["state"] != "not started":
        noted["state"] = "stopped"
    return {"silo": identity.silo, "federation": identity.federation, "address": identity.address, "home": str(folder),
            "certificate_until": utc_text(identity.not_after_unix),
            "renews_from": utc_text(identity.about.renew_unix),
            "days_left": round((identity.not_after_unix - now) / 86400, 2), "running": running, **noted}


def lines(found: dict[str, Any], *, now: float) -> list[str]:
    """The facts for a person, one a line."""
    days = found["days_left"]
    if days <= 0:
        certificate = (f"expired on {found['certificate_until']}. Ask the coordinator's operator to run: coordinator "
                       f"invite {found['silo']}")
    else:
        left = f"{days:.0f} days" if days >= 2 else f"{days * 24:.1f} hours"
        certificate = f"until {found['certificate_until']} ({left} left), renews from {found['renews_from']}"
    about = "about " if found["bytes_estimated"] else ""
    rows = [
        ("silo", found["silo"]),
        ("federation", f"{found['federation']} at {found['address']}"),
        ("home", found["home"]),
        ("certificate", certificate),
        ("agent", f"running: {found['state']}" if found["running"] else "not running (silo join)"),
        ("last contact", _ago(found["last_contact_unix"], now)),
        ("last task", f"{found['last_task']}: {found['last_outcome']}" if found["last_task"] else "none yet"),
        ("answered", f"{found['tasks_answered']} tasks"),
        ("images", f"{found['labelled_count'] + found['unlabelled_count']} ({found['labelled_count']} with a label, "
                   f"{found['unlabelled_count']} without)"),
        ("on the wire", f"{about}{describe_bytes(found['sent_bytes'])} sent, "
                        f"{about}{describe_bytes(found['received_bytes'])} received"),
    ]
    if found["last_error"]:
        rows.append(("trouble", found["last_error"]))
    return [f"{name:<14}{value}" for name, value in rows]


def _ago(then: float, now: float) -> str:
    return "never" if not then else f"{describe_seconds(max(0.0, now - then))} ago"
