"""Which images a silo works on: what the command names, else silo.toml, else those of the last time.

Tests: tests/silo/cli/test_main.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from semisilo.common.data.form import LABELLED, OnError
from semisilo.common.errors import BadData, UsageError
from semisilo.common.text.describe import counted
from semisilo.silo.site.home import JoinChoice, SiloHome, check_apart, home_option, resolve_source
from semisilo.silo.site.policy import DataPolicy

__all__ = ["OnError", "check_there", "choose_data", "labels_gone"]


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
    """Which images: the command's, else those of silo.toml, else those of the last time.

    Who names the images says which are labelled and which are for testing; the command may add to the others' choice.

    Args:
        example: how the command at hand is told which, for the remedy; {home} becomes its option, where it needs one.
    Raises: UsageError when none of them names any; BadData when two sources hold the same images.
    """
    last = JoinChoice.load(home.choice)
    here = Path.cwd()
    if data:
        choice = JoinChoice(source=resolve_source(data, base=here), on_error=policy.on_error)
    elif policy.source:
        source, its_labelled, its_test = (resolve_source(each, base=home.folder) if each else "" for each in (
            policy.source, policy.labelled, policy.test))
        choice = JoinChoice(source=source, labelled=its_labelled, test=its_test, on_error=policy.on_error)
    elif last is not None:
        choice = replace(last, on_error=policy.on_error)  # what a command said of broken files holds for once
    else:
        raise UsageError("No images were named.",
                         remedy=f"Say where they are: {example.format(home=home_option(home.folder))}")
    if labelled:
        choice = replace(choice, labelled=resolve_source(labelled, base=here))
    if test:
        choice = replace(choice, test=resolve_source(test, base=here))
    check_apart(choice)
    return replace(choice, on_error=on_error or choice.on_error, dicom=policy.dicom, patient=policy.patient,
                   formats=policy.formats, use_labels=choice.use_labels and policy.labels and not no_labels)


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
