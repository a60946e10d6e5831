"""onnxruntime tells nobody what is run with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GRAPH = """
import onnx
from onnx import TensorProto, helper
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
"""


def left_behind(folder: Path, package: str) -> list[str]:
    """What a process leaves in its caches that opens a graph, outside of continuous integration, which the package
    spares."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "TF_BUILD")}
    subprocess.run([sys.executable, "-c", f"{GRAPH}\n{package}.InferenceSession(content)"], check=True,
                   env={**environment, "HOME": str(folder), "XDG_CACHE_HOME": str(folder),
                        "https_proxy": "http://127.0.0.1:9"})
    return sorted(path.name for path in folder.rglob("*") if "onnxruntime" in path.name)


@pytest.mark.slow
def test_it_keeps_no_identifier_of_the_machine_and_no_reports(tmp_path: Path) -> None:
    plain = left_behind(tmp_path / "plain", '__import__("onnxruntime")')
    if not plain:
        pytest.skip("this build of onnxruntime reports nothing")
    ours = '__import__("semisilo.common.models.onnx_runtime", fromlist=["x"]).onnx_runtime()'
    assert left_behind(tmp_path / "ours", ours) == []


def test_nobody_else_imports_it() -> None:
    rooms = ("common", "coordinator", "silo", "semisilo")
    found = [str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")
             if re.search(r"^\s*(import onnxruntime|from onnxruntime)", path.read_text(encoding="utf-8"), re.MULTILINE)]
    assert sorted({str(Path(name).resolve().relative_to(ROOT)) for name in found}) == ["common/models/onnx_runtime.py"]


def test_a_choice_of_the_user_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("onnxruntime")
    from semisilo.common.models.onnx_runtime import onnx_runtime

    called: list[str] = []
    monkeypatch.setattr(module, "disable_telemetry_events", lambda: called.append("off"))
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    assert onnx_runtime() is module
    assert (called, os.environ["ORT_DISABLE_TELEMETRY"]) == ([], "0")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    onnx_runtime()
    assert (called, os.environ["ORT_DISABLE_TELEMETRY"]) == (["off"], "1")
