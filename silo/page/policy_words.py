"""silo.toml in plain words, for people who do not read it: tables of what is permitted, and the hours of a week.

Tests: tests/silo/page/test_policy_words.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from semisilo.common.methods import METHODS
from semisilo.common.text.describe import counted, describe_bytes
from semisilo.silo.site.policy import Permit, Policy
from semisilo.silo.site.working_hours import DAYS, Hours

__all__ = ["DaySpan", "Rule", "Rules", "rules_of", "week_of"]

_DAY_MINUTES = 24 * 60
_DAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LOSSY_WORDS = {"bf16": "16-bit numbers (bf16)", "int8": "8-bit numbers (int8)", "int4": "4-bit numbers (int4)",
                "top-k": "only the largest changes (top-k)", "random-k": "changes drawn at random (random-k)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One setting."""

    key: str
    """As silo.toml has it: "[limits] bytes_per_day"."""
    name: str
    value: str
    names: tuple[str, ...] = ()
    """What the value adds up, where it is a list."""
    private: bool = False
    """Whether the value names files of this site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """A table of silo.toml."""

    table: str
    title: str
    note: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DaySpan:
    """A stretch of one day of the week in which tasks are taken."""

    day: int
    """0 for Monday."""
    begins: int
    """Minutes after midnight."""
    ends: int
    """Likewise; 1440 for the end of the day."""


def week_of(hours: Hours) -> tuple[DaySpan, ...]:
    """When tasks are taken in a week, in order; what touches or overlaps is one stretch. A day on which the clock is
    changed has other hours."""
    found: list[tuple[int, int, int]] = []
    for day, name in enumerate(DAYS):
        if name not in hours.days:
            continue
        for span in hours.train or ("00:00-24:00",):
            begins, ends = (_minutes(part) for part in span.split("-"))
            if ends > begins:
                found.append((day, begins, ends))
            else:  # into the next day
                found += [(day, begins, _DAY_MINUTES), *([((day + 1) % 7, 0, ends)] if ends else [])]
    joined: list[tuple[int, int, int]] = []
    for day, begins, ends in sorted(found):
        if joined and joined[-1][0] == day and begins <= joined[-1][2]:
            joined[-1] = day, joined[-1][1], max(ends, joined[-1][2])
        else:
            joined.append((day, begins, ends))
    return tuple(DaySpan(day=day, begins=begins, ends=ends) for day, begins, ends in joined)


def rules_of(policy: Policy) -> tuple[Rules, ...]:
    """All tables, the weightiest for a hospital first."""
    return (_permit(policy), _limits(policy), _privacy(policy), _require(policy), _hours(policy), _data(policy),
            _others(policy))


def _permit(policy: Policy) -> Rules:
    permit, default = policy.permit, Permit()
    built_in = [name for name in permit.methods if name in METHODS]
    return Rules(table="permit", title="What may run and leave", note="What is not listed is refused before anything "
                 "is fetched or sent, and the coordinator hears why.", rules=(
        Rule(key="[permit] methods", name="Methods that may run", names=permit.methods,
             value=_of(built_in, tuple(METHODS), "method", "methods", extra=len(permit.methods) - len(built_in),
                       of_others="plug-in")),
        Rule(key="[permit] groups", name="Tensor groups that may arrive and leave", names=permit.groups,
             value=_of(permit.groups, default.groups, "group", "groups")),
        Rule(key="[permit] metrics", name="Numbers that may leave with an answer", names=permit.metrics,
             value=_of(permit.metrics, default.metrics, "number", "numbers")),
        Rule(key="[permit] encodings", name="Lossy forms of updates",
             names=tuple(_LOSSY_WORDS.get(name, name) for name in permit.encodings),
             value=counted(len(permit.encodings), "form") if permit.encodings else "none: only exact updates leave"),
        Rule(key="[permit] factories", name="Network code of your own", names=permit.factories,
             value=counted(len(permit.factories), "factory", "factories") if permit.factories
             else "none: only built-in networks"),
        Rule(key="[permit] model_files", name="Files that may build networks", names=permit.model_files,
             value=f"{counted(len(permit.model_files), 'file')}, by SHA-256" if permit.model_files
             else "none"),
        Rule(key="[permit] site_evaluation", name="Results on this site's test images",
             value="the coordinator is told, as counts by class" if permit.site_evaluation else
             "stay here")))


def _of(listed: Sequence[str], known: Sequence[str], one: str, many: str, *, extra: int = 0,
        of_others: str = "") -> str:
    """ "all 16 that are built in", "3 of 16 that are built in, and 1 plug-in"."""
    count = len([name for name in known if name in listed])
    text = f"all {len(known)} that are built in" if count == len(known) else \
        f"{count} of {len(known)} that are built in" if count else "none that is built in"
    extra = extra or len([name for name in listed if name not in known])
    return f"{text}, and {counted(extra, of_others or one, '' if of_others else many)}" if extra else text


def _limits(policy: Policy) -> Rules:
    limits = policy.limits
    return Rules(table="limits", title="How much", note="A task that does not fit is refused before a byte is fetched.",
                 rules=(
        Rule(key="[limits] bytes_per_day", name="A day, both ways together",
             value=describe_bytes(limits.bytes_per_day) if limits.bytes_per_day else "no limit"),
        Rule(key="[limits] max_download_bytes", name="Largest task", value=describe_bytes(limits.max_download_bytes)),
        Rule(key="[limits] max_upload_bytes", name="Largest update", value=describe_bytes(limits.max_upload_bytes)),
        Rule(key="[limits] images_on_disk", name="Images that are too many for memory",
             value="may be kept on this silo's disk during training" if limits.images_on_disk else "are refused")))


def _privacy(policy: Policy) -> Rules:
    privacy = policy.privacy
    return Rules(table="privacy", title="Privacy budget", note="Differential privacy of single images, over all "
                 "studies together. What is spent never comes back.", rules=(
        Rule(key="[privacy] max_epsilon", name="Largest epsilon",
             value=f"{privacy.max_epsilon:g}; studies without differential privacy are refused" if privacy.max_epsilon
             else "no limit; what is spent is counted"),
        Rule(key="[privacy] delta", name="Delta", value=f"{privacy.delta:g}")))


def _require(policy: Policy) -> Rules:
    require = policy.require
    return Rules(table="require", title="What a study must have", note="", rules=(
        Rule(key="[require] approval", name="A person's approval",
             value="needed before the first task, and again when the study changes" if require.approval
             else "not needed: this silo signs the cards of studies that the rules permit"),
        Rule(key="[require] secure_aggregation", name="Secure aggregation",
             value="needed: updates leave only behind masks" if require.secure_aggregation
             else "not needed: updates may leave in the clear"),
        Rule(key="[require] min_silos", name="Trusted silos in a secure sum", value=f"at least {require.min_silos}"),
        Rule(key="[require] pinned_peers", name="Which silos are trusted",
             value="only those under [peers]" if require.pinned_peers else "those under [peers], others as first seen"),
        Rule(key="[require] no_helpers", name="Weights that other silos receive one by one",
             value="refused" if require.no_helpers else "permitted (helpers of FedMatch)")))


def _hours(policy: Policy) -> Rules:
    hours = policy.hours
    days = "every day" if set(hours.days) == set(DAYS) else \
        ", ".join(name for short, name in zip(DAYS, _DAY_NAMES, strict=True) if short in hours.days)
    return Rules(table="hours", title="When", note="Outside of these hours this silo takes no task.", rules=(
        Rule(key="[hours] train", name="Hours", value=", ".join(hours.train) if hours.train else "at any time"),
        Rule(key="[hours] days", name="Days on which they begin", value=days),
        Rule(key="[hours] zone", name="Time zone", value=hours.zone or "that of this machine"),
        Rule(key="[hours] at_end", name="A task that is under way when they end",
             value="is finished and sent" if hours.at_end == "finish" else "is dropped at once")))


def _data(policy: Policy) -> Rules:
    data = policy.data
    tags = tuple(f"{tag}: {', '.join(value or '(no such tag)' for value in values)}"
                 for tag, values in data.dicom.items())
    patients = {"auto": "by PatientID, or a column of a table", "folder": "by folder", "name": "by the file's name",
                "none": "not told apart"}
    return Rules(table="data", title="Images", note="What silo join is told goes before these.", rules=(
        Rule(key="[data] source", name="Images", value=data.source or "as silo join is told",
             private=bool(data.source)),
        Rule(key="[data] labelled", name="Labelled images in a place of their own", value=data.labelled or "none",
             private=bool(data.labelled)),
        Rule(key="[data] test", name="Test images, never trained on", value=data.test or "none",
             private=bool(data.test)),
        Rule(key="[data] labels", name="Labels of the images",
             value="are read from folders and tables" if data.labels else "there are none"),
        Rule(key="[data] dicom", name="DICOM files that count", names=tags,
             value=f"those that fit {counted(len(tags), 'tag')}" if tags else "all"),
        Rule(key="[data] formats", name="Format plug-ins whose files are read", names=data.formats,
             value=counted(len(data.formats), "plug-in") if data.formats else "none"),
        Rule(key="[data] patient", name="Patients are told apart", value=patients[data.patient]),
        Rule(key="[data] on_error", name="A file that cannot be read",
             value={"stop": "stops the silo", "skip": "is skipped and named in the log",
                    "report": "is listed with all others, then the silo stops"}[data.on_error])))


def _others(policy: Policy) -> Rules:
    return Rules(table="others", title="Other silos, and this site's own monitoring", note="", rules=(
        Rule(key="[peers]", name="Silos whose key is pinned", names=tuple(policy.peers),
             value=counted(len(policy.peers), "silo") if policy.peers else "none"),
        Rule(key="[metrics] listen", name="Numbers for this site's Prometheus", value=policy.metrics.listen or
             "not served")))


def _minutes(text: str) -> int:
    hour, minute = text.split(":")
    return 60 * int(hour) + int(minute)
