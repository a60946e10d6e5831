"""What a study's table [simulation.split] says: which rule deals the images of a set to silos, and its numbers.

Every rule deals the unlabelled images; who holds labels is chosen before. So each works in every scenario, except
`class_mismatch`, whose unlabelled images depend on the labels that a silo holds. With labels-at-both the coordinator's
labelled images are those of labels-at-coordinator, and those of silos are drawn from the others.
`semisilo.simulation.splits.named_splits` deals. This module imports no numpy, so that the light processes may read
study files.

| name               | unlabelled images of a silo                                     | source                 |
|--------------------|-----------------------------------------------------------------|------------------------|
| iid                | random equal parts                                              | SemiFL                 |
| shards             | at most `classes_per_silo` classes                              | SemiFL                 |
| dirichlet_semifl   | class by class in proportions Dir(`dirichlet`)                  | SemiFL                 |
| batch_iid          | equal parts of every class                                      | FedMatch               |
| batch_noniid       | ten kinds of silos, each with half its images of one class      | FedMatch               |
| streaming_noniid   | the same ten kinds; images arrive in `steps`                    | FedMatch, first version|
| dirichlet_fedmix   | class shares Dir(`dirichlet`) until the classes run out         | FedMix                 |
| fedmix_iid         | as batch_iid                                                    | FedMix                 |
| shvr_iid           | as iid                                                          | Fed-SHVR, MNIST        |
| shvr_noniid        | Dirichlet; labels of two classes only                           | Fed-SHVR, MNIST        |
| prevalence_shift   | an equal number, with class shares of its own                   | ours                   |
| class_mismatch     | a share `mismatch_ratio` of classes that it has no labels of    | Fed-SHVR, CIFAR-10     |
| natural            | those of its own site: [simulation] sites                       | FLamby, LEAF           |

Tests: tests/semisilo/simulation/splits/test_named_splits.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Literal, get_args

__all__ = ["SplitName", "SplitSettings", "amount", "streaming_step"]

SplitName = Literal["iid", "shards", "dirichlet_semifl", "batch_iid", "batch_noniid", "streaming_noniid",
                    "dirichlet_fedmix", "fedmix_iid", "shvr_iid", "shvr_noniid", "prevalence_shift", "class_mismatch",
                    "natural"]

_SHARE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*%\s*$")
_OWN = {
    "shards": ("classes_per_silo",),
    "dirichlet_semifl": ("dirichlet",),
    "streaming_noniid": ("steps", "rounds_per_step"),
    "dirichlet_fedmix": ("dirichlet", "images_per_silo"),
    "shvr_noniid": ("classes_per_silo", "dirichlet", "sizes"),
    "prevalence_shift": ("dirichlet", "prevalences"),
    "class_mismatch": ("classes_per_silo", "labelled_per_silo", "mismatch_ratio", "dirichlet", "sizes"),
}
"""Settings that only the named splits honour."""
_ONLY_SOME = tuple(sorted({name for names in _OWN.values() for name in names}))


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitSettings:
    """Table [simulation.split]. A setting that the named split does not honour is refused; those that are left out
    have the value of the split's paper."""

    name: SplitName
    """The rule that deals the unlabelled images."""
    silos: int = 0
    """Number of silos, at least 1. "natural": left out, as many as there are sites."""
    num_labelled: int | tuple[int, ...] | None = None
    """labels-at-coordinator, -both: labelled images at the coordinator. In all, of each class equally many: a multiple
    of the number of classes; or, with `label_imbalance`, any number. Or a list, how many of each class, in label order.
    """
    label_imbalance: float | None = None
    """labels-at-coordinator, -both: the first class has this many times the labelled images of the last one, those
    between fall geometrically (Cui et al., CVPR 2019), at least one of each. Above 1."""
    unlabelled_imbalance: float | None = None
    """The images that are dealt to silos without labels fall likewise from the first class to the last: as many of each
    as the sizes of the classes permit, drawn at random; the others are unused. Above 1."""
    labelled_per_class: int | None = None
    """labels-at-silo, -both: labelled images of each class at each silo (of each class that it has labels of). Left
    out: 5 in the splits of FedMatch, 6 and 30 in those of Fed-SHVR; the others need it, unless `all_labelled`."""
    labelled_silos: int | None = None
    """labels-at-silo, -both: how many silos have labels, the first ones; left out: all."""
    labelled_classes: int | None = None
    """labels-at-silo, -both: of how many classes such a silo has labels: the first silo of the first ones, the second
    of those that follow, and so on in a ring. Left out: of all; "shvr_noniid" has `classes_per_silo` for it."""
    labelled_per_silo: int | None = None
    """"class_mismatch": labelled images of each silo in all; left out: 100."""
    all_labelled: bool = False
    """Every image of a silo keeps its label, for supervised upper bounds. The parts are the same as without it."""
    classes_per_silo: int | None = None
    """"shards": most classes of a silo, left out: 2. "shvr_noniid", "class_mismatch": classes that a silo has labels
    of, left out: 2 and 6."""
    dirichlet: float | None = None
    """Concentration of Dirichlet draws, above 0; small is uneven. Left out: 0.1 ("class_mismatch" with literal sizes:
    0.025)."""
    prevalences: tuple[tuple[float, ...], ...] | None = None
    """"prevalence_shift": for every silo the share of every class, in label order. Left out: drawn for each silo from
    Dir(`dirichlet` C pi), pi being the shares of all unlabelled images of C classes; `dirichlet` left out: 1."""
    images_per_silo: int | None = None
    """"dirichlet_fedmix": how many unlabelled images a silo wants while there are any; left out: 580 of 550, that is
    1.0545 times an equal share."""
    steps: int | None = None
    """"streaming_noniid": steps in which a silo's unlabelled images arrive; left out: 10."""
    rounds_per_step: int | None = None
    """"streaming_noniid": rounds that each step lasts; left out: 10. After the last step it stays."""
    mismatch_ratio: float | None = None
    """"class_mismatch": share of a silo's unlabelled images that are of classes it has no labels of, 0 to 1."""
    sizes: Literal["literal", "range_matched"] | None = None
    """"shvr_noniid", "class_mismatch": numbers of images per silo as the paper's text says ("literal"), or so that the
    numbers of local steps are the published ones ("range_matched"; left out: this)."""
    num_validation: int | str = 0
    """Images held out for validation before anything else is dealt: a number, or a share such as "5%"."""
    num_test: int | str = 0
    """Images held out for testing likewise; 0: the set's own test images. FedMatch and FedMix pool a set's training and
    test images and hold out 2000 and 2000 (code) or 3000 and 3000 (papers) of 60000."""
    fraction: float = 1.0
    """Uses only this share of the set, drawn first, with equal shares of every class: for runs on a smaller scale."""

    def __post_init__(self) -> None:
        self._refuse_unused()
        if not self.silos and self.name != "natural":
            raise ValueError(f'silos = 0: say how many there are, at least 1, in the split "{self.name}".')
        for name in ("silos", "labelled_per_class", "labelled_per_silo", "labelled_silos", "labelled_classes",
                     "num_labelled", "classes_per_silo", "images_per_silo", "steps", "rounds_per_step"):
            value = getattr(self, name)
            if isinstance(value, int) and value < (0 if name == "silos" else 1):
                raise ValueError(f"{name} = {value}: must be at least 1.")
        if isinstance(self.num_labelled, tuple):
            if not self.num_labelled or min(self.num_labelled) < 1:
                raise ValueError(f"num_labelled = {list(self.num_labelled)}: every class needs at least 1.")
            if self.label_imbalance is not None:
                raise ValueError("label_imbalance has no effect where num_labelled is a list: leave one of them out.")
        for name in ("label_imbalance", "unlabelled_imbalance"):
            value = getattr(self, name)
            if value is not None and not 1 < value < float("inf"):
                raise ValueError(f"{name} = {value}: must be above 1 and finite.")
        if self.labelled_silos is not None and self.silos and self.labelled_silos > self.silos:
            raise ValueError(f"labelled_silos = {self.labelled_silos}: there are only {self.silos} silos.")
        self._check_prevalences()
        if self.dirichlet is not None and not 0 < self.dirichlet < float("inf"):
            raise ValueError(f"dirichlet = {self.dirichlet}: must be above 0 and finite.")
        if self.mismatch_ratio is not None and not 0 <= self.mismatch_ratio <= 1:
            raise ValueError(f"mismatch_ratio = {self.mismatch_ratio}: must be between 0 and 1.")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction = {self.fraction}: must be above 0 and at most 1.")
        for name in ("num_validation", "num_test"):
            amount(name, getattr(self, name), 0)

    def _check_prevalences(self) -> None:
        if self.prevalences is None:
            return
        if self.dirichlet is not None:
            raise ValueError("dirichlet has no effect where prevalences are given: leave one of them out.")
        if len(self.prevalences) != self.silos:
            raise ValueError(f"prevalences has {len(self.prevalences)} rows for {self.silos} silos.")
        for number, row in enumerate(self.prevalences, 1):
            if not row or min(row) < 0 or abs(sum(row) - 1) > 1e-3:
                raise ValueError(f"prevalences: row {number} must be shares of the classes, together 1.")

    def _refuse_unused(self) -> None:
        honoured = _OWN.get(self.name, ())
        for name in _ONLY_SOME:
            if getattr(self, name) is not None and name not in honoured:
                where = " or ".join(f'"{split}"' for split, names in _OWN.items() if name in names)
                raise ValueError(f'{name} has no effect in the split "{self.name}": remove it, or choose {where}.')
        if self.name == "class_mismatch" and self.mismatch_ratio is None:
            raise ValueError('the split "class_mismatch" needs mismatch_ratio, a number from 0 to 1.')
        for name in ("labelled_per_class", "labelled_silos", "labelled_classes"):
            if self.name == "class_mismatch" and getattr(self, name) is not None:
                raise ValueError(f'{name} has no effect in the split "class_mismatch": give labelled_per_silo.')
        if self.name == "shvr_noniid" and self.labelled_classes is not None:
            raise ValueError('labelled_classes has no effect in the split "shvr_noniid": give classes_per_silo.')
        if self.all_labelled and self.labelled_silos is not None:
            raise ValueError("labelled_silos has no effect with all_labelled: every silo has labels.")
        if self.name == "class_mismatch" and self.sizes != "literal" and self.dirichlet is not None:
            raise ValueError('dirichlet has no effect in the split "class_mismatch" unless sizes = "literal".')
        if self.all_labelled and (self.steps is not None or self.rounds_per_step is not None):
            raise ValueError("steps and rounds_per_step have no effect with all_labelled: labelled images do not"
                             " stream.")


def streaming_step(round: int, *, steps: int, rounds_per_step: int) -> int:
    """Which step, counted from 0, the silos train on in a round, counted from 1.

    Rounds 1..rounds_per_step use the first; after the last it stays.
    Source: data.md section 3.4 (FedMatch v1).
    """
    return min((max(round, 1) - 1) // rounds_per_step, steps - 1)


def amount(name: str, value: int | str, total: int) -> int:
    """A number of images that a setting gives as a number or as a share such as "5%" of `total`.

    Raises: ValueError, naming the setting.
    """
    if isinstance(value, str):
        match = _SHARE.match(value)
        if match is None or float(match[1]) >= 100:
            raise ValueError(f'{name} = "{value}": give a number, or a share below 100% such as "5%".')
        return round(float(match[1]) / 100 * total)
    if value < 0:
        raise ValueError(f"{name} = {value}: must not be negative.")
    return value


assert {*_ONLY_SOME, *_OWN} <= {field.name for field in fields(SplitSettings)} | set(get_args(SplitName))
