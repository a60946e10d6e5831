"""Table [privacy] of a study: what nobody, the coordinator included, may learn of one silo.

What secure aggregation hides and what it does not is in docs/secure-aggregation.md.

Tests: tests/common/methods/parts/test_privacy.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from semisilo.common.methods.uplink import Uplink

__all__ = ["MAX_SILOS", "MIN_SILOS", "PrivacySettings", "threshold_of", "why_not_summed"]

MAX_SILOS = 32
"""Of one sum: every silo shares its secrets with every other."""
MIN_SILOS = 3
"""With two, each would learn the other's update from the sum."""
_MIN_BITS, _MAX_BITS = 16, 32
_SUMMED_WEIGHTINGS = ("uniform", "size")
"""Of methods that can weigh otherwise as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacySettings:
    """What is done so that a silo's update, or a patient's image, does not show."""

    secure_aggregation: bool = False
    """Whether silos hide their updates behind masks that vanish in the sum, so that the coordinator learns the sum of a
    round and no update by itself (Bonawitz et al., CCS 2017). For methods that average; see docs/methods.md."""
    threshold: int = 0
    """How many silos of a round are needed to take the masks off; so many, working together with the coordinator, could
    see the update of another. 0: more than two thirds of those asked."""
    min_silos: int = MIN_SILOS
    """A sum of fewer silos is never made; at least 3."""
    word_bits: int = 18
    """Bits of a masked number, 16 to 32: a dense update has so many 32nds of its plain bytes. 16 is coarse with more
    than a few silos."""

    def __post_init__(self) -> None:
        if not MIN_SILOS <= self.min_silos <= MAX_SILOS:
            raise ValueError(f"min_silos = {self.min_silos}: must be between {MIN_SILOS} and {MAX_SILOS}.")
        if not (self.threshold == 0 or MIN_SILOS <= self.threshold <= MAX_SILOS):
            raise ValueError(f"threshold = {self.threshold}: must be between {MIN_SILOS} and {MAX_SILOS}, or 0.")
        if not _MIN_BITS <= self.word_bits <= _MAX_BITS:
            raise ValueError(f"word_bits = {self.word_bits}: must be between {_MIN_BITS} and {_MAX_BITS}.")
        if not self.secure_aggregation:
            for name, default in (("threshold", 0), ("min_silos", MIN_SILOS), ("word_bits", 18)):
                if getattr(self, name) != default:
                    raise ValueError(f"{name} has no effect without secure_aggregation = true.")


def threshold_of(settings: PrivacySettings, num_asked: int) -> int:
    """How many silos unmask a sum that `num_asked` are asked for: as set, else floor(2/3 n) + 1; at least `min_silos`.
    """
    return max(settings.threshold or 2 * num_asked // 3 + 1, settings.min_silos)


def why_not_summed(*, method: str, summed: bool, weighting: str, robust_rule: str, uplink: Uplink, local_accuracy: bool,
                   most_silos: int | None) -> str:
    """Why a study cannot be summed behind masks, with what to do; empty when it can.

    Args:
        summed: whether the method's updates are added up with weights that everybody knows (`MethodSpec.summed`).
        weighting: of the method's settings; "uniform" where it has none.
        most_silos: that a round may ask; None where it is a share of those that have joined.
    """
    if not summed:
        return (f"secure_aggregation is not possible with the method {method}: it computes with each silo's update by"
                " itself. Choose a method that averages, such as self_training, semifl or fedavg.")
    if weighting not in _SUMMED_WEIGHTINGS:
        return (f'secure_aggregation is not possible with [method] weighting = "{weighting}": the weights change with'
                ' who answers. Choose "uniform" or "size".')
    if robust_rule != "none":
        return (f'secure_aggregation is not possible with [robust] rule = "{robust_rule}", which looks at each update'
                " by itself. Leave one of the two out.")
    if uplink.lossy:
        return ("secure_aggregation is not possible with a lossy [wire] uplink: masked numbers have a form of their own"
                " (word_bits). Leave uplink out.")
    if local_accuracy:
        return "secure_aggregation is not possible with [study] local_accuracy, which needs each silo's own model."
    if most_silos is not None and most_silos > MAX_SILOS:
        return (f"secure_aggregation is possible with up to {MAX_SILOS} silos in a round, and [participation]"
                f" silos_per_round = {most_silos}.")
    return ""
