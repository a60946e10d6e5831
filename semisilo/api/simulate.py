"""Simulations from Python: one, several to compare, and those that are on disk. docs/python.md explains them.

Everything rests on `semisilo.simulation`: the same engine, bits and folders as `semisilo simulate`. Interrupted, the
same call goes on; what is finished is not run again. They work where an event loop runs already, as in a notebook.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from semisilo.api.progress import Shown, Watching, shown_for
from semisilo.api.results import Comparison, Run, read_run
from semisilo.api.setup import (
    ARRAYS_FOLDER,
    DataSource,
    DataSources,
    Method,
    Setup,
    Stored,
    check_labels_alike,
    check_tables,
    folder_name,
    in_words_of,
    labelled_methods,
    named_method,
    plain,
    stored,
)
from semisilo.common.config import canonical_json
from semisilo.common.data.readers import survey
from semisilo.common.errors import SemisiloError, UsageError
from semisilo.common.models.own.code_stamp import code_of_tables
from semisilo.common.models.own.given import Network
from semisilo.common.text.python_arguments import checked_folder, checked_path, checked_yes_or_no
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.settings import SimulatedStudy, check_names, load_simulated_study
from semisilo.simulation.simulate import DeviceName, EngineName
from semisilo.simulation.simulate import run as run_simulation

__all__ = ["compare", "load_run", "simulate"]


def simulate(study: Path | str | Mapping[str, Any] | None = None, *, data: DataSources | None = None,
             labelled: DataSource | None = None, unlabelled: DataSources | None = None,
             test: DataSource | None = None, method: Method = "self_training", silos: int = 10,
             split: str | Mapping[str, Any] = "iid", num_labelled: int | None = None,
             labelled_per_class: int | None = None, num_test: int | str | None = None,
             num_validation: int | str | None = None,
             rounds: int = 20, model: str | Mapping[str, Any] | Network = "small_cnn", image_size: int | None = None,
             tables: Mapping[str, Mapping[str, Any]] | None = None, seed: int | None = None,
             labelled_only: bool = True, out: Path | str | None = None, engine: EngineName = "processes",
             device: DeviceName = "auto", progress: bool = True) -> Run:
    """Runs a study with simulated silos, or goes on with it.

    Args:
        study: a study file with a table [simulation], its folder, or its tables; then what the file says is left out
            here: only seed, out, engine, device and progress may be given.
        data: what is dealt to the silos: a folder of class folders, an .npz file, "digits", (images, labels), or a
            torch.utils.data.Dataset of (image, label); a label of -1 is none. Or a list of these, what each site has:
            a silo for each.
        labelled: the coordinator's labelled images, all of them, likewise; with `unlabelled` in the place of `data`.
        unlabelled: what is dealt to the silos then, or a list likewise; it needs no labels, and those that it has are
            for diagnostics.
        test: labelled images to test on, likewise; left out: the test part of `data`, or else a fifth held out of it;
            beside `labelled` none.
        method: its name, or its name and settings as a dictionary.
        silos: how many; of a list as many as it has.
        split: the rule that deals the images, or the rule and its settings: {"name": "dirichlet_semifl",
            "dirichlet": 0.3}. Of a list "natural": a site keeps what it has.
        num_labelled: images with labels at the coordinator, in all.
        labelled_per_class: images with labels of each class at each silo. With both the labels are at both, unless the
            method's settings state another scenario; `split` says which silos have labels, and of how many classes:
            {"name": "iid", "labelled_silos": 2, "labelled_classes": 5}.
        num_test: images to hold out of `data` for testing, a number or a share such as "20%".
        num_validation: images to hold out for the coordinator's validation set, which chooses the round that is handed
            over and which some methods need.
        rounds: how many.
        model: a network's name, or the table [model]; or your own: a torch.nn.Module, which starts with the weights
            that it has, or a function or class that is called with num_classes, channels and size and makes one.
        image_size: side in pixels that images are brought to; left out: theirs, at most 64.
        tables: further settings of a study file, which go before all others: {"method": {"lr": 0.01}}.
        seed: of the split and of the study; left out: 1, or the study file's.
        labelled_only: whether the same network is trained on the coordinator's labels alone, as the baseline.
        out: folder of this simulation; left out: one of its own below `runs`, called by all these settings. Arrays and
            data sets are kept in `semisilo-arrays` beside it.
        engine: where silos train, with the same bits: "processes" of this machine (on an accelerator one), this one
            "process", or "ray" for a cluster.
        device: "auto" takes an accelerator where there is one.
        progress: whether to show a bar (a line at the end where there is no terminal and no notebook).
    Returns: the run, when all rounds are over.
    Raises: SemisiloError for what is wrong with settings, images or the folder, with a remedy.
    """
    seed = plain(seed, "seed")
    arguments: Mapping[str, str] = {}
    out = None if out is None else checked_folder(out, "out")
    labelled_only, progress = checked_yes_or_no(labelled_only, "labelled_only"), checked_yes_or_no(progress, "progress")
    if study is not None:
        given = [name for name, value, default in (
            ("data", data, None), ("labelled", labelled, None), ("unlabelled", unlabelled, None), ("test", test, None),
            ("method", method, "self_training"), ("silos", silos, 10),
            ("split", split, "iid"), ("num_labelled", num_labelled, None),
            ("labelled_per_class", labelled_per_class, None), ("num_test", num_test, None),
            ("num_validation", num_validation, None), ("rounds", rounds, 20),
            ("model", model, "small_cnn"), ("image_size", image_size, None), ("tables", tables, None),
            ("labelled_only", labelled_only, True)) if value is not default and not _equal(value, default)]
        if given:
            raise UsageError(f"{given[0]} has no effect beside a study, which says it itself.",
                             remedy="Leave it out, or leave the study out.")
        if not isinstance(study, (Mapping, str, Path)):
            raise UsageError(f"study = {str(study)[:80]}: is neither a path nor the tables of a study file.",
                             remedy='Write "study.toml", or give its tables as a dictionary.')
        source: Path | Mapping[str, Any]
        if isinstance(study, Mapping):
            source = tables_of = plain(study, "study")
            label = _method_of(tables_of)
        else:
            source = checked_path(study, "study")
            loaded = load_simulated_study(source)
            label = loaded.name
            tables_of = {"folder": str(loaded.folder), "tables": loaded.tables, "simulation": loaded.simulation,
                         **code_of_tables(loaded.tables)}
    else:
        check_tables(tables, seed="seed=7", method='method="semifl"')
        setup = _setup(_home(out) / ARRAYS_FOLDER, data=data, labelled=labelled, unlabelled=unlabelled, test=test,
                       silos=silos, split=split, num_labelled=num_labelled, labelled_per_class=labelled_per_class,
                       num_test=num_test, num_validation=num_validation, rounds=rounds, model=model,
                       image_size=image_size, tables=tables)
        chosen = named_method(method)
        label = chosen.name
        with in_words_of(setup.arguments):
            source = tables_of = setup.study(chosen, seed=1 if seed is None else seed, labelled_only=labelled_only)
        seed, arguments = None, setup.arguments
    folder = out if out is not None else Path("runs") / folder_name(
        label, {**tables_of, "with seed": seed, **code_of_tables(tables_of)})
    with _progress(progress) as shown, in_words_of(arguments):
        return _run(source, folder, label=label, seed=seed, engine=engine, device=device,
                    watching=Watching(shown, label, index=0, total=1))


def compare(methods: Sequence[Method] | Mapping[str, Method], *, data: DataSources | None = None,
            labelled: DataSource | None = None, unlabelled: DataSources | None = None, test: DataSource | None = None,
            seeds: Sequence[int] = (1,), silos: int = 10, split: str | Mapping[str, Any] = "iid",
            num_labelled: int | None = None, labelled_per_class: int | None = None,
            num_test: int | str | None = None, num_validation: int | str | None = None, rounds: int = 20,
            model: str | Mapping[str, Any] | Network = "small_cnn", image_size: int | None = None,
            tables: Mapping[str, Mapping[str, Any]] | None = None,
            labelled_only: bool = True, out: Path | str = "runs", engine: EngineName = "processes",
            device: DeviceName = "auto", progress: bool = True) -> Comparison:
    """Runs several methods on the same images with the same seeds: one simulation for each method and seed.

    A seed deals the same images to the same silos whatever the method. Interrupted, the same call goes on; with more
    methods or seeds it runs only these.
    Args:
        methods: names, or dictionaries of a name and settings; or label -> method, to compare one with other settings.
        seeds: each gives another split, other labelled images and other random numbers.
        labelled_only: whether the network is also trained on the labels alone, once for each seed: for as many steps
            as the method takes that looks at the most labelled images, whatever the order of the methods. Every run has
            this line, and may hand it over; a run that starts from labels alone has its own where it takes other steps.
            With a method more that looks at more of them, the runs that are over keep theirs to hand over, and all are
            compared with the new one.
        out: where the folders of the runs go, one for each, and `semisilo-arrays` for arrays and data sets.
        data, labelled, unlabelled, test, silos, split, num_labelled, labelled_per_class, num_test, num_validation,
            rounds, model, image_size,
            tables, engine, device, progress: as of `simulate`.
    Returns: all runs, method by method.
    Raises: SemisiloError for what is wrong with settings or images, with a remedy; runs that are over stay.
    """
    home = checked_folder(out, "out")
    labelled_only, progress = checked_yes_or_no(labelled_only, "labelled_only"), checked_yes_or_no(progress, "progress")
    wanted = labelled_methods(methods)
    seeds = plain(seeds, "seeds")
    if not isinstance(seeds, list) or not seeds or len(set(map(str, seeds))) != len(seeds):
        raise UsageError(f"seeds = {seeds!r}: must be a list of different numbers.", remedy="Write seeds=[1, 2, 3].")
    check_tables(tables, seed="seeds=[7]", method='methods=["semifl"]')
    setup = _setup(home / ARRAYS_FOLDER, data=data, labelled=labelled, unlabelled=unlabelled, test=test, silos=silos,
                   split=split, num_labelled=num_labelled, labelled_per_class=labelled_per_class, num_test=num_test,
                   num_validation=num_validation, rounds=rounds, model=model, image_size=image_size, tables=tables)
    plans = []
    with in_words_of(setup.arguments):
        seen = setup.seen()
        for label, method in wanted.items():
            for seed in seeds:
                study = setup.study(method, seed=seed, labelled_only=labelled_only, seen=seen)
                plans.append(_Plan(
                    label=label, seed=seed, study=study, images=_images_of(_check(study, label), setup),
                    folder=home / folder_name(f"{label}-seed-{seed}", {**study, **code_of_tables(study)})))
    runs: dict[tuple[str, int], Run] = {}
    trained: dict[str, Path] = {}
    with _progress(progress) as shown, in_words_of(setup.arguments):
        for index, plan in enumerate(_leaders_first(plans)):
            watching = Watching(shown, f"{plan.label}, seed {plan.seed}", index=index, total=len(plans))
            run = _run(plan.study, plan.folder, label=plan.label, seed=None, engine=engine, device=device,
                       watching=watching, labels_alone=trained.get(plan.labels))
            runs[plan.label, plan.seed] = run
            if run.labelled_only:
                trained.setdefault(plan.labels, plan.folder)
    return Comparison(runs=tuple(runs[plan.label, plan.seed] for plan in plans))


def load_run(folder: Path | str, *, study: str = "") -> Run:
    """What is on disk of a simulation, or of a federation's study, also while it runs.

    Args:
        folder: of a simulation, such as `runs/NAME`, or of a federation.
        study: of a federation; left out: its last one. A simulation has one.
    Raises: UsageError when the folder is neither; UnknownName when there is no such study.
    """
    root = checked_path(folder, "folder").absolute()
    if not isinstance(study, str):
        raise UsageError(f"study = {str(study)[:80]}: must be a name.", remedy='Write study="first", or leave it out.')
    simulation = SimulationFolder(root)
    simulated = simulation.record.exists()
    if not simulated and not (root / "federation.toml").is_file():
        raise UsageError(f"{root} holds no simulation and no federation.",
                         remedy="Name a folder such as runs/NAME, or one that `coordinator init` has made.")
    name = study or (simulation.read_record().study if simulated else "")
    ledger = Ledger(simulation.ledger)
    try:
        known = [row.name for row in ledger.studies()]
        if not known:
            raise UsageError(f"{root}: nothing has begun there.", remedy="Run it first.")
        return read_run(ledger, name or known[-1], root, simulated=simulated)
    finally:
        ledger.close()


def _setup(kept: Path, *, data: DataSources | None, labelled: DataSource | None, unlabelled: DataSources | None,
           test: DataSource | None, silos: int, split: str | Mapping[str, Any], num_labelled: int | None,
           labelled_per_class: int | None, num_test: int | str | None, num_validation: int | str | None, rounds: int,
           model: str | Mapping[str, Any] | Network, image_size: int | None,
           tables: Mapping[str, Mapping[str, Any]] | None) -> Setup:
    """What a simulation is made of; arrays and data sets become files of the folder `kept`.

    Raises: UsageError where it is not said which images there are, or said twice; BadData for arguments of which some
        name classes and some number them.
    """
    if data is not None and (labelled is not None or unlabelled is not None):
        raise UsageError("data has no effect beside labelled and unlabelled.",
                         remedy="Give data, of which some images are labelled; or labelled and unlabelled apart.")
    if (labelled is None) != (unlabelled is None):
        missing = "labelled" if labelled is None else "unlabelled"
        raise UsageError(f"{missing} is missing: labelled and unlabelled go together.",
                         remedy=f"Give {missing} as well, or data in the place of both.")
    dealt = data if unlabelled is None else unlabelled
    if dealt is None:
        raise UsageError("There are no images and no study.",
                         remedy='Give data="folder", or labelled and unlabelled; or a study file.')
    where, with_labels = ("data", True) if labelled is None else ("unlabelled", False)
    if isinstance(dealt, list) and not dealt:
        raise UsageError(f"{where} is empty.", remedy="Give a source for each site.")
    given: dict[str, Stored] = {}
    sources = {f"{where}[{number}]": site for number, site in enumerate(dealt)} if isinstance(dealt, list) else \
        {where: cast(DataSource, dealt)}
    for name, source in sources.items():
        given[name] = stored(source, kept, where=name, labelled=with_labels)
    for name, own in (("labelled", labelled), ("test", test)):
        if own is not None:
            given[name] = stored(own, kept, where=name)
    check_labels_alike(given)
    found = {name: each.source for name, each in given.items()}
    return Setup(
        data=found.get(where, ""), sites=tuple(found[name] for name in sources) if isinstance(dealt, list) else (),
        labelled=found.get("labelled", ""), test=found.get("test", ""), silos=silos, split=split,
        num_labelled=num_labelled, labelled_per_class=labelled_per_class, num_test=num_test,
        num_validation=num_validation, rounds=rounds, model=model, image_size=image_size,
        tables={} if tables is None else tables,
        arguments={each.source: name for name, each in reversed(given.items()) if each.own})


def _equal(value: object, default: object) -> bool:
    """Whether an argument was left out; arrays compare element by element, and are no default."""
    return isinstance(value, type(default)) and bool(value == default)


def _run(study: Path | Mapping[str, Any], folder: Path, *, label: str, seed: int | None, engine: EngineName,
         device: DeviceName, watching: Watching, labels_alone: Path | None = None) -> Run:
    result = run_simulation(study, out=folder, seed=seed, engine=engine, device=device, watcher=watching,
                            labels_alone=labels_alone)
    ledger = Ledger(result.folder / "ledger.sqlite", waits=False)
    try:
        return read_run(ledger, result.study, result.folder, label=label)
    finally:
        ledger.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """A run of a comparison."""

    label: str
    seed: int
    study: Mapping[str, Any]
    folder: Path
    images: int
    """Labelled images that its method looks at in all rounds: by them the strong line knows its steps."""

    @property
    def labels(self) -> str:
        """Equal for runs that have the same line: all their settings are, but the method's."""
        return canonical_json({name: table for name, table in self.study.items() if name != "method"})


def _leaders_first(plans: Sequence[_Plan]) -> list[_Plan]:
    """In an order in which each line is trained by the run that trains it longest; the others take it from that one."""
    leaders: dict[str, _Plan] = {}
    for plan in plans:
        if plan.labels not in leaders or plan.images > leaders[plan.labels].images:
            leaders[plan.labels] = plan
    return [*leaders.values(), *(plan for plan in plans if leaders[plan.labels] is not plan)]


def _images_of(study: SimulatedStudy, setup: Setup) -> int:
    from semisilo.coordinator.compute.strong_baseline import images_of_study  # torch, only now

    labelled = study.simulation.split.num_labelled or (survey(setup.labelled).num_images if setup.labelled else 0)
    return images_of_study(study.draft.method.settings, rounds=study.draft.study.rounds,
                           num_labelled=labelled if isinstance(labelled, int) else sum(labelled))


def _check(study: Mapping[str, Any], label: str) -> SimulatedStudy:
    """Looks at the settings of a run before the first one has begun."""
    try:
        loaded = load_simulated_study(study)
        check_names(loaded)
        return loaded
    except SemisiloError as error:
        raise type(error)(f"{label}: {error.text}", remedy=error.remedy) from None


@contextmanager
def _progress(wanted: bool) -> Iterator[Shown]:
    shown = shown_for(wanted)
    try:
        yield shown
    finally:
        shown.close()


def _home(out: Path | None) -> Path:
    """Beside what arrays are kept in a file: the folder of a simulation is its own alone."""
    return Path("runs") if out is None else out.absolute().parent


def _method_of(tables: Mapping[str, Any]) -> str:
    """The name of a study's method; what is wrong with its table is said by who reads it."""
    method = tables.get("method")
    return str(method.get("name", "study")) if isinstance(method, dict) else "study"
