"""FedMatch's down-link: what a silo holds after its task, and groups that are made once for all."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from semisilo.common.learning import tensors
from semisilo.common.methods.contract import Meaning
from semisilo.coordinator.strategies.fedmatch.shadow_downlink import SparseDownlink
from semisilo.coordinator.strategies.parts.served import ServedState


@dataclass(frozen=True)
class _State(ServedState):
    sigma: dict[str, Tensor]
    psi: dict[str, Tensor]
    batch_norm: dict[str, Tensor] = field(default_factory=dict)


def _parts(sigma: list[float], psi: list[float]) -> _State:
    return _State({"w": torch.tensor(sigma)}, {"w": torch.tensor(psi)})


NOW = _parts([4e-6, 0.5, 0.25], [4e-6, 2e-5, -0.2])
SHADOW = _parts([0.0, 0.5, 0.125], [0.3, 0.0, -0.2])


def test_a_silo_without_a_shadow_is_sent_all_values_and_psi_thresholded() -> None:
    downlink = SparseDownlink(l1_thres=5e-6, delta_thres=5e-5)
    found = downlink.received(NOW, None)
    assert torch.equal(found.sigma["w"], NOW.sigma["w"])
    assert found.psi["w"].tolist() == [0.0, *NOW.psi["w"].tolist()[1:]]
    assert found.values_sent == 6
    groups = downlink.groups(NOW, None)
    assert {name: group.meaning for name, group in groups.items()} == {"sigma": Meaning.VALUES, "psi": Meaning.VALUES}


def test_a_known_silo_is_sent_what_differs_from_its_shadow_by_more_than_the_threshold() -> None:
    """As oracles M7 and M7b: of sigma only 0.25 over 0.125 (4e-6 differs by less than 5e-5), of psi only the explicit
    zero over 0.3 (2e-5 differs by less)."""
    downlink = SparseDownlink(l1_thres=5e-6, delta_thres=5e-5)
    found = downlink.received(NOW, SHADOW)
    assert found.sigma["w"].tolist() == [0.0, 0.5, 0.25]
    assert torch.equal(found.psi["w"], torch.tensor([0.0, 0.0, -0.2]))
    assert found.values_sent == 2
    for name, group in downlink.groups(NOW, SHADOW).items():
        before = getattr(SHADOW, name)
        assert group.meaning is Meaning.OVERWRITE
        assert group.base == tensors.digest(before)
        assert group.base_tensors is before
        assert torch.equal(group.tensors["w"], getattr(found, name)["w"])


def test_groups_are_made_once_for_a_state_and_anew_for_the_next() -> None:
    downlink, other = SparseDownlink(l1_thres=0.0, delta_thres=0.0), _parts([0.5], [0.25])
    for name in ("sigma", "psi"):
        assert downlink.groups(NOW, None)[name] is downlink.groups(NOW, None)[name]
        assert downlink.groups(other, None)[name] is not downlink.groups(NOW, None)[name]


def test_batch_norm_statistics_go_along_where_there_are_any() -> None:
    downlink = SparseDownlink(l1_thres=0.0, delta_thres=0.0)
    assert "batch_norm" not in downlink.groups(NOW, None)
    with_statistics = _State(NOW.sigma, NOW.psi, {"1.mean": torch.zeros(2), "1.var": torch.ones(2)})
    assert downlink.groups(with_statistics, SHADOW)["batch_norm"].tensors is with_statistics.batch_norm
