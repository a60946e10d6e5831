"""What `silo check` finds: whether this silo could take part now, what is in the way, and what a round would take.

Every finding says what was looked at, how it stands, and what to do about it. Nothing is changed, no round is joined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from semisilo.common import __version__
from semisilo.silo.check.finding import Finding
from semisilo.silo.check.forecast import Forecast, forecast
from semisilo.silo.site.home import SiloHome

__all__ = ["CheckReport", "check"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """All findings, in the order in which a person would fix them."""

    home: str
    version: str
    running: bool
    """Whether `silo join` is running here."""
    findings: tuple[Finding, ...]
    forecast: Forecast | None
    """None when there is no study, or it could not be asked for."""

    @property
    def well(self) -> bool:
        """Whether nothing keeps this silo from taking part."""
        return not any(finding.state == "bad" for finding in self.findings)

    def to_json(self) -> dict[str, object]:
        """Plain JSON types."""
        return {"well": self.well, **asdict(self)}


def check(folder: Path, *, now: Callable[[], float], measure: bool = False, use_http_proxy: bool = True) -> CheckReport:
    """Looks at everything; blocks for as long as the network takes, about 30 s at the most.

    Args:
        folder: the silo's home.
        now: this machine's clock, Unix seconds.
        measure: times a few training steps of the study's network as well, in a process of its own.
    """
    from semisilo.silo.check.agent import look_at_tasks
    from semisilo.silo.check.likeness import look_at_features, look_at_likeness
    from semisilo.silo.check.link import look_at_link
    from semisilo.silo.check.needs import needs_of
    from semisilo.silo.check.privacy import look_at_privacy
    from semisilo.silo.check.round_steps import look_at_batch
    from semisilo.silo.check.site import (
        images_on_disk,
        look_at_disk,
        look_at_gpu,
        look_at_home,
        look_at_images,
        look_at_memory,
        look_at_policy,
    )
    from semisilo.silo.check.study import look_at_card, look_at_hours, look_at_study, look_at_sum

    home = SiloHome(folder)
    findings, identity = look_at_home(folder, now())
    policy, found = look_at_policy(home)
    findings.append(found)
    description = None
    if identity is not None:
        link, description = look_at_link(home, identity, now=now, use_http_proxy=use_http_proxy)
        findings += link
    counted = (0, 0)
    needs, found_needs = needs_of(description, silo=identity.silo if identity else "")
    if policy is not None:
        found, counted = look_at_images(home, policy, needs)
        findings.append(found)
    findings += look_at_tasks(home)
    findings += [found_needs] if found_needs is not None else []
    size = needs.task.image.size if needs is not None and needs.begun else 0
    channels = needs.task.image.channels if needs is not None and needs.begun else 0
    dense, frozen = (needs.dense_bytes, needs.frozen_bytes) if needs is not None else (0, 0)
    images = sum(counted) * channels * size * size
    on_disk = images_on_disk(images, permitted=policy is None or policy.limits.images_on_disk)
    findings.append(look_at_disk(home, dense_bytes=dense, frozen_bytes=frozen,
                                 image_bytes=images if on_disk else 0))
    findings.append(look_at_memory(image_bytes=0 if on_disk else images, dense_bytes=dense, frozen_bytes=frozen))
    findings.append(look_at_gpu())
    expected = None
    if policy is not None:
        if needs is not None:
            findings += look_at_study(policy, needs)
            findings += look_at_sum(policy, needs)
            findings += look_at_card(home, policy, needs)
            findings += look_at_likeness(home, policy, needs)
            findings += look_at_features(home, needs)
            findings += look_at_batch(needs, labelled=counted[0], unlabelled=counted[1])
        findings += look_at_privacy(
            home, policy, needs, labelled=counted[0], unlabelled=counted[1],
            authority="" if identity is None else identity.authority)
        if needs is not None:
            measured = None
            if measure:
                from semisilo.silo.check.measure import measure_steps

                found, measured = measure_steps(needs, policy.permit.code(home.model_files), labelled=counted[0],
                                                unlabelled=counted[1])
                findings.append(found)
            expected = forecast(needs, home, images=sum(counted), measured_seconds=measured)
        findings += look_at_hours(home, policy, needs, expected, now())
    return CheckReport(home=str(folder), version=__version__, running=home.is_running(), findings=tuple(findings),
                       forecast=expected)
