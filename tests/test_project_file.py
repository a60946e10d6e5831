"""pyproject.toml says the truth: every foreign import is declared, every declared package is imported, and what a
package index shows needs nothing beside it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.test_docs import _commands_in
from tests.test_imports import Import, imports_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordinator", "silo", "common", "semisilo")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

DISTRIBUTIONS = {"PIL": "pillow", "backports": "backports.zstd", "google": "protobuf", "grpc": "grpcio",
                 "libjpeg": "pylibjpeg-libjpeg", "mlflow": "mlflow-skinny", "sklearn": "scikit-learn"}
"""Imported name -> the distribution that brings it, where the two differ (`_` and `-` apart)."""

NEVER_ASKED_FOR = {
    "IPython": "a notebook has loaded it already; elsewhere it is not imported",
    "compression": "of the standard library from Python 3.14 on; before that backports.zstd",
    "pandas": "for a table of those who have it; who has not is told so",
    "pip": "only looked for, to say how a missing library is had",
    "sqlalchemy": "only looked for, before MLflow, whose full distribution brings it, is given a database",
}
"""Imported, but no dependency of ours, and why."""

LOADED_BY_OTHERS = {"pylibjpeg", "pylibjpeg-openjpeg"}
"""Declared, but never imported by us: pydicom finds them."""

NO_MODULES = {"brain": "the version of TensorBoard's files", "my_net": "an example in an error",
              "package": "an example in the help of a command"}
"""Texts that look like "package.module:Class"."""


def _name(requirement: str) -> str:
    return re.split(r"[\s;<>=!~\[]", requirement, maxsplit=1)[0].lower()


BASE = {_name(each) for each in PROJECT["dependencies"]}
EXTRAS = {name: {_name(each) for each in requirements} - {"semisilo"}
          for name, requirements in PROJECT["optional-dependencies"].items()
          if name not in ("all", "deploy", "dev", "docs", "fuzz", "release")}
"""The extras that users install, without those for work on semisilo itself."""


def distribution_of(module: str) -> str:
    """The distribution whose module this is."""
    top = module.partition(".")[0]
    return DISTRIBUTIONS.get(top, top.replace("_", "-").lower())


def problem_of(found: Import) -> str:
    """What is wrong with an import; empty when it is ours, of the standard library or declared."""
    top = found.module.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in PACKAGES or distribution_of(top) in BASE:
        return ""
    if top in NEVER_ASKED_FOR:
        return "imported as soon as the file is" if found.when == "at once" and top != "compression" else ""
    extra = next((name for name, there in EXTRAS.items() if distribution_of(top) in there), "")
    if not extra:
        return "declared nowhere"
    return f"imported as soon as the file is, but only [{extra}] brings it" if found.when == "at once" else ""


def foreign_imports() -> list[Import]:
    """All imports of the product."""
    return [found for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))
            for found in imports_in(path, ROOT) if found.module.partition(".")[0] not in NO_MODULES]


def test_every_foreign_import_is_declared_and_that_of_an_extra_waits_until_it_is_needed() -> None:
    problems = [f"{found.file}:{found.line}: {found.module}: {problem}" for found in foreign_imports()
                if (problem := problem_of(found))]
    assert problems == []


def test_every_declared_package_is_imported() -> None:
    imported = {distribution_of(found.module) for found in foreign_imports()}
    declared = BASE.union(*EXTRAS.values()) - LOADED_BY_OTHERS
    assert sorted(declared - imported) == []


def test_every_exception_is_still_needed() -> None:
    imported = {found.module.partition(".")[0] for found in foreign_imports()}
    assert sorted({*DISTRIBUTIONS, *NEVER_ASKED_FOR} - imported) == []


@pytest.mark.parametrize(("text", "problem"), [
    ("import nowhere_declared", "declared nowhere"), ("import pydicom", "only [dicom] brings it"),
    ("def f():\n    import pydicom", ""), ("def f():\n    import nowhere_declared", "declared nowhere"),
    ("import h11, jinja2, tomli_w", ""), ("from sklearn import metrics", ""), ("import pandas", "as soon as"),
])
def test_the_control_what_is_not_declared_is_noticed(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(text)
    found = {problem_of(each) for each in imports_in(tmp_path / "module.py", tmp_path)}
    assert any(problem in each for each in found) if problem else found == {""}


def test_all_has_the_extras_that_users_install() -> None:
    """Without what is large and wanted by few; tests of these are skipped where they are not installed."""
    (everything,) = PROJECT["optional-dependencies"]["all"]
    large = {"ray", "monai", "transformers", "wandb"}
    assert set(re.findall(r"[a-z]+", everything.partition("[")[2])) == set(EXTRAS) - large


# What others read -----------------------------------------------------------------------------------------------------


def test_the_text_for_a_package_index_needs_nothing_beside_it() -> None:
    """A link or a picture would be sought on the index's own server."""
    text = PROJECT["readme"]["text"]
    assert PROJECT["readme"]["content-type"] == "text/markdown"
    assert re.findall(r"\]\(|<img|<a |!\[", text) == []
    assert text.lstrip().startswith("# semisilo\n")


def test_the_text_for_a_package_index_says_what_the_readme_says() -> None:
    """Its claims and commands are those of README.md, word for word."""
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    text = PROJECT["readme"]["text"]
    claims = re.findall(r"^- \*\*.*?(?=\.\s|;)", text, re.MULTILINE | re.DOTALL)
    assert len(claims) == 5
    assert [claim for claim in claims if " ".join(claim.split()) not in readme] == []
    commands = set(_commands_in(text))
    assert {("coordinator", "init"), ("silo", "join"), ("semisilo", "demo")} <= {
        tuple(command.split()[:2]) for command in commands}
    assert [command for command in commands if command.split("#")[0].strip() not in readme] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "semisilo" / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert not any(each.startswith("License ::") for each in PROJECT["classifiers"])  # the expression says it
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["authors"]
