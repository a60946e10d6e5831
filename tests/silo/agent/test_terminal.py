"""What a silo says while it works."""

from __future__ import annotations

import errno
import io
import logging

import pytest

from semisilo.common.identity.certificates import utc_text
from semisilo.silo.agent.terminal import LogDisplay, PlainDisplay


def test_a_log_file_on_a_full_disk_ends_nobodys_work() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    stream = Full()
    display = PlainDisplay(stream)
    display.event("round 1/3: training")
    stream.full = False
    display.event("round 2/3: training")
    assert stream.getvalue().endswith("round 2/3: training\n")


def test_a_clock_that_is_wrong_is_said_once_though_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """A coordinator whose clock is wrong all weekend: silos try again every half minute."""
    stream = io.StringIO()
    with caplog.at_level(logging.INFO, logger="semisilo.silo"):
        for display in (PlainDisplay(stream), LogDisplay()):
            for attempt in range(3):
                display.state(f"The certificate of silo 'a' begins on {utc_text(5e8)}, but the coordinator's clock says"
                              f" {utc_text(4e8 + 30 * attempt)}. Ask the coordinator's operator to set its clock.")
            display.state("outside of [hours] until 2026-11-30 20:00 UTC")
            display.state("outside of [hours] until 2026-12-01 20:00 UTC")
    assert len(stream.getvalue().splitlines()) == len(caplog.messages) == 3
