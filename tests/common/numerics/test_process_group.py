"""Training that several processes share: the same as in one, but for the last bits of sums."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from semisilo.common.learning.batch_norm import StaticBatchNorm
from semisilo.common.methods import METHODS
from semisilo.common.numerics import process_group
from semisilo.common.numerics.process_group import ProcessGroup, share_of
from tests.both_sides import write_images
from tests.each_of import each_of
from tests.method_studies import STUDIES
from tests.two_processes import SILOS

TOLERANCE = 1e-5
"""Of an element of an update, over the largest element of its group: float32 has 6e-8, and a round of these studies has
up to 40 steps."""
ROOT = Path(__file__).parents[3]


@each_of(("count", "size", "rows"), [
    (8, 2, [4, 4]), (9, 2, [5, 4]), (10, 4, [3, 3, 2, 2]), (1, 3, [1, 0, 0]), (0, 2, [0, 0])])
def test_a_batch_is_shared_in_order_and_as_equally_as_can_be(count: int, size: int, rows: list[int]) -> None:
    shares = share_of(count, ProcessGroup(rank=0, size=size))
    assert [each.stop - each.start for each in shares] == rows
    assert [index for each in shares for index in range(count)[each]] == list(range(count))


def test_a_network_that_may_be_shared_is_the_same_network_while_nobody_shares_it() -> None:
    torch.default_generator.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), StaticBatchNorm(4), nn.Flatten(), nn.Linear(16, 3))
    images_BCHW = torch.randn(5, 1, 4, 4)
    names, before = [name for name, _ in network.named_parameters()], network(images_BCHW)
    same = process_group.shared(network)
    assert same is network
    assert [name for name, _ in same.named_parameters()] == names
    assert torch.equal(same(images_BCHW), before)
    assert process_group.present() is None
    assert process_group.batch_under_way() is None


@pytest.mark.slow
def test_every_method_trains_in_two_processes_as_in_one(tmp_path: Path) -> None:
    """All studies of tests/method_studies.py on a network with batch-norm, and some on one without as well; in most the
    last batch is of one image.

    Batch-norm, MixUp, pseudo-labels, momentum, corrections and decomposed weights are in them.
    """
    write_images(tmp_path, SILOS)
    processes = [subprocess.Popen([sys.executable, "-m", "tests.two_processes", str(rank), str(tmp_path)], cwd=ROOT,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in (1, 0)]
    ends = [process.communicate(timeout=540) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(err[-3000:] for _, err in ends)
    found = json.loads(ends[1][0])
    assert {each["study"].partition("-")[0] for each in found} == set(METHODS)
    assert {each["study"] for each in found if each["repeated"] is not None} == {str(study) for study in STUDIES}
    for each in found:
        assert each["difference"] < TOLERANCE, each
        assert each["metrics"] < TOLERANCE, each
        assert each["repeated"] is not False, f"two runs in two processes differ: {each}"
    assert not all(each["equal"] for each in found), "the control: nothing was shared"
