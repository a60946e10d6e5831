"""The arrows of the house: who may import whom, read off the syntax trees, and what light processes really load."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "common": {"common"},
    "coordinator": {"coordinator", "common"},
    "silo": {"silo", "common"},
    "semisilo": {"semisilo", "coordinator", "silo", "common"},
}
"""Folder at the top -> those whose modules it may import. Nobody but semisilo imports what is semisilo's own. The rooms
inside are held by import-linter (tests/test_architecture.py)."""
LINKED = ("common", "coordinator", "silo")
"""Folders that are imported as `semisilo.<folder>`."""

LIGHT = ("semisilo.coordinator.cli.main", "semisilo.coordinator.serve", "semisilo.coordinator.rpc.round_service",
         "semisilo.coordinator.rounds.engine", "semisilo.coordinator.tasks.task_service", "semisilo.silo.cli.main",
         "semisilo.silo.agent.agent", "semisilo.silo.link.link", "semisilo.cli.main", "semisilo.common.process.compute")
"""What runs in processes that do I/O only; loading torch would cost them half a gigabyte and a second."""

MATHS = ("common/learning/*.py", "common/models/*.py", "common/data/*.py", "common/data/augmentation/*.py",
         "common/data/formats/*.py", "coordinator/strategies/**/*.py", "silo/trainers/**/*.py", "silo/objectives/*.py")
"""What must run on a machine that has torch and neither grpc nor cryptography."""


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a file imports."""

    file: str
    line: int
    module: str
    """Absolute dotted name; for `from a import b` there is one entry for `a` and one for `a.b`."""
    when: Literal["at once", "later", "never"]
    """As soon as the file is imported; when a function runs; or only when types are checked."""


@functools.cache
def imports_in(path: Path, root: Path) -> tuple[Import, ...]:
    """All imports of a file: statements anywhere in it, and what it imports by a name in quotes. Read once: many chains
    lead through the same files."""
    name = str(path.relative_to(root))
    parts = path.relative_to(root).parent.parts
    package = ".".join(("semisilo", *parts) if parts and parts[0] in LINKED else parts)

    def visit(node: ast.AST, when: Literal["at once", "later", "never"]) -> Iterator[Import]:
        if isinstance(node, ast.If) and any(_name_of(each) == "TYPE_CHECKING" for each in ast.walk(node.test)):
            for child in node.body:
                yield from visit(child, "never")
            for child in node.orelse:
                yield from visit(child, when)
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and when == "at once":
            when = "later"
        for target in _targets_of(node, package):
            yield Import(name, node.lineno, target, when)  # type: ignore[attr-defined]
        for child in ast.iter_child_nodes(node):
            yield from visit(child, when)

    return tuple(visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)), "at once"))


def _targets_of(node: ast.AST, package: str) -> Iterator[str]:
    """The modules that one node of a file of `package` imports, or names for an import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")
            base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call):
        if _name_of(node.func) in ("import_module", "__import__", "find_spec", "needed"):
            yield from (text.rstrip(".") for text in _beginnings_of_texts(node.args[:1]))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        # "package.module:Class", as the compute process is told which class to build.
        match = re.fullmatch(r"([a-z]\w*(?:\.\w+)+):\w+", node.value)
        if match is not None:
            yield match[1]


def _name_of(node: ast.AST) -> str:
    """The last part of `a.b.name`; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _beginnings_of_texts(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.JoinedStr) and node.values:
            node = node.values[0]  # type: ignore[assignment]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _folder_of(module: str) -> str:
    """The folder at the top that a module of ours lies in; for others their package."""
    parts = module.split(".")
    return parts[1] if parts[0] == "semisilo" and len(parts) > 1 and parts[1] in LINKED else parts[0]


def wrong_arrows(root: Path) -> list[str]:
    """Each import of one of our packages that MAY_IMPORT does not allow, as "file:line imports module"."""
    wrong = []
    for package, allowed in MAY_IMPORT.items():
        for path in sorted((root / package).rglob("*.py")):
            for found in imports_in(path, root):
                target = _folder_of(found.module)
                if target in MAY_IMPORT and target not in allowed:
                    wrong.append(f"{found.file}:{found.line} imports {found.module}")
    return sorted(set(wrong))


def chain_to(module: str, forbidden: set[str], *, root: Path, lazily: bool) -> list[str]:
    """How importing `module` leads to one of the `forbidden` packages, link by link; empty when it does not.

    With `lazily` imports inside functions count too.
    """
    before: dict[str, str] = {module: ""}
    queue = [module]
    while queue:
        current = queue.pop(0)
        path = _file_of(current, root)
        if path is None:
            continue
        parents = [current.rpartition(".")[0]] if "." in current else []
        targets = [found.module for found in imports_in(path, root)
                   if found.when == "at once" or (lazily and found.when == "later")]
        for target in [*parents, *targets]:
            if target.partition(".")[0] in forbidden:
                chain = [target, current]
                while before[chain[-1]]:
                    chain.append(before[chain[-1]])
                return chain[::-1]
            if target not in before and target.partition(".")[0] == "semisilo":
                before[target] = current
                queue.append(target)
    return []


def _file_of(module: str, root: Path) -> Path | None:
    parts = module.split(".")
    base = root.joinpath(*(parts[1:] if _folder_of(module) in LINKED else parts))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _maths_modules() -> list[str]:
    files = {path for pattern in MATHS for path in ROOT.glob(pattern)}
    return sorted(".".join(("semisilo", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
                  for path in files)


def _loaded_after(statement: str) -> set[str]:
    """Top-level packages in sys.modules of a fresh process after a statement."""
    code = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_every_import_follows_the_arrows_of_the_house() -> None:
    assert wrong_arrows(ROOT) == []


def test_the_arrows_are_read_from_all_four_packages() -> None:
    counts = {package: len(list((ROOT / package).rglob("*.py"))) for package in MAY_IMPORT}
    assert all(count >= 2 for count in counts.values()), counts


def test_there_is_no_fifth_package_that_the_arrows_do_not_know() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert folders == set(MAY_IMPORT)


@pytest.mark.parametrize("module", LIGHT)
def test_a_light_module_does_not_reach_torch_when_it_is_imported(module: str) -> None:
    assert _file_of(module, ROOT) is not None, f"{module} is gone: fix the list in this file"
    assert chain_to(module, {"torch", "torchvision"}, root=ROOT, lazily=False) == []


def test_a_fresh_process_of_the_light_kind_has_not_loaded_torch() -> None:
    """One process for all of them: what none of them brings along, each does without."""
    modules = ("semisilo.coordinator.cli.main", "semisilo.coordinator.serve", "semisilo.coordinator.rpc.round_service",
               "semisilo.silo.cli.main", "semisilo.silo.agent.agent", "semisilo.cli.main")
    loaded = _loaded_after("\n".join(f"import {module}" for module in modules))
    assert {"semisilo", "grpc"} <= loaded
    assert not loaded & {"torch", "torchvision"}


@pytest.mark.slow  # quickly: what the files say, below; here what libraries bring along
def test_the_maths_does_not_load_grpc_or_cryptography() -> None:
    modules = _maths_modules()
    assert len(modules) >= 8, modules
    loaded = _loaded_after("\n".join(f"import {module}" for module in modules))
    assert "torch" in loaded
    assert not loaded & {"grpc", "cryptography"}


def test_the_maths_does_not_reach_grpc_or_cryptography_later_either() -> None:
    chains = [chain_to(module, {"grpc", "cryptography"}, root=ROOT, lazily=True) for module in _maths_modules()]
    assert [chain for chain in chains if chain] == []


SIMULATED = ("semisilo.simulation", "semisilo.simulation.simulate", "semisilo.simulation.engines.one_process",
             "semisilo.simulation.engines.processes", "semisilo.simulation.engines.worker",
             "semisilo.simulation.output", "semisilo.simulation.display", "semisilo.coordinator.compute.operations",
             "semisilo.silo.compute.operations", "semisilo.api.simulate", "semisilo.prediction.predictor",
             "semisilo.coordinator.export.export")
"""What a simulation runs, on machines that have torch and neither grpc nor cryptography."""


@pytest.mark.parametrize("module", SIMULATED)
def test_a_simulation_reaches_neither_grpc_nor_cryptography_now_or_later(module: str) -> None:
    assert _file_of(module, ROOT) is not None, f"{module} is gone: fix the list in this file"
    assert chain_to(module, {"grpc", "cryptography"}, root=ROOT, lazily=True) == []


# Controls: each of the checks above notices what it is there for. -----------------------------------------------------


def _tree(root: Path, files: dict[str, str]) -> Path:
    for package in MAY_IMPORT:
        (root / package).mkdir()
        (root / package / "__init__.py").touch()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(("file", "text"), [
    ("coordinator/rounds/engine.py", "import semisilo.silo.agent.agent"),
    ("coordinator/rounds/engine.py", "from semisilo.silo.agent import agent"),
    ("coordinator/rounds/engine.py", "from semisilo import silo"),
    ("coordinator/strategies/deep.py", "def f():\n    from semisilo.silo.agent.agent import run"),
    ("silo/agent/agent.py", "import coordinator"),
    ("silo/agent/agent.py", "if TYPE_CHECKING:\n    from semisilo.coordinator.ledger.ledger import Ledger"),
    ("common/codec.py", "from semisilo.coordinator.ledger import ledger"),
    ("common/codec.py", "import importlib\nimportlib.import_module('semisilo.silo.trainers.semifl')"),
    ("common/codec.py", "import importlib\nimportlib.import_module(f'semisilo.silo.trainers.{name}')"),
    ("common/data/readers.py", "import semisilo.demo.demo"),
    ("coordinator/serve.py", "from semisilo.api.simulate import simulate"),
    ("silo/agent/agent.py", "TARGET = 'semisilo.coordinator.compute.operations:Operations'"),
    ("silo/trainers/semifl.py", "from ...coordinator import ledger"),
])
def test_an_arrow_that_points_the_wrong_way_is_found(tmp_path: Path, file: str, text: str) -> None:
    arrows = wrong_arrows(_tree(tmp_path, {file: text}))
    assert arrows
    assert all(arrow.startswith(f"{file}:") for arrow in arrows)


def test_arrows_that_point_the_right_way_pass(tmp_path: Path) -> None:
    assert wrong_arrows(_tree(tmp_path, {
        "coordinator/rounds/engine.py": "from semisilo.common.payload import codec\nfrom . import ledger\n"
                                        "from semisilo.coordinator.ledger.ledger import L",
        "silo/agent/agent.py": "from semisilo.common.payload.codec import x\nNAME = 'coordinator.lung.semisilo'\n"
                               "import torch",
        "common/codec.py": "import numpy\nTEXT = 'coordinator: yes'",
        "semisilo/demo/demo.py": "import semisilo.coordinator.serve, semisilo.silo.agent\n"
                                 "TARGET = 'semisilo.silo.compute.operations:Operations'",
    })) == []


def test_torch_behind_two_imports_is_found_and_the_chain_named(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"silo/cli/main.py": "from semisilo.silo.agent import agent",
                            "silo/agent/agent.py": "from semisilo.common.maths import f",
                            "common/maths.py": "import torch.nn"})
    chain = chain_to("semisilo.silo.cli.main", {"torch"}, root=root, lazily=False)
    assert chain == ["semisilo.silo.cli.main", "semisilo.silo.agent.agent", "semisilo.common.maths", "torch.nn"]


def test_torch_in_the_init_file_of_a_package_is_found(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"silo/cli/main.py": "from semisilo.common.data.form import X",
                            "common/data/form.py": "X = 1", "common/data/__init__.py": "import torch"})
    assert chain_to("semisilo.silo.cli.main", {"torch"}, root=root, lazily=False)[-1] == "torch"


def test_torch_inside_a_function_or_for_types_only_is_no_import_of_a_light_module(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"silo/cli/main.py": "if TYPE_CHECKING:\n    import torch\ndef f():\n    import torch as t"})
    assert chain_to("semisilo.silo.cli.main", {"torch"}, root=root, lazily=False) == []


def test_grpc_inside_a_function_of_the_maths_is_found_but_not_for_types_only(tmp_path: Path) -> None:
    root = _tree(tmp_path, {"common/learning/losses.py": "def f():\n    import grpc",
                            "common/learning/training.py": "if TYPE_CHECKING:\n    import grpc"})
    assert chain_to("semisilo.common.learning.losses", {"grpc"}, root=root, lazily=True) == [
        "semisilo.common.learning.losses", "grpc"]
    assert chain_to("semisilo.common.learning.training", {"grpc"}, root=root, lazily=True) == []


def test_a_process_that_does_load_grpc_is_seen_to() -> None:
    assert "grpc" in _loaded_after("import semisilo.common.rpc.grpc_errors")
