"""`semisilo new PROJECT`: a study to simulate, a script, and a place for the images.

Tests: tests/semisilo/starters/test_project.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from semisilo.simulation.settings import name_of
from semisilo.starters.folder import write_files

__all__ = ["new_project"]

_STUDY = """\
# A study with simulated silos: semisilo simulate study.toml
# Every key is explained in docs/study.md, [simulation] in docs/simulation.md.

[study]
rounds = 10

[model]
name = "small_cnn"                # or resnet18, or a file of your own: factory = "my_net.py:build" in the place of name

[data]
image = { size = 8, channels = 1, mean = "labelled", std = "labelled" }   # yours: size 64 or 224, 3 for colour

[augmentation]
policy = "small"
horizontal_flip = false           # true where a mirrored image is of the same class
without = ["Invert", "Solarize"]  # they make other pictures of digits than a pen can

[method]
name = "self_training"            # semisilo's own; semifl, fedmatch, fedavg, ...: docs/choosing.md

[simulation]
data = "digits"                   # yours: data = "data", a folder of class folders, or an .npz file
split = { name = "iid", silos = 3, num_labelled = 50 }
"""
_SCRIPT = '''\
"""Compares methods on the images of this project: python compare.py

The images are scikit-learn's digits until you put your own into the folder data and change DATA.
"""

import semisilo

DATA = "digits"  # yours: "data"


def main() -> None:
    comparison = semisilo.compare(
        methods=["self_training", {"name": "semifl", "coordinator_epochs": 40}],  # 40: for few labels
        data=DATA, silos=3, num_labelled=50, rounds=5, seeds=[1],
        tables={"augmentation": {"without": ["Invert", "Solarize"]}})  # for digits; leave it out for other images
    print(comparison)
    comparison.plot().savefig("comparison.png")
    for run in comparison.runs:
        print(f"{run.label}: {run.choice.text}")


if __name__ == "__main__":
    main()
'''
_DATA = """\
# Images

One folder for each class:

```
data/cat/0001.png
data/dog/0001.png
```

PNG, JPEG, TIFF, DICOM and NIfTI are read, as are tables (CSV, Parquet) and .npz files: docs/data.md. Then, in
`study.toml`:

- `[simulation] data = "data"`,
- `[data] image = { size = 64, channels = 3, mean = "labelled", std = "labelled" }`, with the size that you want,
- `num_labelled`: how many images keep their label, a multiple of the number of classes.

`semisilo split study.toml --out parts` shows how the images are dealt.
"""
_README = """\
# $name

```sh
semisilo simulate study.toml      # three simulated silos; a report in runs/$study
python compare.py                 # two methods side by side; a picture in comparison.png
```

Both run at once, on scikit-learn's digits. Put your own images into `data` ([how](data/README.md)).

With real hospitals: `semisilo split study.toml --out parts` writes the study's folder for the hub and a file for each
silo; docs/tutorial-one-machine.md goes on from there.
"""
_IGNORED = "runs/\nparts/\ncomparison.png\n__pycache__/\n"


def new_project(folder: Path) -> tuple[str, ...]:
    """Writes a project; returns the commands to go on with.

    Raises: UsageError when the folder is there already.
    """
    name = folder.resolve().name
    study = name_of(folder.resolve() / "study.toml")  # runs go below the current folder
    write_files(folder, {
        "study.toml": _STUDY, "compare.py": _SCRIPT, "data/README.md": _DATA, ".gitignore": _IGNORED,
        "README.md": _README.replace("$name", name).replace("$study", study)})
    return f"cd {shlex.quote(str(folder))}", "semisilo simulate study.toml", "python compare.py"
