"""Updates in the spool, as the compute process reads them: what was checked when it arrived is not checked again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.errors import BadPayload, LayoutMismatch, StorageDamaged, WrongBase
from common.exchange import GroupLayout, TensorGroup
from common.manifest import GroupManifest, check_manifest
from common.payload_reader import PayloadReader
from common.store import hash_file
from common.torch_payload import decode_groups

__all__ = ["SoundFiles", "check_groups"]


class SoundFiles:
    """Which spooled files this process has read to their end and found right, as long as they look untouched."""

    def __init__(self) -> None:
        self._looks: dict[str, tuple[int, int, int]] = {}

    def note(self, path: Path) -> None:
        """The file was read and is right."""
        self._looks[path.name] = _looks(path)

    def read(self, path: Path, silo: str, expects: Mapping[str, GroupLayout]) -> dict[str, TensorGroup]:
        """The update in a spooled file, which is called by its digest and was checked when it arrived.

        The SHA-256 is computed again only when the file may have changed since: after a restart, for example.

        Raises: StorageDamaged when it is missing or not what was accepted.
        """
        try:
            sound = self._looks.pop(path.name, None) == _looks(path)
            if not sound and hash_file(path) != path.name:
                raise StorageDamaged(f"{path}: the spooled update of silo {silo} is damaged.",
                                     remedy="Check the disk. Stop the study, or restore the file from a backup.")
            with PayloadReader(path) as reader:
                check_groups(reader.groups, expects)
            return decode_groups(path, require_finite=not sound, max_bytes=_dense_bytes(expects))
        except FileNotFoundError:
            raise StorageDamaged(f"{path}: the spooled update of silo {silo} is missing.",
                                 remedy="Stop the study, or restore the file from a backup.") from None
        except (BadPayload, LayoutMismatch, WrongBase) as error:
            raise AssertionError(f"{path}: accepted, and now refused: {error.text}") from error


def _looks(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _dense_bytes(expects: Mapping[str, GroupLayout]) -> int:
    return sum(GroupManifest(name, layout.meaning, layout.base, layout.tensors, 0).dense_bytes
               for name, layout in expects.items())


def check_groups(groups: tuple[GroupManifest, ...], expects: Mapping[str, GroupLayout]) -> None:
    """Compares a payload's manifest with what the strategy expects.

    Raises: BadPayload, LayoutMismatch, WrongBase.
    """
    check_manifest(groups, allowed={name: layout.meaning for name, layout in expects.items()},
                   layouts={name: layout.tensors for name, layout in expects.items()},
                   max_bytes=_dense_bytes(expects), required=tuple(expects))
    for group in groups:
        if group.reference:
            raise BadPayload(f"The group '{group.name}' is coded against other tensors; an update stands alone.")
        if group.base != expects[group.name].base:
            raise WrongBase(f"The group '{group.name}' refers to another base than the model that the task named.",
                            remedy="The silo drops this update and takes the task again.")
