"""A model card as Markdown and as one HTML page, from the same parts.

Names of classes, silos and sources are somebody's, so everything that is not markup of ours is escaped in both: in
Markdown here, in HTML by the template beside this module.

Tests: tests/coordinator/export/test_export.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import ClassVar

from semisilo.common.config import to_dict
from semisilo.common.measures.finding_calibration import FindingCalibration
from semisilo.common.measures.findings import FindingMeasures
from semisilo.common.measures.gain import gain_interval_text, gain_text, gain_verdict, interval_of
from semisilo.common.measures.independent_images import by_what
from semisilo.common.measures.intervals import Interval
from semisilo.common.measures.site_evaluation import BALANCED, estimate_text
from semisilo.common.measures.study_measure import ACCURACY, StudyMeasure, parse_measure
from semisilo.common.text.describe import (
    counted,
    describe_bytes,
    describe_metric,
    describe_percentage,
    describe_range,
    describe_share,
)
from semisilo.common.text.html import Table, png_address, render_html
from semisilo.common.text.setting_rows import setting_rows
from semisilo.coordinator.export.card import CardFindings, CardModel, CardSilo, CardSilos, CardSite, CardTest, ModelCard
from semisilo.coordinator.export.choose_model import STUDY_TEST
from semisilo.coordinator.export.operating_point import PointRates
from semisilo.coordinator.ledger.records import LABELS_ALONE

__all__ = ["card_html", "card_markdown"]

_DASH = "–"
_MOST_CONFUSED = 20
"""Classes up to which the whole confusion matrix is shown; it is always in the JSON file."""


@dataclass(frozen=True, slots=True)
class _Text:
    kind: ClassVar = "text"
    text: str


@dataclass(frozen=True, slots=True)
class _Points:
    kind: ClassVar = "points"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    kind: ClassVar = "table"
    content: Table


@dataclass(frozen=True, slots=True)
class _Picture:
    kind: ClassVar = "picture"
    file: str
    text: str


_Block = _Text | _Points | _Table | _Picture
"""Its `kind` tells the template which it is."""


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    blocks: tuple[_Block, ...]


@dataclass(frozen=True, slots=True)
class _Page:
    title: str
    subtitle: str
    sections: tuple[_Section, ...]


def card_markdown(card: ModelCard) -> str:
    """The card as Markdown (tables as on GitHub)."""
    parts = [f"# {_md(_title(card))}", _md(_subtitle(card))]
    for section in _sections(card):
        parts.append(f"## {section.title}")
        for block in section.blocks:
            parts.append(_md_block(block))
    return "\n\n".join(parts) + "\n"


def card_html(card: ModelCard, *, pictures: Mapping[str, bytes] | None = None) -> str:
    """The card as a page without scripts.

    Args:
        pictures: name of a file -> its PNG, which becomes part of the page, so that it can be handed on by itself.
            Others are files beside it.
    """
    inside = {name: png_address(png) for name, png in (pictures or {}).items()}
    sections = tuple(replace(section, blocks=tuple(
        replace(block, file=inside.get(block.file, block.file)) if isinstance(block, _Picture) else block
        for block in section.blocks)) for section in _sections(card))
    return render_html(__name__, _Page(_title(card), _subtitle(card), sections))


# What stands in it ----------------------------------------------------------------------------------------------------


def _title(card: ModelCard) -> str:
    model = card.model
    which = "labels alone" if model.chosen == LABELS_ALONE else f"round {model.round}"
    return f"Model card: {model.study}, {which}"


def _subtitle(card: ModelCard) -> str:
    model, test, silos = card.model, card.test, card.data.silos
    measured = test or card.findings
    title = parse_measure(model.measure).title if card.multi_label else "accuracy"
    worth = f"{title} not measured" if measured is None else _worth_in_short(measured, parse_measure(model.measure))
    how = "on labels alone" if model.chosen == LABELS_ALONE else f"with {model.method.name}"
    if model.chosen != LABELS_ALONE and silos.of:
        refused = f", {silos.refused_all} of which refused every round" if silos.refused_all else ""
        how += f" on {silos.took_part} of {counted(silos.of, 'silo')}{refused}"
    return (f"{model.network.name} for {len(model.classes)} classes, trained {how};"
            f" {worth}. Not for clinical use.")


def _worth_in_short(test: CardTest | CardFindings, measure: StudyMeasure) -> str:
    """The study's measure first, then accuracy."""
    if isinstance(test, CardFindings):
        between = test.interval_of(measure)
        return f"test {measure.title} {describe_metric(measure.metric, test.value_of(measure))}" + (
            "" if between is None else f", 95 % interval {between.low:.3f} to {between.high:.3f}")
    shown = dict.fromkeys((measure, ACCURACY) if test.value_of(measure) is not None else (ACCURACY,))
    parts = []
    for each in shown:
        interval = test.interval_of(each)
        parts.append(f"{each.title} {describe_metric(each.metric, test.value_of(each))}"
                     + ("" if interval is None else
                        f", 95 % interval {_area_between(interval) if each.is_area else _interval(interval)}"))
    return "test " + "; ".join(parts)


def _sections(card: ModelCard) -> list[_Section]:
    return [_Section("Use", (_Points(card.intended_use),)), _model(card), _data(card), _worth(card),
            *_sites(card), *_privacy(card), *_operating_point(card), *_classes(card), *_calibration(card), _cost(card),
            _Section("Limits", (_Points(card.limits),)), _files(card), _provenance(card), _settings(card)]


def _model(card: ModelCard) -> _Section:
    model, image = card.model, card.model.image
    rows = [("Network", model.network.name), ("Normalisation layers", model.network.normalisation),
            ("Trained parameters", f"{model.network.parameters:,}"),
            *([("Frozen parameters", f"{model.network.frozen:,}")] if model.network.frozen else []),
            *([("Started from weights (SHA-256)", model.network.weights_sha256)]
              if model.network.weights_sha256 else []),
            ("Classes, in label order", ", ".join(model.classes)),
            ("Images", f"{image.size} x {image.size}, {'grey' if image.channels == 1 else 'colour'},"
                       f" resize {image.resize}"),
            ("Mean, standard deviation", "of each image and channel" if image.standardise == "image" else
             f"{_numbers(image.mean)}; {_numbers(image.std)}"),
            ("Method", f"{model.method.name}, {model.method.scenario}"),
            ("Source of the method", model.method.source),
            ("What the method discloses", model.method.discloses),
            ("Round", f"{_round_of(model)}; the study is {model.study_state}"),
            ("The study compares rounds by", parse_measure(model.measure).title),
            *([("The study's own choice", model.choice)] if model.choice else [])]
    return _Section("Model", (_table("The model", ("What", "Value"), rows, words=2),))


def _data(card: ModelCard) -> _Section:
    own, silos = card.data.coordinator, card.data.silos
    sets = (("labelled", own.labelled, own.labelled_patients), ("validation", own.validation, own.validation_patients),
            ("test", own.test, own.test_patients))
    by_patient = any(patients for _, _, patients in sets)
    table = _table("Images at the coordinator", ("Set", "Images", *(("Patients",) if by_patient else ())),
                   tuple((name, str(images), *((str(patients) if patients else "not known",) if by_patient and images
                                               else ("0",) if by_patient else ())) for name, images, patients in sets))
    rows = [(each.silo, *_counts(each)) for each in silos.silos]
    rows.append(("all; images of those that took part", *_counts(silos)))
    many = _table("Images at the silos, as announced", ("Silo", "Labelled", "Unlabelled", "Updates", "Abstentions",
                                                        "Refusals", "Expired"), rows)
    note = [_Text(text) for text in _left_out(own.left_out_files, own.unreadable_files)]
    return _Section("Data", (_Text("Images at the coordinator:"), table, *note,
                             _Text("Images at the silos, as these have announced them, and how often they answered:"),
                             many))


def _left_out(count: int, broken: int | None) -> list[str]:
    """Of the coordinator's files, `broken` should have been images; None where that was not counted."""
    def files(number: int) -> str:
        return f"{number} file{'s' * (number != 1)} of the coordinator"

    were = "was" if count == 1 else "were"
    if not broken:
        why = "" if broken is None else ": no images, or without a class"
        return [f"{files(count)} {were} left out{why}."] if count else []
    rest = count - broken
    more = f"; {rest} more {'was' if rest == 1 else 'were'} left out: no images, or without a class" if rest else ""
    return [f"{files(broken)} could not be read and {'was' if broken == 1 else 'were'} left out{more}."]


def _worth(card: ModelCard) -> _Section:
    test, alone = card.test, card.labelled_only
    if card.findings is not None:
        return _worth_of_findings(card, card.findings)
    if test is None:
        return _Section("Result", (_Text("Not measured: there are no test images."),))
    rows = [("Accuracy", describe_percentage(test.accuracy), _interval(test.accuracy_interval)),
            ("Balanced accuracy", describe_percentage(test.balanced_accuracy),
             _interval(test.balanced_accuracy_interval)),
            ("AUROC, macro", _area(test.auroc_macro), _area_between(test.auroc_macro_interval))]
    if alone is not None and alone.accuracy is not None:
        rows.append(("Labels alone, no silos", describe_percentage(alone.accuracy),
                     _interval(alone.accuracy_interval)))
    if alone is not None:
        for name, words in (("balanced_accuracy", "Balanced accuracy"), ("calibration_error", "Calibration error")):
            if name in alone.metrics:
                rows.append((f"{words}, labels alone", describe_percentage(alone.metrics[name]), _DASH))
        if "auroc" in alone.metrics:
            rows.append(("AUROC, macro, labels alone", _area(alone.metrics["auroc"]), _DASH))
    if (gain := card.gain) is not None:
        of_other = "" if gain.measure == ACCURACY else f", {gain.measure.title}"
        rows.append((f"Gain{of_other}", ", ".join(filter(None, (gain_text(gain), gain_verdict(gain)))),
                     gain_interval_text(gain).removeprefix("95 % interval ")))
    before = card.recorded_accuracy
    check = ("" if before is None else " The ledger has the same accuracy for this round." if before == test.accuracy
             else f" The ledger has {describe_percentage(before)} for this round.")
    blocks: list[_Block] = [
        _Text(f"{test.right} of {test.images} images are right; measured on {test.source}.{check} Intervals of"
              f" 95 %, {by_what(test.independent)}: Wilson's for shares; for the balanced accuracy those of the"
              " classes put together; for areas under the curve Newcombe's, as if the areas of all classes erred"
              " alike."),
        _table("Result", ("What", "Value", "95 % interval"), tuple(rows))]
    if alone is not None:
        how = f" Recipe: {alone.recipe}." if alone.recipe else ""
        short = f" Ended early: {alone.cut_short}." if alone.cut_short else ""
        blocks.append(_Text(f"Labels alone: the same network trained on the {alone.num_labelled} labelled images of"
                            f" the coordinator for {alone.epochs} epochs, on the study's own test images.{how}{short}"))
    return _Section("Result", tuple(blocks))


def _worth_of_findings(card: ModelCard, findings: CardFindings) -> _Section:
    alone, micro = card.labelled_only, findings.micro
    classes = card.model.classes
    images = findings.counts
    rows = [("AUROC, macro", _area(findings.auroc_macro), _area_between(findings.auroc_macro_interval)),
            ("AUROC, micro", _area(micro.auroc), _area_between(micro.auroc_interval)),
            ("Average precision, macro", _area(findings.average_precision_macro),
             _area_between(findings.average_precision_macro_interval)),
            ("Average precision, micro", _area(micro.average_precision),
             _area_between(micro.average_precision_interval)),
            ("F1, macro", describe_percentage(findings.f1_macro), _interval(findings.f1_macro_interval)),
            ("F1, micro", describe_percentage(micro.f1), _interval(micro.f1_interval)),
            ("Sensitivity, micro", describe_percentage(micro.sensitivity), _interval(micro.sensitivity_interval)),
            ("Specificity, micro", describe_percentage(micro.specificity), _interval(micro.specificity_interval)),
            ("Precision, micro", describe_percentage(micro.precision), _interval(micro.precision_interval)),
            ("Exact match", describe_percentage(findings.exact_match), _interval(findings.exact_match_interval)),
            ("Calibration error, macro", describe_percentage(findings.expected_error_macro), _DASH)]
    if findings.expected_error_macro_with_scaling is not None:
        rows.append(("Calibration error, macro, with scaling",
                     describe_percentage(findings.expected_error_macro_with_scaling), _DASH))
    for measure, words in ((StudyMeasure("auroc"), "AUROC, macro"),
                           (StudyMeasure("average_precision"), "Average precision, macro")):
        if alone is not None and measure.metric in alone.metrics:
            between = interval_of(measure, classes=classes, images=images, metrics=alone.metrics) \
                if findings.source == STUDY_TEST else None
            rows.append((f"{words}, labels alone", _area(alone.metrics[measure.metric]), _area_between(between)))
    if (gain := card.gain) is not None:
        rows.append((f"Gain, {gain.measure.title}", ", ".join(filter(None, (gain_text(gain), gain_verdict(gain)))),
                     gain_interval_text(gain).removeprefix("95 % interval ")))
    blocks: list[_Block] = [
        _Text(f"Measured on {findings.images} images: {findings.source}. An image may show several classes or none, so"
              " every class is a question of its own, and there is no accuracy: who answers no to everything would be"
              " right most of the time. Macro is the mean over the classes; micro takes all answers together, so that"
              " frequent classes count more. F1, sensitivity, specificity, precision and exact match are at the"
              f" threshold of each class: {findings.thresholds_from}. Intervals of 95 %,"
              f" {by_what(findings.independent)}."),
        _table("Result", ("What", "Value", "95 % interval"), tuple(rows))]
    if alone is not None:
        how = f" Recipe: {alone.recipe}." if alone.recipe else ""
        short = f" Ended early: {alone.cut_short}." if alone.cut_short else ""
        blocks.append(_Text(f"Labels alone: the same network trained on the {alone.num_labelled} labelled images of"
                            f" the coordinator for {alone.epochs} epochs, on the study's own test images.{how}{short}"))
    return _Section("Result", tuple(blocks))


def _area(value: float | None) -> str:
    return describe_metric("auroc", value)


def _area_between(interval: Interval | None) -> str:
    return _DASH if interval is None else f"{interval.low:.3f} to {interval.high:.3f}"


def _findings(card: ModelCard, findings: CardFindings) -> list[_Section]:
    alone = card.labelled_only
    has_alone = alone is not None and any(name.startswith("auroc/") for name in alone.metrics)

    def alone_of(name: str) -> tuple[str, ...]:
        if alone is None or not has_alone:
            return ()
        return (describe_metric("auroc", alone.metrics.get(f"auroc/{name}")),)

    rows = tuple((each.name, str(each.images), str(each.others), describe_metric("auroc", each.auroc),
                  _area_between(each.auroc_interval), *alone_of(each.name),
                  describe_metric("average_precision", each.average_precision),
                  _area_between(each.average_precision_interval), describe_percentage(each.f1),
                  _interval(each.f1_interval)) for each in findings.classes)
    by_class = _Section("Every class", (
        _table("Every class", ("Class", "Images", "Without it", "AUROC", "95 % interval",
                               *(("AUROC, labels alone",) if has_alone else ()), "Average precision", "95 % interval",
                               "F1", "95 % interval"), rows),
        _Text("Average precision: guessing has the share of images that show the class.")))
    return [by_class, _thresholds(card, findings), _confusion_of_findings(findings)]


def _thresholds(card: ModelCard, findings: CardFindings) -> _Section:
    chosen = {each.name: each for each in card.thresholds}

    def validation(name: str) -> tuple[str, ...]:
        if not chosen:
            return ()
        each = chosen[name]
        return (each.chosen_for, _rate(each.validation.sensitivity), _rate(each.validation.specificity))

    rows = tuple((each.name, f"{each.threshold:.4g}", *validation(each.name), _rate(each.sensitivity),
                  _interval(each.sensitivity_interval), _rate(each.specificity), _interval(each.specificity_interval))
                 for each in findings.classes)
    columns = ("Class", "Threshold", *(("Chosen for", "Sensitivity, validation", "Specificity, validation")
                                       if chosen else ()), "Sensitivity", "95 % interval", "Specificity",
               "95 % interval")
    text = ("A class counts as shown where its probability is at least the threshold, chosen by"
            f" {findings.thresholds_from}; semisilo predict uses it.")
    if chosen:
        text += (" The rates on validation images are as chosen; those on the images of this card are the ones to"
                 " expect.")
    return _Section("Operating points", (_table("Operating points", columns, rows), _Text(text)))


def _confusion_of_findings(findings: CardFindings) -> _Section:
    rows = tuple((each.name, str(each.found), str(each.missed), str(each.falsely_found), str(each.spared),
                  describe_percentage(each.precision), _interval(each.precision_interval))
                 for each in findings.classes)
    blocks: list[_Block] = [
        _Text("Of every class, at its threshold: images that show it, found or missed; images that do not, falsely"
              " found or rightly without. Precision is the share of the images answered with it that show it."),
        _table("Confusion of every class", ("Class", "Found", "Missed", "Falsely found", "Rightly without",
                                            "Precision", "95 % interval"), rows)]
    names = [each.name for each in findings.classes]
    if len(names) <= _MOST_CONFUSED:
        blocks += [_Text("Classes that come together: images that show both / that are answered with both; on the"
                         " diagonal the class itself."),
                   _table("Together", ("Class", *names), tuple(
                       (name, *(f"{shown} / {found}" for shown, found in zip(shown_K, found_K, strict=True)))
                       for name, shown_K, found_K in zip(names, findings.together_shown, findings.together_found,
                                                         strict=True)))]
    else:
        blocks.append(_Text("Which classes come together is in model_card.json."))
    return _Section("Confusion", tuple(blocks))


def _calibration_of_findings(card: ModelCard, findings: CardFindings) -> _Section:
    fitted = findings.expected_error_macro_with_scaling is not None

    def numbers(of: FindingCalibration | None) -> tuple[str, str]:
        return (_DASH, _DASH) if of is None else (f"{of.expected_error:.4f}", f"{of.brier:.4f}")

    def after(each: FindingMeasures) -> tuple[str, ...]:
        if not fitted:
            return ()
        if each.scaling is None:
            return (_DASH,) * 4
        return (f"{each.scaling.slope:.4g}", f"{each.scaling.offset:.4g}", *numbers(each.calibration_with_scaling))

    rows = tuple((each.name, *numbers(each.calibration), *after(each)) for each in findings.classes)
    columns = ("Class", "Expected calibration error", "Brier score",
               *(("Slope", "Offset", "Error with scaling", "Brier with scaling") if fitted else ()))
    text = ("Expected calibration error of a class: over 15 equal bins of its probability, the mean distance of the"
            " share of images that show it and the mean probability, weighted by images. Brier score: mean over images"
            " of (probability - truth)², from 0 to 1.")
    if fitted:
        text += (f" Slope and offset of each class's logit were fitted on the {card.data.coordinator.validation}"
                 " validation images alone (Platt scaling); the order of images does not change with them. Whoever uses"
                 " the model takes the sigmoid of slope x logit + offset, as semisilo predict does.")
        if any(each.scaling is None for each in findings.classes):
            text += " A dash: the validation images all show the class, or none does, so that nothing could be fitted."
    return _Section("Calibration", (_table("Calibration", columns, rows), _Text(text), _Picture(
        "reliability.png", "Share of images that show a class by its probability")))


def _sites(card: ModelCard) -> list[_Section]:
    if not any(each.images is not None for each in card.sites):
        return []
    measure = parse_measure(card.model.measure)
    if measure.is_area and all(each.accuracy is None for each in card.sites):
        rows = [(each.silo, "sent none" if each.images is None else str(each.images),
                 _DASH if each.images is None else estimate_text(each.measure, measure)) for each in card.sites]
        return [_Section("At the sites", (
            _Text("This model on the own test images of each silo, as the silo says; in brackets intervals of 95 %, by"
                  " image: how many are of one patient is not sent."),
            _table("At the sites", ("Silo", "Test images", measure.title), rows)))]
    own = () if measure in (ACCURACY, BALANCED) else (measure,)

    def row(site: CardSite) -> tuple[str, ...]:
        if site.images is None:
            return (site.silo, "sent none", *(_DASH,) * (2 + len(own)))
        return (site.silo, str(site.images), estimate_text(site.accuracy, ACCURACY),
                estimate_text(site.balanced_accuracy, BALANCED),
                *(estimate_text(site.measure, each) for each in own))

    columns = ("Silo", "Test images", "Accuracy", "Balanced accuracy", *(each.title for each in own))
    return [_Section("At the sites", (
        _Text("This model on the own test images of each silo, as the silo says; in brackets intervals of 95 %, by"
                  " image: how many are of one patient is not sent."),
        _table("At the sites", columns, [row(each) for each in card.sites])))]


def _privacy(card: ModelCard) -> list[_Section]:
    found = card.privacy
    masked = [_Section("Secure aggregation", (_Text(card.masked),))] if card.masked else []
    if found is None:
        return masked
    rows = [(each.silo, f"{each.epsilon:.3g}", str(each.updates)) for each in found.silos]
    return [*masked, _Section("Differential privacy", (
        _Text(f"{found.promise} {found.how[:1].upper()}{found.how[1:]}."),
        _table("Differential privacy", ("Silo", "Epsilon spent by this study", "Updates"), rows)))]


def _operating_point(card: ModelCard) -> list[_Section]:
    found = card.operating_point
    if found is None:
        return []
    point = found.point
    rows = []
    for name, rates in (("validation images", found.validation), ("test images", found.test)):
        if rates is not None:
            rows += [(f"Sensitivity, {name}", _rate(rates.sensitivity), _interval(rates.sensitivity_interval),
                      f"{rates.found} of {rates.of_class}"),
                     (f"Specificity, {name}", _rate(rates.specificity), _interval(rates.specificity_interval),
                      f"{rates.spared} of {rates.images - rates.of_class}")]
    text = (f"{point.describe()}: an image counts as {point.label} when that class has a probability of at least"
            f" {point.threshold:.4g}, else as the likeliest other class. The threshold was chosen on the validation"
            " images alone; semisilo predict uses it unless told --no-operating-point."
            f" Intervals: {_by(found.validation)} on the validation images"
            f"{'' if found.test is None else f', {_by(found.test)} on the test images'}.")
    return [_Section("Operating point", (_Text(text), _table(
        "Operating point", ("What", "Value", "95 % interval", "Images"), tuple(rows))))]


def _by(rates: PointRates) -> str:
    return f"by patient ({counted(rates.patients, 'patient')})" if rates.patients else "by image"


def _rate(value: float | None) -> str:
    return _DASH if value is None else describe_percentage(value)


def _classes(card: ModelCard) -> list[_Section]:
    test = card.test
    if card.findings is not None:
        return _findings(card, card.findings)
    if test is None:
        return []
    alone = card.labelled_only
    has_alone = alone is not None and any(name.startswith("recall/") for name in alone.metrics)

    def alone_of(name: str) -> tuple[str, ...]:
        return () if alone is None or not has_alone else (describe_percentage(alone.metrics.get(f"recall/{name}")),)

    rows = tuple((each.name, str(each.images), describe_percentage(each.recall),
                  _interval(each.recall_interval), *alone_of(each.name), str(each.predicted),
                  describe_percentage(each.precision), _interval(each.precision_interval),
                  _DASH if each.auroc is None else f"{each.auroc:.3f}") for each in test.classes)
    table = _table("Every class", ("Class", "Images", "Recall", "95 % interval",
                                   *(("Recall, labels alone",) if has_alone else ()), "Predicted", "Precision",
                                   "95 % interval", "AUROC"), rows)
    blocks: list[_Text | _Table] = [table]
    names = [each.name for each in test.classes]
    if len(names) <= _MOST_CONFUSED:
        blocks += [_Text("Confusion: a row for each true class, a column for each predicted one."),
                   _table("Confusion", ("True", *names), tuple(
                       (name, *(str(cell) for cell in row))
                       for name, row in zip(names, test.confusion, strict=True)))]
    else:
        blocks.append(_Text("The confusion matrix is in model_card.json" + (
            ": the cells that are not 0." if test.confusion_cells else ".")))
    return [_Section("Every class", tuple(blocks))]


def _calibration(card: ModelCard) -> list[_Section]:
    test = card.test
    if card.findings is not None:
        return [_calibration_of_findings(card, card.findings)]
    if test is None:
        return []
    first, after = test.calibration, test.calibration_with_temperature
    both = [first, *([after] if after else [])]
    columns = ("What", "As it comes", *([f"Temperature {test.temperature:.4g}"] if after else []))
    rows = (("Expected calibration error", *(f"{each.expected_error:.4f}" for each in both)),
            ("Brier score", *(f"{each.brier:.4f}" for each in both)),
            ("Negative log-likelihood", *(f"{each.negative_log_likelihood:.4f}" for each in both)))
    text = ("Expected calibration error: over 15 equal bins of the confidence, the mean distance of accuracy and mean"
            " confidence, weighted by images. Brier score: mean over images of the sum over classes of (probability -"
            " truth)², from 0 to 2.")
    if after:
        text += (f" The temperature was fitted on the {card.data.coordinator.validation} validation images"
                 " alone; predictions do not change with it. Whoever uses the model divides the logits by it, as"
                 " semisilo predict does.")
    return [_Section("Calibration", (_table("Calibration", columns, rows), _Text(text),
                                     _Picture("reliability.png", "Accuracy by confidence of the prediction")))]


def _cost(card: ModelCard) -> _Section:
    cost = card.cost
    rows = [("Payload", *_both(cost.payload_down, cost.payload_up), describe_share(cost.payload_share_of_dense))]
    if cost.wire_down is not None:
        rows += [("Messages", *_both(cost.message_down, cost.message_up), _DASH),
                 ("Wire, estimated" if cost.wire_estimated else "Wire", *_both(cost.wire_down, cost.wire_up),
                  describe_share(cost.wire_share_of_dense))]
    rows.append(("Dense, for comparison", *_both(cost.dense_down, cost.dense_up), "100 %"))
    return _Section("Cost", (
        _Text(f"Bytes up to the end of round {cost.up_to_round}: {cost.downloads} downloads, {cost.uploads}"
              f" accepted updates; a dense model has {describe_bytes(cost.dense_model)}."),
        _table("Cost", ("What", "Down", "Up", "Of dense"), tuple(rows))))


def _files(card: ModelCard) -> _Section:
    rows = tuple((name, describe_bytes(each.bytes), each.sha256) for name, each in card.files.items())
    blocks: list[_Text | _Table] = [_table("Files", ("File", "Size", "SHA-256"), rows, words=3)]
    onnx = card.onnx
    if onnx is not None:
        blocks.append(_Text(
            f"model.onnx: {onnx.input}; {onnx.output}. Normalisation is inside; class names and preprocessing are"
            f" in its metadata. Checked with onnx {onnx.versions['onnx']} and onnxruntime"
            f" {onnx.versions['onnxruntime']}, opset {onnx.opset}, on {onnx.images} {onnx.source} images,"
            f" one alone and in batches: the largest difference of a logit is {onnx.largest_difference:.3g}"
            f" (permitted: {onnx.absolute_tolerance:g} and {onnx.relative_tolerance:g} of the largest logit,"
            f" which is {onnx.largest_logit:.3g}); {onnx.same_predictions} of {onnx.images} predictions are"
            " the same."))
    return _Section("Files", tuple(blocks))


def _provenance(card: ModelCard) -> _Section:
    found = card.provenance
    rows = [("state sha256", found.state_sha256 or _DASH), ("settings sha256", found.settings_sha256),
            ("study file sha256", found.study_file_sha256 or _DASH)]
    for name, values in (("event chain", found.event_chain), ("numerics of training", found.numerics_of_training or {}),
                         ("numerics of this card", found.numerics_of_this_card), ("software", found.software)):
        rows += [(f"{name}: {key}", str(value)) for key, value in to_dict(values).items()]
    return _Section("Provenance", (_table("Provenance", ("What", "Value"), rows, words=2),))


def _settings(card: ModelCard) -> _Section:
    rows = tuple((f"[{table}]", key, value) for table, key, value in setting_rows(card.settings))
    return _Section("Settings", (_Text("All settings, as frozen when the study was queued; of an absolute path its last"
                                       " part:"),
                                 _table("Settings", ("Table", "Key", "Value"), rows, words=3)))


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> _Table:
    return _Table(Table(caption, columns, rows, words))


def _interval(value: Interval | None) -> str:
    return _DASH if value is None else describe_range(value.low, value.high)


def _counts(of: CardSilo | CardSilos) -> tuple[str, ...]:
    numbers = (of.labelled, of.unlabelled, of.updates, of.abstentions, of.refusals, of.late)
    return tuple(_DASH if number is None else str(number) for number in numbers)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def _both(down: int | None, up: int | None) -> tuple[str, str]:
    return _DASH if down is None else describe_bytes(down), _DASH if up is None else describe_bytes(up)


# Markdown -------------------------------------------------------------------------------------------------------------


def _md(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    line = " ".join(escape(text, quote=False).split())
    line = re.sub(r"([\\`*\[\]|~])", r"\\\1", line)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)  # within a word it means nothing


def _md_block(block: _Block) -> str:
    if isinstance(block, _Text):
        return _md(block.text)
    if isinstance(block, _Points):
        return "\n".join(f"- {_md(line)}" for line in block.lines)
    if isinstance(block, _Picture):
        return f"![{_md(block.text)}]({block.file})"
    table = block.content
    head = f"| {' | '.join(map(_md, table.columns))} |"
    rule = "|" + "|".join("---" if column < table.words else "---:" for column in range(len(table.columns))) + "|"
    return "\n".join([head, rule, *(f"| {' | '.join(map(_md, row))} |" for row in table.rows)])


def _round_of(model: CardModel) -> str:
    if model.chosen == LABELS_ALONE:
        return "none: labels alone, without silos"
    return f"{model.round} of {model.planned_rounds} ({model.chosen})"
