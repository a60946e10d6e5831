"""What `silo status` shows: identity and the agent's own notes, as facts and as lines."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.describe import counted, describe_bytes, describe_seconds
from common.errors import SemisiloError
from common.identity import utc_text
from common.logs import printable
from silo.budget import read_day
from silo.disclosures import last_line
from silo.home import SiloHome, StatusFile, home_option
from silo.hours import Hours, closes_at, next_day_at, opens_at, time_text
from silo.identity_store import load_identity
from silo.policy import load_policy

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
            "days_left": round((identity.not_after_unix - now) / 86400, 2), "running": running, **noted,
            **_of_policy(home, now), "last_disclosure": _last_disclosure(home)}


def _of_policy(home: SiloHome, now: float) -> dict[str, Any]:
    """Working hours and the budget of the day; with what is wrong with silo.toml in their place, if anything is."""
    try:
        policy = load_policy(home.policy)
    except SemisiloError as error:
        return {"policy_error": error.line(), "hours": None, "budget": None}
    hours = policy.hours
    end, count = closes_at(hours, now), read_day(home.day, hours, now)
    opens = opens_at(hours, now)
    return {"policy_error": "",
            "hours": {"restricted": hours.restricted, "open": end is not None,
                      "closes_unix": end if end is not None and math.isfinite(end) else None,
                      "opens_unix": None if end is not None else opens,
                      "text": _hours_text(hours, end, opens)},
            "budget": {"limit_bytes": policy.limits.bytes_per_day, "used_bytes": count.bytes,
                       "sent_bytes": count.sent_bytes, "received_bytes": count.received_bytes,
                       "estimated": count.estimated, "ends_unix": next_day_at(hours, now),
                       "ends_text": time_text(hours, next_day_at(hours, now))}}


def _hours_text(hours: Hours, end: float | None, opens: float) -> str:
    if end is None:
        return f"outside working hours until {time_text(hours, opens)}: no task is taken"
    return f"within working hours until {time_text(hours, end)}" if math.isfinite(end) else "at any time"


def _last_disclosure(home: SiloHome) -> dict[str, Any] | None:
    line = last_line(home.disclosures)
    return None if line is None else {"time": line.time, "unix": line.unix, "kind": line.kind, "study": line.study,
                                      "round": line.round, "bytes": line.bytes, "digest": line.digest}


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
    start = f"silo join{home_option(Path(found['home']))}"
    rows = [
        ("silo", found["silo"]),
        ("federation", f"{found['federation']} at {found['address']}"),
        ("home", found["home"]),
        ("certificate", certificate),
        ("agent", f"running: {found['state']}" if found["running"] else f"not running ({start})"),
        ("last contact", _ago(found["last_contact_unix"], now)),
        ("last task", f"{found['last_task']}: {found['last_outcome']}" if found["last_task"] else "none yet"),
        ("answered", counted(found['tasks_answered'], 'task')),
        ("images", f"{found['labelled_count'] + found['unlabelled_count']} ({found['labelled_count']} with a label, "
                   f"{found['unlabelled_count']} without)"),
        ("on the wire", f"{about}{describe_bytes(found['sent_bytes'])} sent, "
                        f"{about}{describe_bytes(found['received_bytes'])} received"),
    ]
    if found["hours"] is not None:
        rows.append(("hours", found["hours"]["text"]))
        rows.append(("today", _budget_text(found["budget"])))
    if found["last_disclosure"] is not None:
        last = found["last_disclosure"]
        of = f" of {printable(last['study'], limit=128)}, round {last['round']}" if last["study"] else ""
        when = printable(last["time"], limit=40) if last["unix"] is None else _ago(last["unix"], now)
        what = f"{printable(last['kind'], limit=40)}{of}, {describe_bytes(last['bytes'])}"
        rows.append(("last to leave", f"{what}, {when} (silo disclosures)"))
    if found["policy_error"]:
        rows.append(("silo.toml", found["policy_error"]))
    if found["refusals"]:
        rows.append(("refused", f"the last {counted(found['refusals'], 'task')}: {found['refusal_code']}: "
                                f"{found['last_refusal']} (silo check)"))
    if found["last_error"]:
        rows.append(("trouble", found["last_error"]))
    return [f"{name:<14}{value}" for name, value in rows]


def _budget_text(budget: dict[str, Any]) -> str:
    used = f"{'about ' if budget['estimated'] else ''}{describe_bytes(budget['used_bytes'])}"
    if not budget["limit_bytes"]:
        return f"{used} carried, no limit"
    over = ", used up: no task is taken" if budget["used_bytes"] >= budget["limit_bytes"] else ""
    return f"{used} of {describe_bytes(budget['limit_bytes'])} carried until {budget['ends_text']}{over}"


def _ago(then: float, now: float) -> str:
    return "never" if not then else f"{describe_seconds(max(0.0, now - then))} ago"
