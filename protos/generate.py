"""Writes `common/wire/` from `protos/`: `make protos`; with `--check` it says whether it is current.

protoc's Python output imports its neighbours by their proto package (`semisilo.v1`), which would collide with our own
`semisilo` package; the imports are rewritten to `semisilo.common.wire`, so that an installed wheel finds them.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
TARGET = ROOT.parent / "common" / "wire"
HEADER = '"""Generated from protos/ by `make protos`; never edited."""\n'


def generate(target: Path) -> None:
    """Runs protoc into `target` and rewrites the imports."""
    sources = sorted(ROOT.glob("semisilo/v1/*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        include = resources.files("grpc_tools") / "_proto"
        status = protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={folder}", f"--pyi_out={folder}",
                              f"--grpc_python_out={folder}", *map(str, sources)])
        if status != 0:
            sys.exit(status)
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text(HEADER)
        for file in sorted(Path(folder, "semisilo", "v1").iterdir()):
            text = re.sub(r"from semisilo\.v1 import", "from semisilo.common.wire import", file.read_text())
            if file.name.endswith("_pb2_grpc.py") and "class " not in text.replace("class object", ""):
                continue
            (target / file.name).write_text(text)


def main() -> None:
    """Writes or checks."""
    if sys.argv[1:] == ["--check"]:
        with tempfile.TemporaryDirectory() as folder:
            generate(Path(folder))
            fresh = {file.name: file.read_text() for file in Path(folder).iterdir()}
            stored = {file.name: file.read_text() for file in TARGET.glob("*.py*") if file.is_file()}
            differing = sorted(name for name in fresh.keys() | stored.keys() if fresh.get(name) != stored.get(name))
        if differing:
            sys.exit(f"common/wire is not current ({', '.join(differing)}). Run: make protos")
        print("common/wire is current")
        return
    generate(TARGET)


if __name__ == "__main__":
    main()
