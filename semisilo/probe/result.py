"""What a probe has found, as numbers and in words.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from semisilo.common.config import to_dict
from semisilo.common.text.describe import counted
from semisilo.probe.membership import Measured

__all__ = ["FEWEST_TRIALS", "RECOVERED", "HitsFound", "InversionFound", "MembershipFound", "ProbeResult", "View"]

RECOVERED = 0.95
"""Correlation of the pixels from which on a reconstruction counts as showing an image."""
_PLAIN = 0.6
"""Area from which on more than a little shows."""
FEWEST_TRIALS = 2
"""That an interval needs."""

View = Literal["own", "average"]
"""What is attacked: the site's update by itself, or the average of the round's silos."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HitsFound:
    """One point of the ROC curve."""

    false_positive_rate: float
    true_positive_rate: Measured
    allowed: float | None
    """The most that differential privacy allows; None without."""

    @property
    def violates(self) -> bool:
        """Whether more is found than differential privacy allows, beyond what chance explains."""
        return self.allowed is not None and self.true_positive_rate.low > self.allowed


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipFound:
    """Membership inference against one view of the update."""

    view: View
    silos: int
    """In the average; 1 for the update by itself."""
    protection: str
    """In words; empty without differential privacy."""
    area: Measured
    """Under the ROC curve; 0.5 is chance."""
    hits: tuple[HitsFound, ...]
    updates: int
    """That were trained and attacked."""
    abstained: int
    """Of these, the site sent nothing in so many."""
    images: int
    """Of the site; each update is trained on half of them."""
    epsilon: float | None
    """That one update spends, by the site's own ledger; None without differential privacy."""
    delta: float | None
    allowed_area: float | None
    """The most that differential privacy allows; None without."""

    @property
    def violates(self) -> bool:
        """Whether more is found than differential privacy allows, beyond what chance explains."""
        return ((self.allowed_area is not None and self.area.low > self.allowed_area)
                or any(each.violates for each in self.hits))

    @property
    def words(self) -> str:
        """What it means, in a sentence."""
        if self.violates:
            return ("more is found than differential privacy allows. That is a mistake in this program: please report"
                    " it, and do not rely on the epsilon that it tells.")
        if self.abstained == self.updates:
            return ("the site abstains, whichever half of its images it has: nothing leaves that could be attacked. In"
                    " a later --round it may send something.")
        right = f"right {100 * self.area.value:.0f} times of 100, where guessing is 50 times"
        if self.area.low > 0.5:
            return (f"{right}: it shows which images were trained on." if self.area.value >= _PLAIN
                    else f"{right}: a little shows of which images were trained on.")
        if self.area.high < 0.5:
            return f"{right}: worse than guessing, so this attack does not fit, and says nothing."
        return f"{right}: with {counted(self.updates, 'update')} no different from guessing. This attack finds nothing."


@dataclass(frozen=True, kw_only=True, slots=True)
class InversionFound:
    """Gradient inversion against one view of the update. Means over the trials, with intervals over them."""

    view: View
    silos: int
    protection: str
    trained_on: int
    """Images that an update is trained on."""
    searched: int
    """Images that are searched for at a time."""
    trials: int
    """Updates that were inverted; those in which the site abstains are not among them."""
    abstained: int
    cosine: float
    """Of the gradient of what was found with the update, mean."""
    seen_psnr: Measured | None
    """How near the nearest reconstruction comes to an image that was trained on, in dB; None without trials."""
    unseen_psnr: Measured | None
    """The same of as many images of the same classes that were not: what a picture of a class is worth by itself."""
    gain_psnr: Measured | None
    """The difference of the two."""
    seen_correlation: Measured | None
    unseen_correlation: Measured | None
    gain_correlation: Measured | None
    seen_recovered: Measured | None
    """Share of the images that a reconstruction shows with a correlation of at least `RECOVERED`; Wilson's interval."""
    unseen_recovered: Measured | None

    @property
    def words(self) -> str:
        """What it means, in a sentence."""
        if self.seen_psnr is None or self.seen_recovered is None or self.unseen_recovered is None \
                or self.gain_psnr is None or self.gain_correlation is None:
            return ("the site abstains: nothing leaves that could be inverted." if self.abstained
                    else "too few trials to say anything.")
        share = f"{100 * self.seen_recovered.value:.0f} %"
        if self.gain_psnr.low > 0 or self.gain_correlation.low > 0:
            return (f"reconstructions are nearer to the images that were trained on than to others"
                    f" ({self.gain_psnr.value:+.1f} dB): something of them shows. {share} of the images are shown as"
                    f" they are, and {100 * self.unseen_recovered.value:.0f} % of others by accident.")
        return ("reconstructions are no nearer to the images that were trained on than to others"
                f" ({self.gain_psnr.value:+.1f} dB): this attack recovers none of them.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """All of it."""

    study: str
    method: str
    model: str
    site: str
    round: int
    images: int
    """Of the site that were used."""
    seed: int
    seconds: float
    """That this call took; what an earlier one had done is not counted."""
    membership: tuple[MembershipFound, ...]
    inversion: tuple[InversionFound, ...]
    pictures: str
    """Folder; empty where none were written."""
    notes: tuple[str, ...]
    version: str

    @property
    def violates(self) -> bool:
        """Whether any attack finds more than differential privacy allows."""
        return any(each.violates for each in self.membership)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        found: dict[str, Any] = to_dict(self)
        for name in ("membership", "inversion"):
            for entry, each in zip(found[name], getattr(self, name), strict=True):
                entry["words"] = each.words
        for entry, member in zip(found["membership"], self.membership, strict=True):
            entry["violates"] = member.violates
        return found

    def to_json(self) -> str:
        """JSON with a line break at its end."""
        return json.dumps(self.to_dict(), indent=2) + "\n"
