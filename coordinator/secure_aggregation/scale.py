"""The scale of a sum in which silos share noise: it follows from the study's settings alone, so its words can be
forecast.

Tests: tests/coordinator/rounds/test_secure_sums.py.
"""

from __future__ import annotations

from semisilo.common.methods.parts.privacy import PrivacySettings, noise_shares
from semisilo.common.secure_aggregation.clipped import bits_of_clip, bits_of_step, bound_of_clip, bound_of_step
from semisilo.common.secure_aggregation.mask_form import MaskForm

__all__ = ["form_with_noise"]


def form_with_noise(privacy: PrivacySettings, *, elements: int, silos: int, threshold: int, images: int = 0,
                    contribution: float = 0.0) -> MaskForm:
    """One scale for all tensors, with room for the noise of all silos. Where whole silos are hidden, with bits as many
    as rounding needs; where images are, as many as the noise of a step needs.

    Args:
        privacy: of a study in which silos share noise.
        elements: of an update.
        silos: that the sum may have.
        threshold: silos that it has at least.
        images, contribution: of a step: images that a silo's expects, and what one moves of its update at most.
    """
    dp = privacy.dp
    assert dp is not None
    shares = noise_shares(dp, threshold)
    if dp.unit == "silo":
        bound = bound_of_clip(dp.clip_norm, noise_multiplier=dp.noise_multiplier, silo_count=silos, shares=shares)
        bits = bits_of_clip(privacy.word_bits, elements, clip_norm=dp.clip_norm, bound=bound, silo_count=silos)
    else:
        bound = bound_of_step(contribution, images=images, noise_multiplier=dp.noise_multiplier, silo_count=silos,
                              shares=shares)
        bits = bits_of_step(privacy.word_bits, contribution=contribution, bound=bound,
                            noise_multiplier=dp.noise_multiplier, silo_count=silos, shares=shares)
    return MaskForm(bits=bits, bounds=(bound,), silo_count=silos)
