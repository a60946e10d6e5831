"""How fast the line to a silo was: the smaller of what was handed over and what was acknowledged."""

from __future__ import annotations

from semisilo.coordinator.rpc.link_rates import SMALLEST_MEASURED_BYTES, LinkRates

MIB = 2**20


def test_a_rate_is_unknown_until_something_sizeable_went_down() -> None:
    rates = LinkRates()
    assert rates.rate("a") == 0.0
    rates.measured("a", sent_bytes=SMALLEST_MEASURED_BYTES - 1, seconds=1.0)
    assert rates.rate("a") == 0.0
    rates.measured("a", sent_bytes=10 * MIB, seconds=2.0)
    assert rates.rate("a") == 5 * MIB
    rates.measured("a", sent_bytes=1, seconds=100.0)
    assert rates.rate("a") == 5 * MIB


def test_what_lies_in_a_buffer_does_not_make_a_line_quick() -> None:
    """1 MiB is handed to the socket in a millisecond; the other end acknowledges 100 kB/s."""
    rates = LinkRates()
    rates.measured("a", sent_bytes=MIB, seconds=0.001, delivered_per_second=100e3)
    assert rates.rate("a") == 100e3
    rates.measured("a", sent_bytes=MIB, seconds=1.0, delivered_per_second=1e9)
    assert rates.rate("a") == MIB
    rates.measured("a", sent_bytes=MIB, seconds=0.0)
    assert rates.rate("a") > 0
