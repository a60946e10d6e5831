"""Files that build a network: "my_net.py:build", or a configuration of Transformers. No code travels: a task names the
file's digest, and each machine uses its own copy, once its owner has permitted that digest.

What is run is what was hashed: the file is read once. It may import installed packages, not other files beside it.

Tests: tests/common/models/own/test_model_file.py.
"""

from __future__ import annotations

import hashlib
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semisilo.common.errors import BadConfiguration, NotPermitted
from semisilo.common.system_errors import source_trouble

if TYPE_CHECKING:
    from semisilo.common.methods.contract import ModelSettings

__all__ = ["MAX_FILE_BYTES", "ModelFile", "PermittedCode", "code_of", "digest_of_file", "file_of", "load_file",
           "names_file", "read_file", "with_digest"]

MAX_FILE_BYTES = 2**20
_NAME = re.compile(r"(?P<file>[A-Za-z0-9_][A-Za-z0-9_.-]*\.py):(?P<factory>[A-Za-z_]\w*)", re.ASCII)
_CONFIGURATION = re.compile(r"transformers/(?P<folder>[A-Za-z0-9_][A-Za-z0-9_.-]*)", re.ASCII)
_MOST_FILES = 1000


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file that this machine's owner permits to build a network."""

    folder: Path
    """Where it lies, under any name."""
    sha256: str
    """Of its bytes, hex: which file it is."""


PermittedCode = str | ModelFile
"""Code that a machine's owner permits to build networks: "package.module:factory", or a file."""


def code_of(settings: ModelSettings, folder: Path) -> tuple[PermittedCode, ...]:
    """What whoever has written a study permits: the code that its network names.

    Args:
        folder: where its file lies, if it is one.
    """
    if names_file(settings.name):
        return (ModelFile(folder, settings.factory_sha256),)
    return (settings.name,) if ":" in settings.name else ()


def names_file(name: str) -> bool:
    """Whether a network's name is of the form "file.py:factory", or "transformers/FOLDER"."""
    return bool(file_of(name))


def file_of(name: str) -> str:
    """The file in "file.py:factory", the configuration of "transformers/FOLDER"; of another name an empty text."""
    if (configuration := _CONFIGURATION.fullmatch(name)) is not None:
        return f"{configuration['folder']}/config.json"
    match = _NAME.fullmatch(name)
    return "" if match is None else match["file"]


def digest_of_file(path: Path) -> str:
    """SHA-256 of a file, hex. Raises: BadConfiguration when it cannot be read, or is too large to be such a file."""
    return hashlib.sha256(_bytes_of(path)).hexdigest()


def with_digest(settings: ModelSettings, folder: Path) -> ModelSettings:
    """The settings of a study's network with the digest of its file; those without a file as they are.

    Args:
        folder: of the study.
    Raises: BadConfiguration when there is no such file, or it is another one than the settings say.
    """
    import dataclasses

    file = file_of(settings.name)
    if not file:
        return settings
    found = digest_of_file(folder / file)
    if settings.factory_sha256 not in ("", found):
        raise BadConfiguration(f"[model] {folder / file} has the SHA-256 {found[:12]}..., not"
                               f" {settings.factory_sha256[:12]}... as the study says.",
                               remedy="Restore that file, or remove factory_sha256 (of a study that has begun: start a"
                                      " new one).")
    return dataclasses.replace(settings, factory_sha256=found)


def read_file(file: ModelFile, *, name: str = "") -> tuple[Path, bytes]:
    """Finds a file by its digest.

    Args:
        name: where to look first; the others are those of the folder that end in ".py" or ".json".
    Raises: NotPermitted when the folder has no such file.
    """
    others = sorted([*file.folder.glob("*.py"), *file.folder.glob("*.json")])[:_MOST_FILES] \
        if file.folder.is_dir() else []
    for path in [file.folder / name, *others] if name else others:
        try:
            content = _bytes_of(path)
        except BadConfiguration:
            continue
        if hashlib.sha256(content).hexdigest() == file.sha256:
            return path, content
    raise NotPermitted(f"No file has the SHA-256 {file.sha256} in {file.folder}.",
                       remedy=f"Put {name or 'the file'} there, exactly as it is at the other machines.")


def load_file(file: ModelFile, *, name: str) -> types.ModuleType:
    """Runs a file as a module, once in a process.

    Raises: NotPermitted when it is not there; whatever its code raises.
    """
    module_name = f"semisilo_model_file_{file.sha256[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    path, content = read_file(file, name=name)
    module = types.ModuleType(module_name)
    module.__file__ = str(path)
    sys.modules[module_name] = module  # dataclasses and pickles look here
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise source_trouble(error, path) or BadConfiguration(
            f"{path}: cannot be read: {error.strerror}.",
            remedy="Put the file that builds the network beside the study file.") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadConfiguration(f"{path}: has more than {MAX_FILE_BYTES} bytes; a file that builds a network has fewer.")
    return content
