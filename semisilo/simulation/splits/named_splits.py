"""Splits by name: the deal that follows from `semisilo.common.data.split_settings.SplitSettings`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import ArrayLike

from semisilo.common.data.multi_hot import num_strata, strata_of
from semisilo.common.data.split_settings import SplitName, SplitSettings, amount, streaming_step
from semisilo.common.errors import BadConfiguration
from semisilo.common.methods.spec import coordinator_has_labels, silos_have_labels
from semisilo.simulation.splits.fedmatch_splits import batch_iid, batch_noniid, dirichlet_fedmix, streaming_noniid
from semisilo.simulation.splits.natural_split import labelled_at_sites, natural
from semisilo.simulation.splits.prevalence_split import prevalence_shift
from semisilo.simulation.splits.shvr_splits import class_mismatch, labelled_classes, shvr_noniid
from semisilo.simulation.splits.splits import (
    Indices,
    Split,
    all_labels_at_silos,
    checked_labels,
    dirichlet_semifl,
    hold_out,
    iid,
    labelled_at_silos,
    labelled_selection,
    long_tailed_part,
    shards,
    stratified_part,
)
from semisilo.simulation.splits.whole_patients import keep_patients_whole

if TYPE_CHECKING:
    from semisilo.common.methods.spec import Scenario

__all__ = ["WITHOUT_LABELS", "SplitSettings", "deal", "streaming_step"]

WITHOUT_LABELS = ("iid", "shvr_iid", "natural")
"""Rules that deal images without looking at their classes."""


def deal(labels_N: ArrayLike, settings: SplitSettings, *, num_classes: int, seed: int, scenario: Scenario,
         apart: int = 0, multi_label: bool = False, patients: Sequence[str] = (), tested: Collection[str] = (),
         sites: ArrayLike = ()) -> Split:
    """Who holds which images of one set: the same arguments give the same split on every machine.

    First a part of the set is taken (`fraction`), then validation and test images are held out, then the labelled ones
    are chosen, and the rest is dealt by the named rule. Where that puts a patient into two parts, whole patients are
    dealt, in the numbers that the rule gives: `keep_patients_whole`.
    Args:
        labels_N: of the whole set, whole numbers in 0..num_classes - 1; or multi-hot rows (N, K).
        apart: so many of the first images are the coordinator's labelled ones, whatever the seed; only the others are
            dealt. 0: its labelled images are drawn as the settings say.
        multi_label: whether they are rows: an image then counts as one of its rarest finding, or of none
            (`strata_of`), wherever the rule speaks of classes.
        patients: a key of each image's, "" where it is not known; () where none is.
        tested: patients with images in a test set beside this one.
        sites: whose each image is, from 0, -1 for the coordinator's, where the split is "natural"; () in others.
    Raises: BadConfiguration for settings that do not fit each other, the scenario or the set; BadData for labels out of
        range, a class with too few images, or too few patients.
    """
    if multi_label:
        _check_for_findings(settings)
        rows_NK = np.asarray(labels_N)
        labels_N, num_classes = strata_of(rows_NK), num_strata(rows_NK, num_classes)
    labels, sites_N = checked_labels(labels_N, num_classes), np.asarray(sites, dtype=np.int64)
    split = (_dealt_apart(labels, settings, sites_N, num_classes=num_classes, seed=seed, scenario=scenario, apart=apart)
             if apart else _dealt_whole(labels, settings, sites_N, num_classes=num_classes, seed=seed,
                                        scenario=scenario, multi_label=multi_label))
    return keep_patients_whole(split, labels, patients, num_classes=num_classes, seed=seed, apart=apart,
                               elsewhere=tested, sites_N=sites_N if settings.name == "natural" else None)


def _dealt_whole(labels: Indices, settings: SplitSettings, sites: Indices, *, num_classes: int, seed: int,
                 scenario: Scenario, multi_label: bool) -> Split:
    """The deal of all images of the set."""
    _check_scenario(settings, scenario)
    part = np.arange(len(labels))
    if settings.fraction < 1:
        part = stratified_part(labels, settings.fraction, num_classes=num_classes, seed=seed)
    train, test, validation = hold_out(
        labels[part], num_test=amount("num_test", settings.num_test, len(part)),
        num_validation=amount("num_validation", settings.num_validation, len(part)), seed=seed)
    train, test, validation = part[train], part[test], part[validation]
    dealt = _dealt(labels[train], settings, sites[train] if len(sites) else sites, num_classes=num_classes, seed=seed,
                   scenario=scenario, multi_label=multi_label)
    if settings.all_labelled:
        dealt = all_labels_at_silos(dealt)
    return Split(
        silos=tuple(train[silo] for silo in dealt.silos), coordinator=train[dealt.coordinator],
        validation=validation, test=test, labelled=tuple(train[held] for held in dealt.labelled),
        steps=tuple(tuple(train[step] for step in steps) for steps in dealt.steps))


def _dealt_apart(labels: Indices, settings: SplitSettings, sites: Indices, *, num_classes: int, seed: int,
                 scenario: Scenario, apart: int) -> Split:
    """The deal of all images but the first ones, which are the coordinator's.

    Raises: BadConfiguration for settings that would choose or hold out labelled images.
    """
    if not coordinator_has_labels(scenario) or settings.name == "class_mismatch":
        raise BadConfiguration(f"[simulation] labelled: in {scenario} with this split the coordinator has no labelled"
                               " images.", remedy="Remove labelled, or choose labels-at-coordinator.")
    for name in (*_AT_COORDINATOR, "num_test", "num_validation", *(() if silos_have_labels(scenario) else _AT_SILOS)):
        if getattr(settings, name):
            raise BadConfiguration(f"{name} has no effect beside [simulation] labelled, which names the coordinator's"
                                   " images.", remedy="Remove it; test images are named by [simulation] test.")
    if settings.fraction < 1 or settings.all_labelled:
        raise BadConfiguration("fraction and all_labelled have no effect beside [simulation] labelled.",
                               remedy="Remove them.")
    chosen: Indices = np.arange(apart, dtype=np.int64)
    held = _held_by_silos(labels, settings, sites, num_classes, seed, chosen) if silos_have_labels(scenario) else ()
    taken = _taken(labels, settings, num_classes, seed, np.concatenate((chosen, *held)))
    dealt = _by_rule(labels, settings, sites, num_classes, seed, taken)
    return Split(dealt.silos, coordinator=chosen, labelled=held, steps=dealt.steps)


_FOR_FINDINGS: tuple[SplitName, ...] = ("iid", "dirichlet_semifl", "natural")
"""Rules that deal by the rarest finding as well as by the class."""
_OF_ONE_CLASS = ("label_imbalance", "unlabelled_imbalance", "labelled_classes")
"""Settings that count images of each class, of which an image has one."""


def _check_for_findings(settings: SplitSettings) -> None:
    """Raises: BadConfiguration for what is not defined where images may have several labels or none."""
    if settings.name not in _FOR_FINDINGS:
        raise BadConfiguration(f'The split "{settings.name}" deals images of one class each; these may have several'
                               " labels, or none.",
                               remedy=f"Choose {' or '.join(_FOR_FINDINGS)}, by the rarest finding.")
    wrong = next((name for name in _OF_ONE_CLASS if getattr(settings, name) is not None), None)
    if wrong or isinstance(settings.num_labelled, tuple):
        raise BadConfiguration(f"{wrong or 'num_labelled for each class'} has no meaning where images may have several"
                               " labels or none.", remedy="Remove it." if wrong else "Give one number.")


_AT_COORDINATOR = ("num_labelled", "label_imbalance")
_AT_SILOS = ("labelled_per_class", "labelled_per_silo", "labelled_silos", "labelled_classes")
"""Settings that say how many labelled images there are at a place."""


def _check_scenario(settings: SplitSettings, scenario: Scenario) -> None:
    at_coordinator, at_silos = coordinator_has_labels(scenario), silos_have_labels(scenario)
    unused = (() if at_coordinator else _AT_COORDINATOR) + (() if at_silos else _AT_SILOS)
    wrong = [name for name in unused if getattr(settings, name) is not None]
    if at_coordinator and settings.name == "class_mismatch":
        raise BadConfiguration('The split "class_mismatch" is defined for labels-at-silo only.',
                               remedy='Choose another split, for example "shards".')
    if not at_silos and settings.name == "shvr_noniid" and settings.classes_per_silo is not None:
        wrong.append("classes_per_silo")
    if at_coordinator and settings.num_labelled is None:
        raise BadConfiguration(f'The split "{settings.name}" needs num_labelled: images with labels at the'
                               " coordinator.", remedy="Give a multiple of the number of classes.")
    if settings.name == "class_mismatch" and settings.unlabelled_imbalance is not None:
        raise BadConfiguration('unlabelled_imbalance has no effect in the split "class_mismatch".',
                               remedy="Remove it.")
    if wrong:
        raise BadConfiguration(f"{wrong[0]} has no effect in the scenario {scenario}.", remedy="Remove it.")


def _dealt(labels: Indices, settings: SplitSettings, sites: Indices, *, num_classes: int, seed: int, scenario: Scenario,
           multi_label: bool) -> Split:
    if settings.name == "class_mismatch":
        return class_mismatch(
            labels, settings.silos, mismatch_ratio=settings.mismatch_ratio or 0.0, num_classes=num_classes, seed=seed,
            classes_per_silo=settings.classes_per_silo or 6, labelled_per_silo=settings.labelled_per_silo or 100,
            dirichlet=settings.dirichlet or 0.025, sizes=settings.sizes or "range_matched")
    chosen: Indices = np.arange(0)
    if coordinator_has_labels(scenario) and multi_label:
        chosen = _some_of_each(labels, settings.num_labelled, num_classes=num_classes, seed=seed)
    elif coordinator_has_labels(scenario):
        chosen = labelled_selection(labels, settings.num_labelled or 0, num_classes, seed,
                                    imbalance=settings.label_imbalance)
    held = _held_by_silos(labels, settings, sites, num_classes, seed, chosen) if silos_have_labels(scenario) else ()
    taken = _taken(labels, settings, num_classes, seed, np.concatenate((chosen, *held)))
    dealt = _by_rule(labels, settings, sites, num_classes, seed, taken)
    return Split(dealt.silos, coordinator=chosen, labelled=held, steps=dealt.steps)


def _by_rule(labels: Indices, settings: SplitSettings, sites: Indices, num_classes: int, seed: int, taken: Indices
             ) -> Split:
    """What silos have without labels."""
    if settings.name == "natural":
        return natural(sites, settings.silos, labelled=taken)
    return _RULES[settings.name](labels, settings, num_classes, seed, taken)


def _some_of_each(strata: Indices, number: object, *, num_classes: int, seed: int) -> Indices:
    """So many images in the shares of all strata, since of findings there cannot be equally many of each."""
    if not isinstance(number, int) or not 0 < number < len(strata):
        raise BadConfiguration(f"num_labelled = {number}: must be at least 1 and below the {len(strata)} images that"
                               " there are.", remedy="Choose another number.")
    return stratified_part(strata, number / len(strata), num_classes=num_classes, seed=seed)


def _taken(labels: Indices, settings: SplitSettings, num_classes: int, seed: int, held: Indices) -> Indices:
    """The images that are not dealt: labelled ones, and those that unlabelled_imbalance leaves out."""
    if settings.unlabelled_imbalance is None:
        return held
    pool = np.setdiff1d(np.arange(len(labels), dtype=np.int64), held)
    kept = long_tailed_part(labels, pool, num_classes=num_classes, imbalance=settings.unlabelled_imbalance, seed=seed)
    return np.setdiff1d(np.arange(len(labels), dtype=np.int64), kept)


def _held_by_silos(labels: Indices, settings: SplitSettings, sites: Indices, num_classes: int, seed: int,
                   chosen: Indices) -> tuple[Indices, ...]:
    """The labelled images of each silo, of those that the coordinator does not have; () where all images keep theirs.

    Raises: BadConfiguration when the settings do not say how many.
    """
    per_class = settings.labelled_per_class or _LABELLED_PER_CLASS.get(settings.name)
    if per_class is None:
        if settings.all_labelled:
            return ()
        raise BadConfiguration(f'The split "{settings.name}" needs labelled_per_class: labelled images at each silo.',
                               remedy="Give it, or all_labelled = true.")
    if settings.labelled_classes is not None and settings.labelled_classes > num_classes:
        raise BadConfiguration(f"labelled_classes = {settings.labelled_classes}: there are only {num_classes} classes.",
                               remedy="Choose fewer, or leave it out.")
    of_silo = settings.classes_per_silo or 2 if settings.name == "shvr_noniid" else settings.labelled_classes
    having = settings.silos if settings.labelled_silos is None else settings.labelled_silos
    classes = (*labelled_classes(having, classes_per_silo=of_silo or num_classes, num_classes=num_classes),
               *((),) * (settings.silos - having))
    if settings.name == "natural":
        return labelled_at_sites(labels, sites, settings.silos, per_class=per_class, num_classes=num_classes, seed=seed,
                                 classes=classes, without=chosen)
    return labelled_at_silos(labels, settings.silos, per_class=per_class, num_classes=num_classes, seed=seed,
                             classes=classes, without=chosen)


_LABELLED_PER_CLASS: dict[str, int] = {
    "batch_iid": 5, "batch_noniid": 5, "streaming_noniid": 5, "shvr_iid": 6, "shvr_noniid": 30}

_Rule = Callable[[Indices, SplitSettings, int, int, Indices], Split]
"""(labels, settings, number of classes, seed, labelled images): the deal of all other images."""

_RULES: dict[str, _Rule] = {
    "iid": lambda labels, s, classes, seed, held: iid(labels, s.silos, seed=seed, labelled=held),
    "shards": lambda labels, s, classes, seed, held: shards(
        labels, s.silos, classes_per_silo=s.classes_per_silo or 2, num_classes=classes, seed=seed, labelled=held),
    "dirichlet_semifl": lambda labels, s, classes, seed, held: dirichlet_semifl(
        labels, s.silos, beta=s.dirichlet or 0.1, num_classes=classes, seed=seed, labelled=held),
    "batch_iid": lambda labels, s, classes, seed, held: batch_iid(
        labels, s.silos, num_classes=classes, seed=seed, labelled=held),
    "batch_noniid": lambda labels, s, classes, seed, held: batch_noniid(
        labels, s.silos, num_classes=classes, seed=seed, labelled=held),
    "streaming_noniid": lambda labels, s, classes, seed, held: streaming_noniid(
        labels, s.silos, num_classes=classes, seed=seed, steps=s.steps or 10, labelled=held),
    "dirichlet_fedmix": lambda labels, s, classes, seed, held: dirichlet_fedmix(
        labels, s.silos, mu=s.dirichlet or 0.1, num_classes=classes, seed=seed, images_per_silo=s.images_per_silo,
        labelled=held),
    "fedmix_iid": lambda labels, s, classes, seed, held: batch_iid(
        labels, s.silos, num_classes=classes, seed=seed, labelled=held),
    "shvr_iid": lambda labels, s, classes, seed, held: iid(labels, s.silos, seed=seed, labelled=held),
    "prevalence_shift": lambda labels, s, classes, seed, held: prevalence_shift(
        labels, s.silos, num_classes=classes, seed=seed, dirichlet=s.dirichlet or 1.0, prevalences=s.prevalences,
        labelled=held),
    "shvr_noniid": lambda labels, s, classes, seed, held: shvr_noniid(
        labels, s.silos, num_classes=classes, seed=seed, dirichlet=s.dirichlet or 0.1,
        sizes=s.sizes or "range_matched", labelled=held),
}

assert {*_RULES, "class_mismatch", "natural"} == set(get_args(SplitName))
