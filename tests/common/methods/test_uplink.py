"""The setting `[wire] uplink` of a study: what it may say, and what that means."""

from __future__ import annotations

import pytest

from semisilo.common.methods.uplink import LOSSY_FORMS, Uplink, parse_uplink
from tests.each_of import each_of


@each_of(("text", "expected", "lossy"), [
    ("raw", Uplink(), ()),
    ("auto", Uplink(aim="auto"), ()),
    ("smallest", Uplink(aim="smallest"), ()),
    ("bf16", Uplink(aim="smallest", values="bf16"), ("bf16",)),
    ("int8", Uplink(aim="smallest", values="int8"), ("int8",)),
    (" int4 ", Uplink(aim="smallest", values="int4"), ("int4",)),
    ("top-k 1%", Uplink(aim="smallest", top_k=0.01), ("top-k",)),
    ("top-k 100%", Uplink(aim="smallest"), ()),
    ("top-k 0.5 %", Uplink(aim="smallest", top_k=0.005), ("top-k",)),
    ("top-k 1% int8", Uplink(aim="smallest", values="int8", top_k=0.01), ("int8", "top-k")),
])
def test_a_setting_says_what_is_sent_and_what_a_policy_must_permit(text: str, expected: Uplink,
                                                                  lossy: tuple[str, ...]) -> None:
    assert parse_uplink(text) == expected
    assert expected.lossy == lossy
    assert set(lossy) <= set(LOSSY_FORMS)


@each_of("text", [
    "", "Raw", "exact", "int16", "top-k", "top-k int8", "top-k 1", "top-k 0%", "top-k 101%", "top-k -1%", "top-k 1e9%",
    "top-k nan%", "top-k 1% raw", "top-k 1% top-k 1%", "int8 top-k 1%", "top-k 1%%", f"top-k {'9' * 400}%",
    f"top-k 0.{'0' * 400}1%", f"top-k 0.{'0' * 322}1%"])
def test_what_is_not_understood_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r'"|top_k'):
        parse_uplink(text)


def test_rounding_and_error_feedback_come_along() -> None:
    for text in ("int8", "top-k 1%", "raw"):
        found = parse_uplink(text, rounding="nearest", error_feedback=False)
        assert (found.rounding, found.error_feedback) == ("nearest", False)


@each_of("share", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="top_k"):
        Uplink(top_k=share)
