"""The documentation says what is there: commands, settings with their defaults, error codes, links."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from benchmarks.demo import run as demo
from benchmarks.learning.cells import CELLS, LABELS_ALONE, OURS
from benchmarks.learning.results import read_table
from semisilo.common import __version__
from semisilo.common.config import to_dict
from semisilo.common.data.form import AugmentationSettings, Reading
from semisilo.common.data.split_settings import SplitSettings
from semisilo.common.errors import SemisiloError, by_code
from semisilo.common.methods import METHODS
from semisilo.common.methods.contract import ModelSettings
from semisilo.common.methods.numerics import Numerics
from semisilo.common.methods.parts.privacy import DifferentialPrivacy, PrivacySettings
from semisilo.common.methods.parts.robust import RobustSettings
from semisilo.common.methods.spec import PSEUDO_LABEL_METRICS
from semisilo.coordinator.federation.alerts_table import AlertSettings
from semisilo.coordinator.federation.backup import LAST_BACKUP
from semisilo.coordinator.federation.folder import (
    AddressSettings,
    FederationConfig,
    FederationSettings,
    LimitSettings,
    PageSettings,
    create_federation,
)
from semisilo.coordinator.federation.tracking_table import TrackingSettings
from semisilo.coordinator.ledger.records import LABELS_ALONE_FILE, LABELS_ALONE_MODEL, NOISE_KEY, START_FILE
from semisilo.coordinator.studies.simulation_table import SimulationSettings
from semisilo.coordinator.studies.study_file import (
    AugmentationTable,
    DataSettings,
    ImageSettings,
    ParticipationSettings,
    StudyConfig,
    StudySettings,
    WireSettings,
)
from semisilo.demo.demo import DemoSettings
from semisilo.silo.site.policy import (
    DataPolicy,
    Limits,
    MetricsSettings,
    Permit,
    Policy,
    PrivacyPolicy,
    Require,
    policy_text,
)
from semisilo.silo.site.working_hours import Hours
from tests.command_lines import SCRIPTS, commands_of, problem_of
from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.md")])
STUDY, METHOD_PAGE, SIMULATION, FEDERATION, ERRORS = (
    ROOT / "docs" / name for name in ("study.md", "methods.md", "simulation.md", "federation.md", "errors.md"))
METHOD_PAGES = {name: ROOT / "docs" / "methods" / f"{name}.md" for name in METHODS}
DATA = ROOT / "docs" / "data.md"
_SCRIPT = re.compile(rf"(?:{'|'.join(SCRIPTS)})(?= )")
_BEFORE = re.compile(r'^(\$ )?(runuser -u \w+ -- )?(env \w+=\S+ )?(/opt/semisilo/bin/|\.venv/bin/|"\$SEMISILO_BIN"/)?')
"""What may stand before a command: a prompt, another user, a variable, a folder."""

SECTIONS: list[tuple[Path, str, str, type]] = [
    (STUDY, "", "[study]", StudySettings),
    (STUDY, "", "[model]", ModelSettings),
    (STUDY, "", "[data]", DataSettings),
    (STUDY, "", "[data] image", ImageSettings),
    (DATA, "", "Reading: what a file does not say of itself", Reading),
    (STUDY, "", "[augmentation]", AugmentationTable),
    (STUDY, "", "[participation]", ParticipationSettings),
    (STUDY, "", "[wire]", WireSettings),
    (STUDY, "", "[robust]", RobustSettings),
    (STUDY, "", "[privacy]", PrivacySettings),
    (STUDY, "", "[privacy.dp]", DifferentialPrivacy),
    (STUDY, "", "[numerics]", Numerics),
    *((METHOD_PAGES[spec.name], "Reference", "Settings", spec.settings) for spec in METHODS.values()),
    (SIMULATION, "", "[simulation]", SimulationSettings),
    (SIMULATION, "", "[simulation.split]", SplitSettings),
    (FEDERATION, "federation.toml", "[federation]", FederationSettings),
    (FEDERATION, "federation.toml", "[address]", AddressSettings),
    (FEDERATION, "federation.toml", "[limits]", LimitSettings),
    (FEDERATION, "federation.toml", "[page]", PageSettings),
    (FEDERATION, "federation.toml", "[alerts]", AlertSettings),
    (FEDERATION, "federation.toml", "[tracking]", TrackingSettings),
    (FEDERATION, "silo.toml", "[permit]", Permit),
    (FEDERATION, "silo.toml", "[data]", DataPolicy),
    (FEDERATION, "silo.toml", "[limits]", Limits),
    (FEDERATION, "silo.toml", "[privacy]", PrivacyPolicy),
    (FEDERATION, "silo.toml", "[require]", Require),
    (FEDERATION, "silo.toml", "[hours]", Hours),
    (FEDERATION, "silo.toml", "[metrics]", MetricsSettings),
]
"""(page, heading above, heading, dataclass): each field is a row of the table under that heading."""

ELSEWHERE = {(ModelSettings, "classes"): "Class names (`classes`) belong in `[data]`."}
"""Fields that are no keys of that table for a person, and the sentence of the page that says so."""

IN_WORDS = {(AddressSettings, "enrollment"), (Permit, "methods"), (Permit, "groups"), (Permit, "metrics"),
            (Permit, "factories"), (Permit, "model_files")}
"""Fields whose default cannot be written as one value."""


def rows_under(text: str, parent: str, heading: str) -> dict[str, list[str]]:
    """Rows of the tables between a heading and the next one, first cell without backticks -> the other cells."""
    found: dict[str, list[str]] = {}
    above = current = ""
    for line in text.splitlines():
        if match := re.match(r"(#+) (.*)", line):
            above = match[2] if len(match[1]) <= 2 else above
            current = match[2]
        elif current == heading and parent in ("", above) and line.startswith("| `"):
            first, *rest = (cell.strip() for cell in line.strip("| ").split(" | "))
            found[first.strip("`")] = rest
    return found


def _commands_in(text: str) -> Iterator[str]:
    """Every command line of ours in code: inline, or in a block for a shell."""
    outside = []
    for number, part in enumerate(re.split(r"^```", text, flags=re.MULTILINE)):
        if number % 2 == 0:
            outside.append(part)
            continue
        language, _, body = part.partition("\n")
        if language.strip() in ("sh", "bash", "console"):
            for line in body.splitlines():
                for piece in re.split(r"&&|\||;", re.sub(r"\s+#.*", "", line)):
                    command = re.sub(r" [<>] \S+$", "", _BEFORE.sub("", piece.strip()))  # a file of the shell's
                    if _SCRIPT.match(command):
                        yield command
    for code in re.findall(r"`([^`\n]+)`", "".join(outside)):
        if _SCRIPT.match(code):
            yield code


def _pages() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def _error_codes() -> dict[str, str]:
    """Code -> file, of every class of the catalogue and of every one that a side defines for itself."""
    codes = {}
    for package in ("common", "coordinator", "silo", "semisilo"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if re.search(r"^ +code\b", text, re.MULTILINE) is None:
                continue  # no attribute of that name: parsing all files takes over a second
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.bases:
                    for name in _class_codes(node):
                        codes[name] = str(path.relative_to(ROOT))
    return codes


def _class_codes(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and name.id == "code" and isinstance(value, ast.Constant):
                        yield str(value.value)


# Commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_is_documented(script: str) -> None:
    mentioned = {tuple(shlex.split(command)[:2]) for page in PAGES
                 for command in _commands_in(page.read_text(encoding="utf-8"))}
    commands = commands_of(script)
    assert commands
    assert [name for name in commands if (script, name) not in mentioned] == []


@each_of("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_is_accepted_by_the_real_parser(page: Path) -> None:
    problems = {}
    for command in set(_commands_in(page.read_text(encoding="utf-8"))):
        words = shlex.split(command)
        # A mention of two words names a command, without what it needs to run.
        exists = len(words) == 2 and words[1] in commands_of(words[0])
        if not exists and (problem := problem_of(words)):
            problems[command] = problem
    assert problems == {}


def test_the_readme_has_the_first_commands_of_both_sides() -> None:
    commands = set(_commands_in((ROOT / "README.md").read_text(encoding="utf-8")))
    words = {tuple(shlex.split(command)[:2]) for command in commands}
    assert words >= {("coordinator", "init"), ("coordinator", "serve"), ("coordinator", "invite"), ("silo", "enroll"),
                     ("silo", "join"), ("coordinator", "status"), ("coordinator", "report"), ("semisilo", "demo")}


def test_every_make_target_in_the_pages_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"help", "setup", "demo", "test", "test-all", "lint", "protos"} <= targets
    mentioned = set(re.findall(r"(?:^|`)make ([a-z-]+)", _pages(), re.MULTILINE))
    assert {"demo", "test"} <= mentioned <= targets


# Settings -------------------------------------------------------------------------------------------------------------


@each_of(("page", "parent", "heading", "settings"), SECTIONS,
                         ids=lambda value: getattr(value, "__name__", None))
def test_every_setting_is_documented_with_its_default(page: Path, parent: str, heading: str, settings: Any) -> None:
    text = page.read_text(encoding="utf-8")
    rows = rows_under(text, parent, heading)
    fields = {field.name: field for field in dataclasses.fields(settings)}
    elsewhere = {name for name in fields if (settings, name) in ELSEWHERE}
    assert set(rows) == set(fields) - elsewhere
    assert all(ELSEWHERE[settings, name] in text for name in elsewhere)
    for name, (default, meaning, *_) in rows.items():
        field = fields[name]
        assert len(meaning) > 10, name
        if (settings, name) in IN_WORDS:
            continue
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required or field.default is None:
            assert default == ("required" if required else "left out"), name
            continue
        real = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        written = re.match(r"`([^`]+)`", default)
        assert written is not None, f"{name}: the default must be a value in backticks"
        assert tomllib.loads(f"value = {written[1]}")["value"] == to_dict(real), name


def test_every_table_of_the_configuration_files_has_its_section() -> None:
    covered = {settings for *_, settings in SECTIONS}
    for config in (StudyConfig, FederationConfig, Policy):
        hints = {field.name: field.type for field in dataclasses.fields(config)}
        module = importlib.import_module(config.__module__)
        for name, hint in hints.items():
            if name not in ("method", "peers"):  # settings of methods are listed one by one; peers have names as keys
                assert getattr(module, str(hint)) in covered, f"{config.__name__}.{name}"


def test_the_control_a_missing_row_and_a_wrong_default_are_noticed() -> None:
    text = "## [study]\n\n| key | default | meaning |\n|---|---|---|\n| `seed` | `2` | Every random number. |\n"
    rows = rows_under(text, "", "[study]")
    assert set(rows) == {"seed"} != {field.name for field in dataclasses.fields(StudySettings)}
    assert tomllib.loads(f"value = {rows['seed'][0].strip('`')}")["value"] != StudySettings().seed


def test_the_example_of_a_simulated_study_is_dealt() -> None:
    from semisilo.simulation.dealing import deal_study
    from semisilo.simulation.settings import load_simulated_study

    text = SIMULATION.read_text(encoding="utf-8")
    example, sites = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(deal_study(load_simulated_study(tomllib.loads(example))).silos) == 20
    tables = tomllib.loads(example)
    tables["simulation"] = tomllib.loads(sites)["simulation"]
    assert load_simulated_study(tables).simulation.split.silos == 3


def test_the_example_study_of_the_page_is_accepted() -> None:
    from semisilo.coordinator.studies.study_file import config_from_dict

    (example,) = re.findall(r"^```toml\n(.*?)^```", STUDY.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert config_from_dict(tomllib.loads(example), where="docs/study.md").study.start_with == 3


def test_every_network_augmentation_and_split_is_in_its_table() -> None:
    from semisilo.common.data.split_settings import SplitName
    from semisilo.common.models.factory import model_names
    from semisilo.common.models.libraries.torchvision_models import torchvision_names

    study, simulation = (page.read_text(encoding="utf-8") for page in (STUDY, SIMULATION))
    networks = {name for cell in rows_under(study, "", "Networks") for name in cell.split("`, `")}
    assert networks == set(model_names()) - set(torchvision_names())
    assert set(rows_under(study, "", "Policies")) == set(get_args(get_type_hints(AugmentationSettings)["policy"]))
    assert set(rows_under(simulation, "", "The rules")) == set(get_args(SplitName))


def test_every_method_is_explained_and_what_it_sends_is_listed() -> None:
    text = METHOD_PAGE.read_text(encoding="utf-8")
    table = text.partition("## The methods")[2].partition("\n## ")[0]
    assert re.findall(r"^\| \[`(\w+)`\]\(methods/(\w+)\.md\) \|", table, re.MULTILINE) == [(name, name) for name in
                                                                                     re.findall(r"\[`(\w+)`\]", table)]
    assert set(re.findall(r"\[`(\w+)`\]", table)) == set(METHODS)
    for name, page in METHOD_PAGES.items():
        by_hand = page.read_text(encoding="utf-8").partition("\n## Reference\n")[0]
        assert f'`[method] name = "{name}"`' in by_hand
        assert {"When to choose it", "What travels"} <= set(re.findall(r"^## (.*)$", by_hand, re.MULTILINE)), name
    listed = {name for cell in rows_under(text, "", "What travels") for name in cell.split("`, `")}
    assert listed == set(METHODS)
    choosing = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    assert [name for name in METHODS if f"`{name}`" not in choosing] == []


def test_the_numbers_that_every_method_may_report_are_explained() -> None:
    numbers = {name for cell in rows_under(METHOD_PAGE.read_text(encoding="utf-8"), "", "Diagnostics")
               for name in cell.split("`, `")}
    assert {name.replace("/*", "/LABEL") for name in PSEUDO_LABEL_METRICS} <= numbers
    assert {"accuracy", "balanced_accuracy", "recall/CLASS", "labelled_accuracy", "local_accuracy"} <= numbers


# Errors ---------------------------------------------------------------------------------------------------------------


def test_every_error_code_is_documented_with_a_remedy() -> None:
    documented = {code: cells for line in ERRORS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
                  for code, *cells in [[cell.strip(" `") for cell in line.strip("| ").split(" | ")]]}
    codes = _error_codes()
    assert len(codes) > 20
    assert set(documented) == set(codes)
    assert all(len(cells) == 2 and all(len(cell) > 10 for cell in cells) for cells in documented.values())


def test_every_documented_error_code_that_travels_is_known_to_the_receiver() -> None:
    crossing = ERRORS.read_text(encoding="utf-8").partition("These never cross the network")[0]
    for code in re.findall(r"^\| `([A-Z_]+)`", crossing, re.MULTILINE):
        assert by_code(code).code == code
    assert by_code("NO_SUCH_CODE") is SemisiloError


# Links ----------------------------------------------------------------------------------------------------------------


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@each_of("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), target
        if ROOT / "docs" in page.parents:  # the site is built of docs/ alone, and strictly
            assert (ROOT / "docs") in linked.parents, f"{target}: say where it is in the repository, without a link"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, target


def test_the_pages_that_a_newcomer_looks_for_are_there_and_say_something() -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs/architecture.md",
                 "docs/study.md", "docs/federation.md", "docs/errors.md", "docs/decisions/README.md"):
        assert (ROOT / name).stat().st_size > 300, name


def test_every_test_that_the_threat_model_names_exists_and_every_threat_has_one() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    exist = set(re.findall(r"def (test_\w+)", tests))
    rows = re.findall(r"^\| (?!what \||---)(.*) \|$", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"),
                      re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        what, defence, named, _ = (cell.strip() for cell in row.split(" | ")) if row.count(" | ") == 3 else \
            (*(cell.strip() for cell in row.split(" | ")), "")
        found = re.findall(r"`(\w+)`", named)
        assert found or defence.startswith("none"), what
        assert set(found) <= exist, what


def test_every_test_and_file_that_the_page_on_secure_aggregation_names_exists() -> None:
    page = (ROOT / "docs" / "secure-aggregation.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 20
    assert named <= set(re.findall(r"def (test_\w+)", tests))
    assert [path for path in re.findall(r"`([\w/]+/[\w.]+\.(?:py|md))`", page) if not (ROOT / path).exists()] == []


def test_every_path_in_a_command_of_the_page_of_faults_exists() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    paths = re.findall(r"tests/[\w/]+\.py", page)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_decision_is_listed_and_says_context_choice_alternatives_and_evidence() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path for path in folder.glob("*.md") if path.name != "README.md")
    assert [page.name[:4] for page in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    index, rows = (folder / "README.md").read_text(encoding="utf-8"), list[str]()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        title = re.match(rf"# {page.name[:4]}:? (.*)\n", text)
        assert title, page.name
        rows.append(f"| [{page.name[:4]}]({page.name}) | {title[1]} |")
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert {"Context", "Choice", "Rejected", "Evidence"} <= set(headings), page.name
    assert re.findall(r"^\| \[.*$", index, re.MULTILINE) == rows, "in this order, with the titles of the pages"


@pytest.mark.parametrize(("name", "tables"), [
    ("silo.toml", {"permit": Permit, "data": DataPolicy, "limits": Limits, "privacy": PrivacyPolicy, "hours": Hours,
                   "require": Require, "metrics": MetricsSettings}),
    ("federation.toml", {"federation": FederationSettings, "address": AddressSettings, "limits": LimitSettings,
                         "page": PageSettings, "alerts": AlertSettings, "tracking": TrackingSettings})])
def test_a_file_that_is_written_to_be_edited_has_every_key(name: str, tables: dict[str, type], tmp_path: Path) -> None:
    text = policy_text() if name == "silo.toml" else (create_federation(
        tmp_path / "lung", name="lung", address="hub.example:8443").folder / name).read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if heading := re.fullmatch(r"(?:# )?\[(\w+)\]", line):
            keys = found.setdefault(heading[1], set())
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            keys.add(key[1])
    assert found.keys() - {"peers"} == tables.keys()
    assert {table: {field.name for field in dataclasses.fields(settings)} for table, settings in tables.items()} == {
        table: keys for table, keys in found.items() if table != "peers"}


def test_the_table_of_the_federations_folder_has_the_files_that_it_gets(tmp_path: Path) -> None:
    table = FEDERATION.read_text(encoding="utf-8").partition("## The federation folder")[2].partition("**Backup.**")[0]
    federation = create_federation(tmp_path, name="lung", address="hub.example:8443")
    paths = [f"{path.relative_to(tmp_path)}{end}" for path, end in (
        (federation.ledger, ""), (federation.payloads, "/"), (federation.spool, "/"), (federation.images, "/"),
        (federation.page_token, ""), (federation.live, ""), (tmp_path / LAST_BACKUP, ""))]
    of_a_study = [f"studies/NAME/{name}" for name in (NOISE_KEY, START_FILE, LABELS_ALONE_FILE, LABELS_ALONE_MODEL)]
    assert [path for path in (*paths, *of_a_study, "wandb/") if f"`{path}`" not in table] == []
    included = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("- **Included:**")[2]
    assert f"`{NOISE_KEY}`" in included.partition("- **Not included:**")[0]


def test_the_page_of_references_has_every_method_and_every_source_of_the_code() -> None:
    page = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    table = page.partition("## Methods")[2].partition("\n## ")[0]
    assert [name for name in METHODS if f"[`{name}`](methods/{name}.md)" not in table] == []
    cited: dict[str, str] = {}
    for package in ("common", "coordinator", "silo", "semisilo"):
        for path in (ROOT / package).rglob("*.py"):
            text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
            cited |= dict.fromkeys(re.findall(r"\b([A-Z][A-Za-z-]+)(?: and [A-Z][a-z]+)? et al\.", text), path.name)
            for source in re.findall(r"Source: ([^\"]{0,120})", text):
                if name := re.match(r"([A-Z][A-Za-z]+), (?:[A-Z][\w ]+ )?\(?\w", source):
                    cited.setdefault(name[1], path.name)
    assert len(cited) > 40
    names = {"FedMatch": "Jeong", "FedMix": "Zhang", "FedNova": "Wang", "FedRGD": "Zhang", "FedProx": "Li",
             "ISTA": "Daubechies"}
    assert {name: where for name, where in cited.items() if names.get(name, name) not in page} == {}


def test_the_file_to_cite_by_is_whole_and_of_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    found = dict(line.split(": ", 1) for line in lines if re.match(r"[a-z-]+: ", line))
    assert {"cff-version", "message", "title", "type"} <= found.keys()
    assert (found["cff-version"], found["version"], found["license"]) == ("1.2.0", __version__, "Apache-2.0")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert found["abstract"] == f'"{project["description"]}"'
    begin = lines.index("authors:") + 1
    assert lines[begin:begin + 1] == [f"  - name: {each['name']}" for each in project["authors"]]
    yaml = pytest.importorskip("yaml")
    loaded = yaml.safe_load("\n".join(lines))
    assert loaded["authors"] == project["authors"]
    assert set(loaded["keywords"]) <= {*project["keywords"], "semi-supervised learning"}


def test_readme_has_the_numbers_that_the_demo_gave() -> None:
    """After another run: make bench-demo."""
    found = demo.results()
    assert [each["seed"] for each in found] == list(demo.SEEDS)
    assert {each["method"] for each in found} == {DemoSettings().method}
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert demo.with_rows(page, demo.rows(found)) == page
    shares = {f"{each['wire_bytes'] / each['dense_bytes']:.0%}".replace("%", " %") for each in found}
    assert [share for share in shares if f"The bytes are {share} of" not in page] == []
    (steps,) = {re.findall(r"\d+ steps", each["labelled_only_recipe"])[0] for each in found}
    assert steps in page
    for text in (page, (ROOT / "benchmarks" / "demo" / "RESULTS.md").read_text(encoding="utf-8")):
        assert f"{demo.HEADING}{demo.rows(found)}" in text


def test_the_page_on_choosing_has_the_gains_that_were_measured() -> None:
    """After new rows of the comparison: write what this test expects into the page."""
    table = read_table(ROOT / "benchmarks" / "learning" / "results.jsonl")
    heading = "| images | labels per class | cells | `self_training` | `semifl` | `fedavg` + FixMatch |"
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    rows = page.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()[1:]
    expected, shown = [], set()
    for row in rows:
        data, labels = (cell.strip() for cell in row.strip("| ").split("|")[:2])
        cells = [cell for cell in CELLS if cell.data == data and str(cell.per_class) in labels.split(", ")
                 and table.differences(cell, OURS, LABELS_ALONE)]
        shown |= set(cells)
        ranges = []
        for method in (OURS, "SemiFL", "FedAvg + FixMatch"):
            gains = [statistics.fmean(found) for cell in cells if (found := table.differences(cell, method,
                                                                                               LABELS_ALONE))]
            ends = dict.fromkeys(f"{end:+.1f}" for end in (min(gains), max(gains))) if gains else {}
            ranges.append(f" {' to '.join(ends)} |" if ends else " |")
        expected.append(f"| {data} | {labels} | {len(cells)} |{''.join(ranges)}")
    assert rows == expected
    assert shown == {cell for cell in CELLS if table.differences(cell, OURS, LABELS_ALONE)}


@each_of("page", [page for page in PAGES if page.parent.name != "decisions"],  # which stay as written
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_ours_that_a_page_names_are_there(page: Path) -> None:
    names = re.findall(r"`((?:common|coordinator|silo|semisilo|tests|docs|deploy|protos)/[\w./-]*)`",
                       page.read_text(encoding="utf-8"))
    assert [name for name in names if not (ROOT / name).exists()] == []
