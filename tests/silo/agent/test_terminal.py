"""What a silo says while it works."""

from __future__ import annotations

import errno
import io

from semisilo.silo.agent.terminal import PlainDisplay


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
