"""Methods of others are found by their entry points, lazily, and a broken one says whose it is and what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from semisilo.common.errors import BadConfiguration, UnknownName
from semisilo.common.methods import METHODS, find_method, plugins
from semisilo.common.methods.builtin import BUILT_IN
from semisilo.common.methods.plugins import find_plugin, load_half, plugin_names
from semisilo.coordinator.strategies import load_strategy
from semisilo.coordinator.studies.study_file import config_from_dict
from semisilo.silo.trainers import load_trainer
from tests.plugin_kit import HALVES, METHOD, install, on_the_module_path

ROOT = Path(__file__).resolve().parents[3]

@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on the module path."""
    with on_the_module_path(tmp_path) as folder:
        yield folder


def test_an_installed_plug_in_is_found_by_both_sides(site: Path) -> None:
    install(site)
    assert "gossip" in plugin_names()
    assert find_method("gossip").metrics == ("chatter",)
    assert load_strategy("gossip").__qualname__ == "Strategy"
    assert load_trainer("gossip").__qualname__ == "Trainer"


def test_finding_a_plug_in_imports_neither_half(site: Path) -> None:
    install(site, halves="raise RuntimeError('a light process must not come here')\n")
    assert find_plugin("gossip").strategy == "gossip_plugin_halves:Strategy"
    assert "gossip_plugin_halves" not in sys.modules


def test_asking_for_names_imports_nothing_of_a_plug_in(site: Path) -> None:
    install(site, method="raise RuntimeError('not yet')\n")
    assert "gossip" in plugin_names()
    assert "gossip_plugin" not in sys.modules


def test_a_built_in_method_is_found_without_looking_at_what_is_installed() -> None:
    code = ("import sys; from semisilo.common.methods import find_method; find_method('semifl');"
            " assert 'semisilo.common.methods.plugins' not in sys.modules")
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_plug_in_cannot_take_the_name_of_a_built_in_method(site: Path) -> None:
    install(site, name="semifl")
    assert "semifl" not in plugin_names()
    assert find_method("semifl") is METHODS["semifl"]
    assert load_strategy("semifl").__module__ == "semisilo.coordinator.strategies.semifl"
    assert load_trainer("semifl").__module__ == "semisilo.silo.trainers.semifl"


def test_an_unknown_method_is_refused_with_all_names_built_in_and_installed(site: Path) -> None:
    install(site)
    for look in (find_method, load_strategy, load_trainer):
        with pytest.raises(UnknownName, match="'gosip'") as caught:
            look("gosip")
        assert caught.value.remedy.startswith("Did you mean 'gossip'? Methods: ")
        assert "semifl" in caught.value.remedy


@pytest.mark.parametrize(("method", "words"), [
    ("import nothing_like_this\n", "nothing_like_this"),
    ("raise ValueError('too old')\n", "too old"),
    ("OTHER = 1\n", "PLUGIN"),
    ("PLUGIN = {'name': 'gossip'}\n", "dict"),
    (METHOD.format(name="whisper", module="gossip_plugin"), "whisper"),
    (METHOD.format(name="gossip", module="gossip_plugin").replace("scenario:", "place:"), "scenario"),
    (METHOD.format(name="gossip", module="gossip_plugin").replace("settings=Settings", "settings=int"), "scenario"),
    (METHOD.format(name="gossip", module="gossip_plugin").replace("_halves:Trainer", "_halves.Trainer"), "trainer"),
    (METHOD.format(name="gossip", module="gossip_plugin").replace("spec=MethodSpec(", "spec=dict("), "MethodSpec"),
])
def test_a_broken_plug_in_is_named_with_its_package_and_what_is_wrong(site: Path, method: str, words: str) -> None:
    install(site, method=method)
    with pytest.raises(BadConfiguration, match="'gossip'") as caught:
        find_method("gossip")
    assert "gossip-method 2.1" in caught.value.text
    assert words in caught.value.text


@pytest.mark.parametrize(("field", "words"), [
    ("x: set = field(default_factory=set)", "its setting x: set = set() cannot be sent as JSON"),
    ("x: list[int] = field(default_factory=list)", "its setting x: list[int] = [] cannot be sent as JSON"),
    ("x: float = float('inf')", "its setting x: float = inf cannot be sent as JSON"),
    ("x: complex = 1j", "its setting x: complex = 1j cannot be sent as JSON"),
    ("x: 'Unknown' = 3", "the types of its settings cannot be read: NameError: name 'Unknown' is not defined")])
def test_settings_that_cannot_travel_are_refused_where_the_method_is_described(site: Path, field: str, words: str
                                                                               ) -> None:
    install(site, method="from dataclasses import field\n" + METHOD.format(
        name="gossip", module="gossip_plugin").replace("strength: float", f"{field}\n    strength: float"))
    with pytest.raises(BadConfiguration, match="'gossip'") as caught:
        find_method("gossip")
    assert words in caught.value.text


@pytest.mark.parametrize("field", [
    "x: int", "x: Path = Path('a')", "x: Literal['a', 'b'] = 'a'", "x: tuple[float, ...] = (1.0, 2.0)",
    "x: int | None = None", "x: dict[str, int] = field(default_factory=dict)", "x: float = 1"])
def test_settings_of_other_types_are_taken(site: Path, field: str) -> None:
    install(site, method="from dataclasses import field\nfrom pathlib import Path\nfrom typing import Literal\n"
            + METHOD.format(name="gossip", module="gossip_plugin").replace("strength: float",
                                                                           f"{field}\n    strength: float"))
    assert find_method("gossip").name == "gossip"


def test_what_a_plug_in_prints_where_it_is_imported_is_in_no_commands_output(
        site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON of a command that names the method could not be read."""
    install(site, method="print('welcome')\n" + METHOD.format(name="gossip", module="gossip_plugin"))
    find_method("gossip")
    assert capsys.readouterr() == ("", "welcome\n")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_settings_of_built_in_methods_can_travel(name: str) -> None:
    assert plugins._trouble_of_settings(METHODS[name].settings) == ""


def test_a_number_that_is_not_finite_is_refused_in_a_study_of_a_plug_in(site: Path) -> None:
    install(site)
    tables = {"data": {"image": {"size": 8, "channels": 1}, "labelled": "l.npz"},
              "method": {"name": "gossip", "strength": float("nan")}}
    with pytest.raises(BadConfiguration, match=r"\[method\]: these settings cannot be sent"):
        config_from_dict(tables, where="study.toml")


@pytest.mark.parametrize("halves", ["import nothing_like_this\n", "class Strategy:\n    pass\n",
                                    "Strategy = Trainer = 1\n"])
def test_a_broken_half_is_named_when_it_is_loaded_and_not_before(site: Path, halves: str) -> None:
    install(site, halves=halves)
    find_method("gossip")
    with pytest.raises(BadConfiguration, match="gossip_plugin_halves:Trainer"):
        load_half("gossip", "trainer")


@pytest.mark.parametrize(("half", "old", "new", "words"), [
    ("strategy", "def finish(", "def end(", "has no function finish(state, phase, tally, *, round)"),
    ("strategy", "def begin(self, state, phase, headers, *, round)", "def begin(self, state, phase, headers)",
     "cannot be called as begin(state, phase, headers, *, round): it has begin(self, state, phase, headers)"),
    ("strategy", "def phases(self, state, round)", "def phases(self, state)",
     "cannot be called as phases(state, round)"),
    ("strategy", "def fold(", "fold = 3\n    def folding(", "has no function fold(state, tally, header, groups, kept)"),
    ("strategy", "    State = State\n", "", "has no State, the dataclass of what it keeps"),
    ("strategy", "    State = State\n", "    State = dict\n", "has as State, of what it keeps, no dataclass"),
    ("strategy", "    State = State\n", "    State = State\n    SiloState = dict\n",
     "has as SiloState, of what it keeps"),
    ("strategy", "def __init__(self, settings, environment)", "def __init__(self, settings)",
     "cannot be built as Strategy(settings, environment)"),
    ("strategy", "class Strategy:", "from semisilo.common.methods.contract import Strategy as Base\n"
     "class Strategy(Base):\n    def finish(self, state, phase, tally, *, round):\n        return state\n"
     "    def model(self, state):\n        return {}, {}\nclass Rest:", "has no function start(initial)"),
    ("trainer", "def train(", "def training(", "has no function train(task, data, memory)"),
    ("trainer", "def train(self, task, data, memory)", "def train(self, task, data)",
     "cannot be called as train(task, data, memory): it has train(self, task, data)"),
    ("trainer", "    Memory = type(None)\n", "", "has no Memory, the dataclass of what it keeps"),
    ("trainer", "    Memory = type(None)\n", "    def __init__(self, settings):\n        pass\n",
     "cannot be built as Trainer()"),
])
def test_a_half_that_lacks_something_is_refused_when_it_is_loaded(
        site: Path, half: Literal["strategy", "trainer"], old: str, new: str, words: str) -> None:
    """A study would end with it when silos have trained."""
    install(site, halves=HALVES)
    assert load_half("gossip", half).__name__ == half.capitalize()
    assert old in HALVES
    (site / "gossip_plugin_halves.py").write_text(HALVES.replace(old, new))
    del sys.modules["gossip_plugin_halves"]
    with pytest.raises(BadConfiguration) as caught:
        load_half("gossip", half)
    assert f"gossip_plugin_halves:{half.capitalize()}' of the method plug-in 'gossip' {words}" in caught.value.text


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_halves_of_built_in_methods_have_what_those_of_plug_ins_must_have(name: str) -> None:
    for half in ("strategy", "trainer"):
        assert plugins._trouble_of_half(half, load_half(name, half)) == ""


@pytest.mark.parametrize("load", [load_strategy, load_trainer])
def test_what_a_half_sets_where_it_is_imported_ends_with_it(site: Path, load: Callable[[str], type]) -> None:
    """It is imported once in a process: the first task after a restart would be trained with other threads."""
    import torch

    install(site, halves="import torch\ntorch.manual_seed(5)\ntorch.set_num_threads(2)\n"
                         "torch.set_default_dtype(torch.float64)\n" + HALVES)
    torch.set_num_threads(1)
    generator = torch.get_rng_state()
    try:
        load("gossip")
        assert (torch.get_num_threads(), torch.get_default_dtype()) == (1, torch.float32)
        assert torch.equal(torch.get_rng_state(), generator)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)


@pytest.mark.parametrize(("ends", "says"), [
    ("import sys\nsys.exit(2)\n", "SystemExit: 2"),  # as argparse does at a command line that is not a script's own
    ("raise KeyboardInterrupt\n", "KeyboardInterrupt")])
@pytest.mark.parametrize("where", ["description", "half"])
def test_a_plug_in_that_ends_the_process_is_named_as_one_that_raises(site: Path, where: str, ends: str, says: str
                                                                     ) -> None:
    if where == "half":
        install(site, halves=ends)
        with pytest.raises(BadConfiguration, match=f"'gossip' cannot be imported: {says}"):
            load_strategy("gossip")
    else:
        install(site, method=ends)
        with pytest.raises(BadConfiguration, match=rf"gossip-method 2\.1 cannot be imported: {says}"):
            find_plugin("gossip")


def test_two_packages_that_offer_the_same_method_are_refused(site: Path) -> None:
    install(site)
    install(site, module="other_plugin", package="other-method")
    with pytest.raises(BadConfiguration, match=r"gossip-method 2\.1, other-method 2\.1"):
        find_method("gossip")


def test_a_plug_in_whose_description_brings_torch_is_refused_in_a_light_process(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")  # found before torch itself, which takes seconds to import
    install(tmp_path, method="import torch\n" + METHOD.format(name="gossip", module="gossip_plugin"))
    code = ("import sys; sys.path.insert(0, sys.argv[1])\n"
            "from semisilo.common.errors import BadConfiguration\nfrom semisilo.common.methods import find_method\n"
            "try:\n    find_method('gossip')\nexcept BadConfiguration as error:\n    print(error.text)\n")
    run = subprocess.run([sys.executable, "-P", "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                         check=True)
    assert "imports torch" in run.stdout


@pytest.mark.parametrize(("line", "words"), [
    ("from common.exchange import Meaning\n", "Import semisilo.common.methods.contract instead of common.exchange"),
    ("from common import tensors\n", "common is now semisilo.common"),
    ("import coordinator.engine\n", "coordinator is now semisilo.coordinator"),
])
def test_a_plug_in_written_to_the_old_import_names_is_told_the_new_ones(site: Path, line: str, words: str) -> None:
    install(site, method=line + METHOD.format(name="gossip", module="gossip_plugin"))
    with pytest.raises(BadConfiguration, match="'gossip'") as caught:
        find_method("gossip")
    assert words in caught.value.remedy


def test_a_half_written_to_the_old_import_names_is_told_the_new_ones(site: Path) -> None:
    install(site, halves="from common.training import train_labelled\n")
    with pytest.raises(BadConfiguration, match="gossip_plugin_halves:Trainer") as caught:
        load_half("gossip", "trainer")
    assert "Import semisilo.common.learning.training instead of common.training" in caught.value.remedy
