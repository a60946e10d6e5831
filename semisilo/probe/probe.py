"""Trains a site's update again and again as a study would have it, and attacks what would leave: `semisilo probe`.

Killed at any moment, the same call goes on: what every trained update and every reconstruction gave is a file of its
own in the output folder, under a digest of all that it follows from.

Shapes: U updates, N images.

Tests: tests/semisilo/probe/test_probe.py.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semisilo.common import __version__
from semisilo.common.config import canonical_json
from semisilo.common.errors import BadConfiguration, UsageError
from semisilo.common.learning import tensors
from semisilo.common.learning.batch_norm import OneValuePerChannel
from semisilo.common.learning.seeds import numpy_generator, torch_generator
from semisilo.common.learning.training import loaded_model
from semisilo.common.measures.intervals import wilson
from semisilo.common.numerics.numerics import left_as_it_was
from semisilo.common.process.turns import one_simulation
from semisilo.common.storage.durable import without_waiting, write_durably
from semisilo.common.text.describe import counted, describe_seconds
from semisilo.probe.asked import asked_of_silos
from semisilo.probe.inversion import best_matches, classification_gradient, invert, mean_of_trials
from semisilo.probe.membership import (
    Measured,
    allowed_area,
    allowed_hits,
    attacked,
    confidence_logits,
    halves,
    likelihood_ratios,
    of_replacement,
)
from semisilo.probe.pictures import write_pictures
from semisilo.probe.result import (
    FEWEST_TRIALS,
    RECOVERED,
    HitsFound,
    InversionFound,
    MembershipFound,
    ProbeResult,
    View,
)
from semisilo.probe.settings import ProbeSettings, Protection, protections
from semisilo.probe.updates import Leaving, SiloAtWork, averaged, images_of_round
from semisilo.simulation.dealing import deal_study
from semisilo.simulation.folder import SimulationFolder
from semisilo.simulation.settings import SimulatedStudy

__all__ = ["ProbeWatcher", "probe"]

_RATES = (0.001, 0.01, 0.1)
"""False-positive rates."""
_TRIED = 5
"""Steps of a search that are timed, after one that pays for what is made once."""
_FIRST_INVERTED = 100_000
"""Number of the first training whose update is inverted: its noise is of its own."""


class ProbeWatcher:
    """Told what happens; this one says nothing."""

    def step(self, text: str) -> None:
        """A line about what is done next."""

    def progress(self, fraction: float, text: str) -> None:
        """How far all of it is, 0 to 1, and what is being done."""


def probe(study: SimulatedStudy, *, out: Path, settings: ProbeSettings,
          device: Literal["auto", "cpu", "cuda"] = "auto", watcher: ProbeWatcher | None = None) -> ProbeResult:
    """Attacks what a site would send in a study; writes `result.json` and pictures into a folder, and sends nothing.

    Args:
        study: as `semisilo.probe.settings.load_probed_study` gives it.
        out: folder of this probe; made when missing, and stays.
    Raises: SemisiloError for what is wrong with settings, images or the folder, and for what a silo would refuse the
        task with.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("There is no accelerator that torch can use.", remedy="Choose --device cpu.")
    out = out.absolute()
    began = time.monotonic()
    watcher = watcher or ProbeWatcher()
    with one_simulation(lambda: watcher.step("waiting for a simulation of this process")), without_waiting(), \
            left_as_it_was(), _workshop(out) as scratch:
        working = _Probe(study, out, scratch, settings, device="" if device == "auto" else device, watcher=watcher)
        found = working.run(began)
    write_durably(out / "result.json", found.to_json().encode())
    return found


@contextmanager
def _workshop(out: Path) -> Iterator[Path]:
    """A folder for what need not stay, while nobody else probes here."""
    if out.is_dir() and any(out.iterdir()) and not (out / "lock").exists():
        raise UsageError(f"{out} is not empty, and holds no probe.", remedy="Choose another --out.")
    with SimulationFolder(out).lock():
        for left in out.glob("scratch-*"):  # of a call that was killed
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=out))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """A protection, the site under it, and whom it is averaged with."""

    protection: Protection
    site: SiloAtWork
    others: tuple[SiloAtWork, ...]
    round: int
    delta: float | None

    @property
    def digest(self) -> str:
        """SHA-256, hex, of all that updates follow from."""
        return hashlib.sha256("\0".join(each.digest for each in (self.site, *self.others)).encode()).hexdigest()

    @property
    def views(self) -> tuple[tuple[View, int], ...]:
        """What is attacked, with how many silos are in it."""
        return (("own", 1), *((("average", 1 + len(self.others)),) if self.others else ()))


class _Probe:
    """One call of `probe`."""

    def __init__(self, study: SimulatedStudy, out: Path, scratch: Path, settings: ProbeSettings, *, device: str,
                 watcher: ProbeWatcher) -> None:
        self._study, self._out, self._scratch, self._settings = study, out, scratch, settings
        self._device, self._watcher = device, watcher
        self._notes: list[str] = []
        self._spent, self._planned = 0.0, 1.0

    def run(self, began: float) -> ProbeResult:
        """See `probe`."""
        scenes = [self._scene(each) for each in protections(self._study, self._settings.epsilons)]
        site = scenes[0].site
        pool = self._pool(site)
        self._forecast(scenes, pool)
        membership = [found for scene in scenes for found in self._membership(scene, pool)]
        inversion = [found for scene in scenes for found in self._inversion(scene, pool)]
        pictures = self._out / "pictures"
        return ProbeResult(
            study=self._study.name, method=site.task.method, model=site.task.model.name, site=site.name,
            round=scenes[0].round, images=len(pool), seed=self._settings.seed, seconds=time.monotonic() - began,
            membership=tuple(membership), inversion=tuple(inversion),
            pictures=str(pictures) if self._settings.pictures and inversion else "", notes=tuple(self._notes),
            version=__version__)

    # What is asked ----------------------------------------------------------------------------------------------------

    def _scene(self, protection: Protection) -> _Scene:
        """The tasks of a round under a protection, from the coordinator's own engine."""
        settings = self._settings
        self._watcher.step("dealing images to silos" if protection.name == "plain"
                           else f"the same with differential privacy: {protection.text}")
        dealt = deal_study(protection.study)
        name = settings.silo or dealt.silos[0]
        if name not in dealt.silos:
            raise UsageError(f"There is no silo '{name}'; there are {dealt.silos[0]} to {dealt.silos[-1]}.",
                             remedy=f"Choose --silo {dealt.silos[0]}.")
        of = hashlib.sha256(canonical_json({"images": dealt.digest(), "tables": dealt.tables, "silo": name,
                                            "round": settings.round, "version": __version__}).encode()).hexdigest()
        asked = asyncio.run(asked_of_silos(
            dealt, SimulationFolder(self._out / "study" / f"{protection.name}-{of[:12]}"), site=name,
            round=settings.round, device=self._device, progress=self._watcher.progress))
        images = dealt.silos_images()
        at_work = {silo: SiloAtWork(
            request, images_of_round(images[dealt.silos.index(silo)], round=request.task.round),
            scratch=self._scratch, seed=settings.seed, device=self._device)
            for silo, request in asked.items() if silo == name or (settings.others and protection.name == "plain")}
        site = at_work.pop(name)
        others = tuple(at_work.values()) if "sigma" not in site.received else ()
        if at_work and not others:
            self._notes.append(f"{site.spec.name} averages no whole models: what the coordinator sees of a silo is its"
                               " own.")
        elif others and not site.spec.summed:
            self._notes.append(f"The updates of {site.spec.name} cannot be added up behind masks: the average is what"
                               " other silos see of it, and the coordinator sees every single update.")
        dp = protection.study.draft.privacy.dp
        return _Scene(protection=protection, site=site, others=others, round=site.task.round,
                      delta=None if dp is None else dp.delta)

    def _pool(self, site: SiloAtWork) -> NDArray[np.int64]:
        """The images of the site that are used, as indices: an even number of labelled and of unlabelled ones.

        Raises: BadConfiguration where there are fewer than four.
        """
        sizes = [0 if each is None else len(each) for each in (site.images.labelled, site.images.unlabelled)]
        share = min(1.0, self._settings.images / sum(sizes)) if self._settings.images else 1.0
        generator = numpy_generator(self._settings.seed, "probe_images", silo=site.name)
        parts, start = [], 0
        for size in sizes:
            kept = round(size * share) // 2 * 2
            parts.append(np.sort(generator.permutation(size)[:kept]) + start)
            start += size
        pool = np.concatenate(parts)
        if len(pool) < 4:
            raise BadConfiguration(f"{site.name} has {counted(sum(sizes), 'image')}: too few to leave half out.",
                                   remedy="Choose another --silo, or deal the images to fewer silos.")
        if self._settings.images and len(pool) < sum(sizes):
            self._notes.append(f"{len(pool)} of the site's {sum(sizes)} images were used; with all of them an update"
                               " gives less away of each.")
        return pool.astype(np.int64)

    def _members(self, site: SiloAtWork, pool: NDArray[np.int64], pairs: int, *, purpose: str) -> NDArray[np.bool_]:
        """Which images of the pool each update is trained on, (2 pairs, N): half of the labelled, and of the others.

        Drawn pair by pair, so that more of them begin with the same ones.
        """
        first = 0 if site.images.labelled is None else len(site.images.labelled)
        generator = numpy_generator(self._settings.seed, purpose, silo=site.name)
        labelled = int((pool < first).sum())
        return np.concatenate([np.concatenate([halves(size, 1, generator=generator)
                                               for size in (labelled, len(pool) - labelled)], axis=1)
                               for _ in range(pairs)])

    # How long it takes ------------------------------------------------------------------------------------------------

    def _forecast(self, scenes: list[_Scene], pool: NDArray[np.int64]) -> None:
        """Tries one update of each kind, so that what is refused is refused at once; says how long the rest takes."""
        settings, total, updates, searches = self._settings, 0.0, 0, 0
        self._seconds: dict[str, float] = {}
        for scene in scenes:
            trained = sum(not self._updates(scene, pool, number).exists() for number in range(settings.shadows))
            left = sum(not self._reconstruction(scene, pool, view, number).exists()
                       for view, _ in scene.views for number in range(settings.reconstructions))
            if trained or left:
                self._try(scene, pool)
                each, search = self._seconds[scene.protection.name], self._seconds[f"search {scene.protection.name}"]
                total += trained * each + left * (search + each)
                updates, searches = updates + trained * (1 + len(scene.others)), searches + left
        self._planned = max(total, 1e-9)
        work = " and ".join(text for number, text in (
            (updates, f"{counted(updates, 'update')} to train"), (searches, f"{counted(searches, 'update')} to invert"))
            if number)
        self._watcher.step(f"{work}: about {describe_seconds(total)}" if total else "everything was done before")

    def _try(self, scene: _Scene, pool: NDArray[np.int64]) -> None:
        """Measures what an update with those of the others takes, and a search."""
        settings = self._settings
        half = pool[self._members(scene.site, pool, 1, purpose="probe_trial")[0]]
        scene.site.update(half, number=0)  # the first one pays for what is made once: the network, the noise's size
        began = time.monotonic()
        leaving = scene.site.update(half, number=0)
        self._seconds[scene.protection.name] = (time.monotonic() - began) * (1 + len(scene.others))
        for iterations in (1, _TRIED) if settings.reconstructions and leaving.change is not None else ():
            began = time.monotonic()
            self._search(scene.site, leaving.change, half, number=0, iterations=iterations, restarts=1)
        self._seconds[f"search {scene.protection.name}"] = (
            (time.monotonic() - began) / _TRIED * settings.iterations * settings.restarts)

    def _tell(self, text: str, seconds: float = 0.0) -> None:
        self._spent += seconds
        self._watcher.progress(min(1.0, self._spent / self._planned), text)

    # Membership -------------------------------------------------------------------------------------------------------

    def _updates(self, scene: _Scene, pool: NDArray[np.int64], number: int) -> Path:
        """The file of what an update of the membership attack gave."""
        of = _named("membership", scene.digest, pool.tolist(), self._settings.seed)
        return self._out / "updates" / f"{scene.protection.name}-{of}" / f"{number:05d}.json"

    def _membership(self, scene: _Scene, pool: NDArray[np.int64]) -> list[MembershipFound]:
        settings = self._settings
        if not settings.shadows:
            return []
        members_UN = self._members(scene.site, pool, settings.shadows // 2, purpose="probe_members")
        kept = []
        for number in range(settings.shadows):
            path = self._updates(scene, pool, number)
            found = _read(path)
            if found is None:
                found = self._scores(scene, pool, pool[members_UN[number]], number)
                _write(path, found)
                self._tell(f"update {number + 1} of {settings.shadows}{_behind(scene)}",
                           self._seconds[scene.protection.name])
            kept.append(found)
        abstained = sum(found["abstained"] for found in kept)
        epsilon = max(found["epsilon"] for found in kept) if scene.delta is not None else None
        results = []
        for view, silos in scene.views:
            scores_UN = np.array([found[view] for found in kept])
            what = attacked(likelihood_ratios(scores_UN, members_UN), members_UN, rates=_RATES,
                            generator=numpy_generator(settings.seed, "probe_bootstrap"))
            allowed = None
            if epsilon is not None and scene.delta is not None:
                allowed = of_replacement(epsilon, scene.delta)
            results.append(MembershipFound(
                view=view, silos=silos, protection=scene.protection.text, area=what.area, updates=settings.shadows,
                hits=tuple(HitsFound(
                    false_positive_rate=rate, true_positive_rate=measured,
                    allowed=None if allowed is None else allowed_hits(rate, epsilon=allowed[0], delta=allowed[1]))
                    for rate, measured in what.hits),
                abstained=abstained, images=len(pool), epsilon=epsilon, delta=scene.delta,
                allowed_area=None if allowed is None else allowed_area(epsilon=allowed[0], delta=allowed[1])))
        return results

    def _scores(self, scene: _Scene, pool: NDArray[np.int64], members: NDArray[np.int64],
                number: int) -> dict[str, Any]:
        """How sure the model of an update is of every image of the pool, in each view."""
        own = scene.site.update(members, number=number + 1)
        found: dict[str, Any] = {"abstained": int(own.change is None), "epsilon": own.epsilon}
        for view, _ in scene.views:
            change = own.change if view == "own" else self._average(scene, own, number + 1)
            scores_N = confidence_logits(scene.site.logits(change), scene.site.labels)[pool]
            found[view] = [float(score) for score in scores_N]
        return found

    def _average(self, scene: _Scene, own: Leaving, number: int) -> dict[str, Any] | None:
        """The site's update among those of the others, each of them trained on a random half of its own images."""
        updates = [own]
        for other in scene.others:
            sizes = [0 if each is None else len(each) for each in (other.images.labelled, other.images.unlabelled)]
            generator = numpy_generator(self._settings.seed, "probe_others", round=number, silo=other.name)
            chosen = np.concatenate([np.sort(generator.permutation(size)[:(size + 1) // 2]) + start
                                     for size, start in zip(sizes, (0, sizes[0]), strict=True)])
            updates.append(other.update(chosen, number=number))
        return averaged(updates, scene.site.settings)

    # Inversion --------------------------------------------------------------------------------------------------------

    def _reconstruction(self, scene: _Scene, pool: NDArray[np.int64], view: View, number: int) -> Path:
        """The file of what an inverted update gave."""
        settings = self._settings
        of = _named("inversion", scene.digest, pool.tolist(), settings.seed, settings.searched, settings.restarts,
                    settings.iterations, settings.pictures)
        return self._out / "reconstructions" / f"{scene.protection.name}-{view}-{of}" / f"{number:05d}.json"

    def _inversion(self, scene: _Scene, pool: NDArray[np.int64]) -> list[InversionFound]:
        settings, results = self._settings, []
        for view, silos in scene.views if settings.reconstructions else ():
            kept = []
            for number in range(settings.reconstructions):
                path = self._reconstruction(scene, pool, view, number)
                found = _read(path)
                if found is None:
                    found = self._inverted(scene, pool, view, number)
                    _write(path, found)
                    self._tell("", self._seconds[scene.protection.name])
                kept.append(found)
            there = [found for found in kept if "cosine" in found]

            def mean(name: str, less: str = "", *, there: list[dict[str, Any]] = there) -> Measured | None:
                values = [found[name] - (found[less] if less else 0.0) for found in there]
                return mean_of_trials(values) if len(values) >= FEWEST_TRIALS else None

            def share(name: str, *, there: list[dict[str, Any]] = there) -> Measured | None:
                images = sum(found["trained_on"] for found in there)
                shown = round(sum(found[name] * found["trained_on"] for found in there))
                reach = wilson(shown, images)
                return None if reach is None else Measured(shown / images, reach.low, reach.high)

            results.append(InversionFound(
                view=view, silos=silos, protection=scene.protection.text, trials=len(there),
                trained_on=kept[0]["trained_on"], searched=kept[0]["searched"], abstained=len(kept) - len(there),
                cosine=float(np.mean([found["cosine"] for found in there])) if there else 0.0,
                seen_psnr=mean("seen_psnr"), unseen_psnr=mean("unseen_psnr"),
                gain_psnr=mean("seen_psnr", "unseen_psnr"),
                seen_correlation=mean("seen_correlation"), unseen_correlation=mean("unseen_correlation"),
                gain_correlation=mean("seen_correlation", "unseen_correlation"),
                seen_recovered=share("seen_recovered"), unseen_recovered=share("unseen_recovered")))
        return results

    def _inverted(self, scene: _Scene, pool: NDArray[np.int64], view: View, number: int) -> dict[str, Any]:
        """One update, what was found of it, and how near that comes to images in it and to as many others."""
        site = scene.site
        seen, unseen = self._trained_on(site, pool, number)
        own = site.update(seen, number=_FIRST_INVERTED + number)
        change = own.change if view == "own" else self._average(scene, own, _FIRST_INVERTED + number)
        facts = {"trained_on": len(seen), "searched": min(len(seen), self._settings.searched)}
        if change is None or not tensors.norm(change):
            return facts
        text = f"reconstruction {number + 1} of {self._settings.reconstructions}{_behind(scene)}"
        spent, whole = self._spent, self._seconds[f"search {scene.protection.name}"]

        def tell(share: float) -> None:
            self._spent = spent + share * whole
            self._tell(text)

        found = self._search(site, change, seen, number=number, iterations=self._settings.iterations,
                             restarts=self._settings.restarts, progress=tell)
        self._spent = spent + whole
        images_NCSS = site.pool.images_NCHW.float() / 255
        result: dict[str, Any] = {**facts, "cosine": found.cosine}
        for name, indices in (("seen", seen), ("unseen", unseen)):
            psnr_N, correlation_N, best_N = best_matches(found.images_BCSS, images_NCSS[torch.from_numpy(indices)])
            result |= {f"{name}_psnr": float(psnr_N.mean()), f"{name}_correlation": float(correlation_N.mean()),
                       f"{name}_recovered": float((correlation_N >= RECOVERED).float().mean())}
            if name == "seen" and self._settings.pictures:
                protection = scene.protection.name
                write_pictures(self._out / "pictures" / f"{protection}-{view}-{number:03d}.png",
                               images_NCSS[torch.from_numpy(indices)], found.images_BCSS[best_N], psnr_N)
        return result

    def _trained_on(self, site: SiloAtWork, pool: NDArray[np.int64],
                    number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Images that an update is trained on, and as many that it is not.

        Half of the pool each; of a method that sends the gradient of one batch, those of a batch, and others of the
        same classes as far as there are.
        """
        member_N = self._members(site, pool, self._settings.reconstructions, purpose="probe_inverted")[2 * number]
        seen, unseen = pool[member_N], pool[~member_N]
        if "gradient" not in site.spec.up:
            return seen, unseen
        first = 0 if site.images.labelled is None else len(site.images.labelled)
        generator = numpy_generator(self._settings.seed, "probe_batch", round=number, silo=site.name)
        parts = [generator.permutation(each)[:batch] for each, batch in (
            (seen[seen < first], site.settings.labelled_batch), (seen[seen >= first], site.settings.unlabelled_batch))]
        batch = np.sort(np.concatenate(parts))
        left, alike = list(generator.permutation(unseen)), []
        for index in batch:
            same = [each for each in left if site.labels[each] == site.labels[index]] or left
            alike.append(same[0])
            left.remove(same[0])
        return batch, np.array(alike, dtype=np.int64)

    def _search(self, site: SiloAtWork, change: dict[str, Any] | Any, seen: NDArray[np.int64], *, number: int,
                iterations: int, restarts: int, progress: Callable[[float], None] | None = None) -> Any:
        """Images whose gradient points against the change that an update makes."""
        settings, task = self._settings, site.task
        chosen = np.sort(numpy_generator(settings.seed, "probe_labels", round=number).permutation(seen)
                         [:settings.searched])
        names = list(change)
        model = loaded_model(site.build, site.base, seed=task.seed, round=task.round, silo=task.silo,
                             device=site.device)
        gradient_of = classification_gradient(model, site.base, torch.from_numpy(site.labels[chosen]).to(site.device),
                                              names=names, form=task.image)
        try:
            return invert(gradient_of, [-change[name].to(site.device) for name in names],
                          shape=(len(chosen), task.image.channels, task.image.size, task.image.size),
                          iterations=iterations, restarts=restarts,
                          generator=torch_generator(settings.seed, "probe_search", round=number), progress=progress)
        except OneValuePerChannel:
            raise UsageError("A batch-norm layer sees one value per channel of one image: nothing can be searched for.",
                             remedy="Choose a larger --searched, or leave inversion out with --reconstructions 0."
                             ) from None


def _behind(scene: _Scene) -> str:
    return f", {scene.protection.text}" if scene.protection.text else ""


def _named(*content: object) -> str:
    return hashlib.sha256(canonical_json([__version__, *content]).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any] | None:
    """What was kept; None where there is nothing that can be read, which is then made again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(found).encode())
