"""What must be equal for equal bits is set explicitly and recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from semisilo.common.learning import numerics
from semisilo.common.methods.contract import Numerics


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize(("threads", "deterministic"), [(1, True), (2, False)])
def test_apply_puts_the_numerics_in_force_and_says_so(threads: int, deterministic: bool) -> None:
    found = numerics.apply(Numerics(threads=threads, deterministic=deterministic))
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == (threads, deterministic)
    assert (found.threads, found.deterministic) == (threads, deterministic)
    assert found == numerics.record()


def test_the_record_names_device_version_and_instruction_set() -> None:
    found = numerics.record()
    assert found.device == "cpu"
    assert found.torch == str(torch.__version__)
    assert found.cpu_capability


def test_tensorfloat_32_is_off_whatever_the_default_is() -> None:
    torch.backends.cudnn.allow_tf32 = True
    numerics.apply(Numerics())
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
