"""From keyword settings and somebody's own images to the tables of a simulated study.

Tests: tests/semisilo/api/test_simulate.py.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import io
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from semisilo.common.config import canonical_json
from semisilo.common.data.datasets import SizedDataset, array_of, arrays_of_dataset, check_names, plain_labels
from semisilo.common.data.formats.registry import NPZ, has_suffix
from semisilo.common.data.readers import classes_of, parse_source, survey
from semisilo.common.errors import BadData, SemisiloError, UsageError
from semisilo.common.methods import Scenario, coordinator_has_labels, find_method, silos_have_labels
from semisilo.common.models.own.given import Network, give
from semisilo.common.models.own.model_file import digest_of_file, file_of
from semisilo.common.storage.durable import write_durably

__all__ = ["ARRAYS_FOLDER", "DataSource", "DataSources", "Method", "NamedMethod", "SeenImages", "Setup", "Stored",
           "check_labels_alike", "check_tables", "folder_name", "in_words_of", "labelled_methods", "named_method",
           "plain", "stored"]

Arrays = tuple[NDArray[Any], Sequence[Any] | NDArray[Any]]
DataSource = str | Path | Arrays | NDArray[Any] | SizedDataset
"""A folder of class folders, an .npz file, "digits" and whatever else a study reads; or (images, labels): uint8
(N, H, W) or (N, H, W, 3), and one label per image, numbers from 0 or names of classes; or a torch.utils.data.Dataset
of (image, label). Where no labels are needed, images alone."""
DataSources = DataSource | list[DataSource]
"""Images that a rule deals, or a list: what each site has."""

Method = str | Mapping[str, object]
"""A method's name, or its name and settings: {"name": "semifl", "confidence_threshold": 0.9}."""

ARRAYS_FOLDER = "semisilo-arrays"
"""Beside a simulation, for what is handed over as arrays: a name that no folder of images has."""
_ARRAYS_FOLDER_BEFORE = "data"
"""That of earlier versions."""
_SILOS, _SPLIT = 10, "iid"
"""Where nothing is said."""
_NATURAL = "natural"
_LARGEST_AUTOMATIC_SIZE = 64
_HELD_OUT = "20%"
"""For testing, where the images come without a test part."""


@dataclass(frozen=True, slots=True)
class NamedMethod:
    """A method that exists, with what is set of it."""

    name: str
    settings: Mapping[str, object]
    """Of [method], without the name."""


@dataclass(frozen=True, slots=True)
class SeenImages:
    """What is found of the images of a simulation before it begins."""

    size: int
    """Side that they are brought to, in pixels."""
    channels: Literal[1, 3]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a simulation is made of, besides method and seed. `simulate` and `compare` document each field; numbers may
    be NumPy's.

    Raises: UsageError for what cannot be a setting.
    """

    data: str = ""
    """A source that `semisilo.common.data.readers` reads; absolute, or a named set."""
    sites: tuple[str, ...] = ()
    """In the place of `data`: such a source of each silo."""
    test: str = ""
    silos: int = _SILOS
    split: str | Mapping[str, object] = _SPLIT
    num_labelled: int | None = None
    labelled_per_class: int | None = None
    num_test: int | str | None = None
    num_validation: int | str | None = None
    rounds: int = 20
    labelled: str = ""
    """The coordinator's own labelled images; `data` or `sites` are then the silos' alone."""
    model: str | Mapping[str, object] | Network = "small_cnn"
    image_size: int | None = None
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Files that arrays and data sets were stored as -> the argument that they were given as."""

    def __post_init__(self) -> None:
        for name in ("silos", "num_labelled", "labelled_per_class", "num_test", "num_validation", "rounds",
                     "image_size"):
            object.__setattr__(self, name, plain(getattr(self, name), name))
        if isinstance(self.image_size, (int, float)) and self.image_size < 1:
            raise UsageError(f"image_size = {self.image_size}: must be at least 1.",
                             remedy="Leave it out for the images' own size, at most 64.")
        if not isinstance(self.split, str):
            object.__setattr__(self, "split", _table(self.split, "split", 'Write split="iid", or {"name": "iid"}.'))
        if self.sites:
            self._take_sites()
        if isinstance(self.model, Mapping):
            object.__setattr__(self, "model", plain(self.model, "model"))
        object.__setattr__(self, "tables", _table(
            self.tables, "tables", 'Write tables={"participation": {"silos_per_round": 5}}.'))

    def _take_sites(self) -> None:
        """A silo for each, with the rule that leaves it what it has."""
        if self.silos not in (_SILOS, len(self.sites)):
            raise UsageError(f"silos = {self.silos}: there is a silo for each of the {len(self.sites)} sites.",
                             remedy="Leave it out.")
        if self.split == _SPLIT:
            object.__setattr__(self, "split", _NATURAL)
        name = self.split if isinstance(self.split, str) else self.split.get("name", _NATURAL)
        if name != _NATURAL:
            raise UsageError(f"split = {name}: deals one set; a list of sources says what each silo has.",
                             remedy="Leave it out, or give one source.")
        if not isinstance(self.split, str):
            object.__setattr__(self, "split", {"name": _NATURAL, **self.split})
        object.__setattr__(self, "silos", len(self.sites))

    def seen(self) -> SeenImages:
        """What is found of the images. Raises: BadData when they cannot be read."""
        found = [survey(source) for source in self.sites or (self.data,)]
        size = _automatic_size(_together(each.sizes for each in found)) if self.image_size is None else self.image_size
        # Colours of the coordinator's labels stay, as in a federation, whose form is that of these images.
        own = (survey(self.labelled),) if self.labelled else ()
        return SeenImages(size, max(each.channels for each in (*found, *own)))

    def study(self, method: NamedMethod, *, seed: int, labelled_only: bool,
              seen: SeenImages | None = None) -> dict[str, object]:
        """The tables of a study file with a method.

        Args:
            labelled_only: whether the same network is trained on the labels alone, where the coordinator has labels.
            seen: what `seen` has given, of several studies once.
        Raises: UsageError for settings that contradict each other; BadData when the images cannot be read.
        """
        scenario = self._scenario(method)
        at_coordinator = coordinator_has_labels(scenario)
        seen = self.seen() if seen is None else seen
        size, channels = seen.size, seen.channels
        # Of several sources, that is perhaps of several scanners.
        by_image = {"standardise": "image"} if self.labelled or self.sites else {}
        mean = "labelled" if at_coordinator else [0.5] * channels
        std = "labelled" if at_coordinator else [0.25] * channels
        tables: dict[str, Mapping[str, object]] = {
            "study": {"seed": seed, "rounds": self.rounds,
                      "labelled_only_baseline": bool(labelled_only) and at_coordinator},
            "model": {"name": self.model} if isinstance(self.model, str) else
            _with_file(self.model) if isinstance(self.model, Mapping) else {},
            "data": {"image": {"size": size, "channels": channels, "mean": mean, "std": std, **by_image}},
            "method": {"name": method.name, "scenario": scenario,
                       **{key: value for key, value in method.settings.items() if key != "scenario"}},
            "simulation": {**({"sites": list(self.sites)} if self.sites else {"data": self.data}),
                           **({"test": self.test} if self.test else {}),
                           **({"labelled": self.labelled} if self.labelled else {}),
                           "split": self._split(scenario)}}
        for name, keys in self.tables.items():
            if not isinstance(keys, Mapping):
                raise UsageError(f"tables: '{name}' must be a table of settings.",
                                 remedy='Write tables={"participation": {"silos_per_round": 5}}.')
            tables[name] = _merged(tables.get(name, {}), keys)
        if not isinstance(self.model, (str, Mapping)):
            tables["model"] = {**self._given(tables), **tables["model"]}
        return {name: copy.deepcopy(table) for name, table in tables.items()}

    def _given(self, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, object]:
        """[model] of a network that is handed over, once it was built for the study's images and looked at."""
        image = tables["data"]["image"]
        classes = tables["data"].get("classes") or classes_of((self.labelled,) if self.labelled else self.sites or
                                                              (self.data,))
        given = give(self.model, num_classes=len(classes), channels=image["channels"], size=image["size"])
        return {"name": given.name, "factory_sha256": given.sha256}

    def _scenario(self, method: NamedMethod) -> Scenario:
        """The one that the method's settings state, else that of the labels that are given."""
        given = method.settings.get("scenario")
        if self.labelled:
            if self.num_labelled is not None:
                raise UsageError("num_labelled has no effect beside labelled, which are the coordinator's images.",
                                 remedy="Leave it out.")
            if given is None:
                return "labels-at-coordinator" if self.labelled_per_class is None else "labels-at-both"
        if given is not None:
            return cast(Scenario, given)  # whether there is such a one, the study file's check says
        if self.num_labelled is not None:
            return "labels-at-coordinator" if self.labelled_per_class is None else "labels-at-both"
        if self.labelled_per_class is not None:
            return "labels-at-silo"
        raise UsageError("It is not said how many images have labels.",
                         remedy="Give num_labelled=50 for labels at the coordinator, or labelled_per_class=5 for labels"
                                " of each class at each silo; or both.")

    def _split(self, scenario: Scenario) -> dict[str, object]:
        """[simulation.split], with the amounts of labels that count in this scenario."""
        split: Mapping[str, object] = {"name": self.split} if isinstance(self.split, str) else self.split
        amounts = {"num_labelled": self.num_labelled if coordinator_has_labels(scenario) else None,
                   "labelled_per_class": self.labelled_per_class if silos_have_labels(scenario) else None}
        num_test = self.num_test
        if num_test is None and not self.test and not self.labelled and (self.sites or not _has_test_part(self.data)):
            num_test = _HELD_OUT
        given = {**amounts, "num_test": num_test, "num_validation": self.num_validation}
        return {"silos": self.silos, **{key: value for key, value in given.items() if value is not None}, **split}


def _with_file(model: Mapping[str, object]) -> dict[str, object]:
    """Table [model] with the digest of the file that it names, in the current folder: another file is another run."""
    file = file_of(str(model.get("factory", model.get("name", ""))))
    return {**model, "factory_sha256": digest_of_file(Path(file))} if file and "factory_sha256" not in model \
        else dict(model)


def check_tables(tables: object, *, seed: str, method: str) -> None:
    """Whether the tables of a call leave alone what its own arguments say: they go before these, so every seed and
    every method would be the same one under another name.

    Args:
        seed, method: how the call's own arguments are written, for errors.
    Raises: UsageError for [study] seed or [method] name.
    """
    for table, key, remedy in (("study", "seed", seed), ("method", "name", method)):
        keys = tables.get(table) if isinstance(tables, Mapping) else None
        if isinstance(keys, Mapping) and key in keys:
            raise UsageError(f"tables: [{table}] {key} would take the place of an argument of this call.",
                             remedy=f"Leave it out, and write {remedy}.")


def plain(value: Any, where: str) -> Any:
    """A setting in types that a study file has: numbers and lists of NumPy as Python's, paths as text.

    Args:
        where: the argument that it was given as, for errors.
    Raises: UsageError for what no study file can hold.
    """
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}: {key}") for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item, where) for item in value]
    raise UsageError(f"{where}: {' '.join(str(value)[:80].split())} ({type(value).__name__}) cannot be a setting.",
                     remedy="Give a number, a text, true or false, or a list or dictionary of them.")


def _table(value: object, where: str, remedy: str) -> dict[str, Any]:
    """A table of settings in plain types; {} for None. Raises: UsageError for what is no dictionary."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{where} = {str(value)[:80]}: must be a dictionary.", remedy=remedy)
    found: dict[str, Any] = plain(value or {}, where)
    return found


def named_method(method: Method) -> NamedMethod:
    """A method with its settings. Raises: UsageError without a name; UnknownName for a method that there is not."""
    name = method.get("name") if isinstance(method, Mapping) else method
    if not isinstance(name, str):
        raise UsageError(f"A method needs a name; {method!r} has none.",
                         remedy='Write "semifl" or {"name": "semifl", "local_epochs": 1}.')
    find_method(name)
    return NamedMethod(name, {} if isinstance(method, str) else
                       {key: value for key, value in plain(method, "method").items() if key != "name"})


def labelled_methods(methods: Sequence[Method] | Mapping[str, Method]) -> dict[str, NamedMethod]:
    """Label -> method; a method that has no label is called by its name.

    Raises: UsageError for none, or for two of one label.
    """
    if isinstance(methods, str):
        raise UsageError(f"methods = {methods!r}: must be a list.", remedy=f'Write methods=["{methods}"].')
    if not isinstance(methods, (Mapping, Sequence)):
        raise UsageError(f"methods = {methods!r}: must be a list.", remedy='Write methods=["fedavg", "semifl"].')
    pairs = [(label, named_method(method)) for label, method in methods.items()] if isinstance(methods, Mapping) else \
        [(method.name, method) for method in map(named_method, methods)]
    found: dict[str, NamedMethod] = {}
    for label, method in pairs:
        if label in found:
            raise UsageError(f"Two methods are called '{label}'.",
                             remedy='Give each a label: methods={"first": {...}, "second": {...}}.')
        found[str(label)] = method
    if not found:
        raise UsageError("There is no method to compare.", remedy='Write methods=["fedavg", "semifl"].')
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """Where the images of an argument are, and how their labels were given."""

    source: str
    labels: Literal["names", "numbers", ""] = ""
    """Empty where it is no matter of this call: of a path, of rows, of a data set that numbers classes and names them,
    and where there are none."""
    own: bool = False
    """Whether it is a file that this call has made, of arrays or a data set."""


@contextmanager
def in_words_of(arguments: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile errors name the argument that images were given as, not the file that was made of them, which nobody
    knows.

    Args:
        arguments: the path of a file -> the argument.
    Raises: what is raised meanwhile.
    """
    try:
        yield
    except SemisiloError as error:
        text = error.text
        for path, argument in arguments.items():
            text = text.replace(path, argument).replace(Path(path).name, argument)
        if text == error.text:
            raise
        raise type(error)(text, remedy=error.remedy) from None


def stored(data: DataSource, folder: Path, *, where: str = "data", labelled: bool = True) -> Stored:
    """The source of some images; arrays and data sets become a file of a folder, called by what is in it.

    Args:
        where: the argument that they were given as, for errors.
        labelled: whether they must have labels.
    Raises: BadData for arrays that are no images with labels.
    """
    if isinstance(data, str) and not data:
        raise BadData(f"{where}: is an empty text.", remedy='Give a folder, or "." for the current one.')
    if isinstance(data, (str, os.PathLike)):
        path, part = parse_source(str(data))
        if path is not None:
            _check_name(path, where)
        return Stored(str(data) if path is None else f"{path.absolute()}{f'#{part}' if part else ''}")
    classes: tuple[str, ...] = ()
    labels: NDArray[Any] | None
    by_name = False
    if isinstance(data, np.ndarray) and not labelled:
        images, labels = data, None
    elif isinstance(data, tuple) and len(data) == 2:
        images = array_of(data[0], what=f"{where}: the images")
        if data[1] is None and labelled:
            raise BadData(f"{where}: the labels are None.", remedy="Give one label per image.")
        labels = None if data[1] is None else plain_labels(array_of(data[1], what=f"{where}: the labels"))
        by_name = labels is not None and labels.dtype.kind in "US"
    elif isinstance(data, SizedDataset) and not isinstance(data, (tuple, list, dict, np.ndarray)):
        found = arrays_of_dataset(data, where=where, labelled=labelled)
        images, labels, classes, by_name = found.images, found.labels, found.classes, found.by_name
    else:
        raise BadData(f"{where}: is neither a path nor (images, labels) nor a torch.utils.data.Dataset.",
                      remedy='Give a folder, an .npz file, "digits", a pair of arrays, or a data set.')
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3)):
        raise BadData(f"{where}: the images are {images.dtype} of the shape {images.shape}.",
                      remedy="Give uint8 (N, H, W), or (N, H, W, 3) for colour.")
    arrays: dict[str, NDArray[Any]] = {"images": images}
    if labels is None or (not labelled and labels.dtype.kind == "i" and bool((labels == -1).all())):
        return Stored(_written(arrays, folder), own=True)
    arrays |= _label_arrays(labels, classes, len(images), where)
    by_number = arrays["labels"].ndim == 1 and not classes
    return Stored(_written(arrays, folder), "names" if by_name else "numbers" if by_number else "", own=True)


def _check_name(path: Path, where: str) -> None:
    """Raises: BadData for a path that no file can have, such as a text that is none."""
    try:
        path.lstat()
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise BadData(f"{where} = {str(path)[:80]}...: cannot be a path: {error.strerror}.",
                          remedy='Give a folder, an .npz file, "digits", a pair of arrays, or a data set.') from None
    except ValueError:  # a byte of zeros, about which whoever reads it complains
        pass


def check_labels_alike(given: Mapping[str, Stored]) -> None:
    """Whether all arguments of a call say classes in one way. Names get numbers in their own order, so numbers of
    another argument would be other classes.

    Args:
        given: by argument.
    Raises: BadData, naming two that differ.
    """
    first = {kind: next((where for where, each in given.items() if each.labels == kind), "")
             for kind in ("names", "numbers")}
    if all(first.values()):
        raise BadData(f"{first['names']} has names of classes, {first['numbers']} has numbers: which number is which"
                      " class is not said.", remedy="Give names in both, or numbers in both.")


def _label_arrays(labels: NDArray[Any], classes: tuple[str, ...], count: int, where: str) -> dict[str, NDArray[Any]]:
    """What a file says of the labels of `count` images: "labels", int64 (count,), or (count, K) where an image may have
    several or none; "classes" where they have names. Raises: BadData."""
    if labels.ndim == 2 and labels.shape[1] > 1 and len(labels) == count > 0 and bool(
            np.isin(labels, (-1, 0, 1)).all()):
        return {"labels": labels.astype(np.int64), **({"classes": np.array(classes)} if classes else {})}
    if labels.shape not in ((count,), (count, 1)) or count == 0:
        raise BadData(f"{where}: {count} images, and labels of the shape {labels.shape}.",
                      remedy="Give one label per image; or a row of 0 and 1, with tables={'study': {'task': "
                             "'multi_label'}}.")
    labels = labels.reshape(-1)
    if labels.dtype.kind in "US":
        check_names(labels.astype(str).tolist(), where=where)
        names, labels = np.unique(labels.astype(str), return_inverse=True)
        return {"labels": labels.astype(np.int64), "classes": names}
    if labels.dtype.kind not in "iub":
        raise BadData(f"{where}: the labels have the type {labels.dtype}.",
                      remedy="Give whole numbers from 0, -1 where there is none; or names.")
    if int(labels.max()) < 0:
        raise BadData(f"{where}: no image has a label: all are below 0.",
                      remedy="Give whole numbers from 0, -1 only where there is none.")
    return {"labels": labels.astype(np.int64), **({"classes": np.array(classes)} if classes else {})}


def _written(arrays: Mapping[str, NDArray[Any]], folder: Path) -> str:
    """The path of a file of these arrays, called by what is in it; where an earlier version has written it, that one,
    so that its run goes on."""
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    name = f"{hashlib.sha256(stream.getvalue()).hexdigest()[:16]}.npz"
    path, before = folder / name, folder.with_name(_ARRAYS_FOLDER_BEFORE) / name
    if before.exists():
        return str(before.absolute())
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(path, stream.getvalue())
    return str(path.absolute())


def folder_name(label: str, tables: Mapping[str, object]) -> str:
    """Of a run: other settings have another folder, so that none is mistaken for another and each can go on."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", label).strip("-_")[:40] or "run"
    content = canonical_json(tables).encode("utf-8", "surrogatepass")  # a folder's name may be no UTF-8
    return f"{plain}-{hashlib.sha256(content).hexdigest()[:10]}"


def _merged(table: Mapping[str, object], keys: Mapping[str, object]) -> dict[str, object]:
    result = dict(table)
    for key, value in keys.items():
        before = result.get(key)
        result[key] = _merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return result


def _has_test_part(data: str) -> bool:
    """What is wrong with a file is said by who reads it."""
    path, _ = parse_source(data)
    if path is None:
        return True  # a named set
    if not has_suffix(path, NPZ):
        return False
    try:
        with np.load(path, allow_pickle=False) as archive:
            return "test_images" in archive.files
    except (OSError, ValueError):
        return False


def _together(sizes: Iterable[Mapping[tuple[int, int], int]]) -> dict[tuple[int, int], int]:
    """How many images of each size there are, the most first."""
    total: Counter[tuple[int, int]] = Counter()
    for each in sizes:
        total.update(each)
    return dict(total.most_common())


def _automatic_size(sizes: Mapping[tuple[int, int], int]) -> int:
    """The longer side of most images, at most 64: larger ones take long, and are somebody's choice."""
    if not sizes:
        return _LARGEST_AUTOMATIC_SIZE
    return min(_LARGEST_AUTOMATIC_SIZE, max(next(iter(sizes))))
