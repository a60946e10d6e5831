"""What pyproject.toml asks for is enough for what is generated, and is asked for alike wherever packages are installed.
`make test-oldest` runs the tests with the oldest versions that it permits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
WIRE = sorted((ROOT / "common" / "wire").glob("*_pb2*.py"))
DEPENDENCIES = {found.name: found for found in map(Requirement, tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"])}


def oldest(name: str) -> Version:
    return next(Version(each.version) for each in DEPENDENCIES[name].specifier if each.operator == ">=")


def test_the_oldest_protobuf_reads_the_generated_code_and_the_next_major_version_but_one_is_not_taken() -> None:
    """Code that a newer compiler writes is refused by an older protobuf when it is imported, with a traceback."""
    found = {Version(match[1]) for file in WIRE if (match := re.search(r"# Protobuf Python Version: (\S+)",
                                                                      file.read_text(encoding="utf-8")))}
    assert len(found) == 1
    made_for, = found
    assert made_for <= oldest("protobuf")
    assert f"{made_for.major + 1}.99" in DEPENDENCIES["protobuf"].specifier
    assert f"{made_for.major + 2}.0" not in DEPENDENCIES["protobuf"].specifier


def test_the_oldest_grpc_takes_the_generated_code() -> None:
    found = {Version(match[1]) for file in WIRE if (match := re.search(r"GRPC_GENERATED_VERSION = '(\S+)'",
                                                                      file.read_text(encoding="utf-8")))}
    assert len(found) == 1
    assert found.pop() <= oldest("grpcio")


@pytest.mark.parametrize("file", ["deploy/install.sh", "deploy/silo.Dockerfile", "deploy/coordinator.Dockerfile"])
def test_torch_from_an_index_of_its_own_is_asked_for_as_in_pyproject(file: str) -> None:
    asked = re.findall(r"""['"]((?:torch|torchvision)>=[\d.]+)['"]""", (ROOT / file).read_text(encoding="utf-8"))
    assert {Requirement(each).name for each in asked} == {"torch", "torchvision"}
    assert all(Requirement(each) == DEPENDENCIES[Requirement(each).name] for each in asked)
