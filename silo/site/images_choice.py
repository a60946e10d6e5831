"""Which images a silo works on: what the command names, else silo.toml, else the service, else those of the last time.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from semisilo.common.data.form import LABELLED, OnError
from semisilo.common.errors import BadData, UsageError
from semisilo.common.text.describe import counted
from semisilo.silo.site.home import JoinChoice, SiloHome, check_apart, home_option, resolve_source
from semisilo.silo.site.policy import DataPolicy

__all__ = ["SERVICE_IMAGES", "OnError", "check_there", "choose_data", "labels_gone", "overridden_source"]

SERVICE_IMAGES = "SEMISILO_IMAGES"
"""Where the images are that a service works on (unit, container, pod) while silo.toml names none. Not --data: that
would go before silo.toml, and what the hospital has written there would not hold."""


def check_there(choice: JoinChoice) -> None:
    """Whether the paths of a choice are there, before a process is started that would read them.

    Raises: BadData.
    """
    for source in choice.sources:
        path = Path(source.partition("#")[0])
        if path.is_absolute() and not path.exists():
            raise BadData(f"{source}: no such folder or file.", remedy="Give a folder of images, a .csv, .parquet or"
                          " .npz file, or digits; a folder on another machine must be mounted.")


def choose_data(home: SiloHome, policy: DataPolicy, *, data: str | None, labelled: str | None = None,
                test: str | None = None, no_labels: bool = False, on_error: OnError | None,
                example: str = "silo join{home} --data /scans") -> JoinChoice:
    """Which images: the command's, else those of silo.toml, else those of $SEMISILO_IMAGES, else of the last time.

    Which are labelled and which are for testing likewise; silo.toml says it also where the command names the source.

    Args:
        labelled: of the command; "" for none, whatever silo.toml says.
        test: likewise.
        example: how the command at hand is told which, for the remedy; {home} becomes its option, where it needs one.
    Raises: UsageError when none of them names any; BadData when two sources hold the same images.
    """
    last = JoinChoice.load(home.choice)
    here = Path.cwd()
    source, its_labelled, its_test = (resolve_source(each, base=home.folder) if each else "" for each in (
        policy.source, policy.labelled, policy.test))
    if data:
        source = resolve_source(data, base=here)
    elif not source and (of_service := os.environ.get(SERVICE_IMAGES, "")):
        source = resolve_source(of_service, base=here)
    if source:
        choice = JoinChoice(source=source, labelled=its_labelled, test=its_test, on_error=policy.on_error)
    elif last is not None:
        choice = replace(last, on_error=policy.on_error)  # what a command said of broken files holds for once
    else:
        raise UsageError("No images were named.",
                         remedy=f"Say where they are: {example.format(home=home_option(home.folder))}")
    if labelled is not None:
        choice = replace(choice, labelled=labelled and resolve_source(labelled, base=here))
    if test is not None:
        choice = replace(choice, test=test and resolve_source(test, base=here))
    try:
        check_apart(choice)
    except BadData as error:
        if data and policy.source:
            error.remedy = (f"[data] of {home.policy} says which images are labelled and which are for testing, also"
                            ' with --data: name the source there as well, or leave them out with --labelled "" --test'
                            ' "".')
        raise
    return replace(choice, on_error=on_error or choice.on_error, dicom=policy.dicom, patient=policy.patient,
                   formats=policy.formats, use_labels=choice.use_labels and policy.labels and not no_labels)


def overridden_source(home: SiloHome, policy: DataPolicy, choice: JoinChoice) -> str:
    """A line that the command has named other images than silo.toml; empty when it has not."""
    if not policy.source or choice.source == resolve_source(policy.source, base=home.folder):
        return ""
    return (f"the images are {choice.source}, as --data says, and not [data] source = \"{policy.source}\" of"
            f" {home.policy}, which `silo check` looks at")


def labels_gone(choice: JoinChoice, labelled: int, *, when: str) -> BadData:
    """The error where a source has no label any more: a share that is not mounted leaves an empty folder, and a silo
    that trains without its labels does not say so.

    Args:
        labelled: images that had a label.
        when: "when `silo join` began".
    """
    return BadData(f"{choice.source}: {counted(labelled, 'image')} had a label {when}, and none has now.",
                   remedy=f"Check that '{LABELLED}' or the class folders are mounted and filled. If the labels are gone"
                          " for good, restart with: silo join --no-labels")
