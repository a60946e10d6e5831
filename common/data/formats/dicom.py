"""DICOM files: from stored values to grey or colours of 8 bits, as a viewer would show them.

Grey: stored values, then the modality's rescaling (slope and intercept, or its table), then the window, then inverted
for MONOCHROME1. The window is the study's [centre, width] by the standard's linear function; or else the file's own,
one of its VOI tables or windows with its own function; or else, in a file that names none, the whole range that its
bits can hold, which is the same for every picture of a device. Colours (RGB, YBR, palettes) have no window.

**Nothing of a patient is said.** Tags are read for what the picture needs and their values appear in no message: the
reasons below are fixed sentences, and the library's own log and warnings are silenced.

**Hostile until checked.** Sizes are checked before anything is decoded: rows times columns against the largest picture,
frames against the bytes that are there, a compressed stream's own size, colours and bits against rows, columns and what
the tags say of them, and a deflated file is inflated no further than its own tags permit.

Shapes: H rows, W columns.
"""

from __future__ import annotations

import difflib
import io
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semisilo.common.data.form import Reading, patient_key
from semisilo.common.data.formats import grey
from semisilo.common.data.formats.codestream import stream_shape
from semisilo.common.data.formats.extras import needed, silence
from semisilo.common.data.formats.picture import Header, Picture, chosen, part_of
from semisilo.common.data.formats.pixels import Geometry, NoPictureError, UnusableError, fitted
from semisilo.common.data.formats.registry import DICOM
from semisilo.common.data.room import check_room
from semisilo.common.errors import BadConfiguration, BadData
from semisilo.common.text.installing import how_to_install

__all__ = ["Opened", "check_rules", "open_dicom", "unlike"]

_DEFLATED = b"1.2.840.10008.1.2.1.99"
_EXPLICIT = "1.2.840.10008.1.2.1"
_BEFORE_META = 128 + 4 + 12
"""Bytes before what the group length of the first tags counts: the preamble, the magic and the tag of that length."""
_LARGEST_INFLATED = 2**30
"""Bytes of a deflated data set once it is inflated."""
_UNPACKED = "Use a machine with more memory, or save it uncompressed."
_DIRECTORY = "1.2.840.10008.1.3.10"
_RUN_LENGTHS = "1.2.840.10008.1.2.5"
_JPEG_BEGINS, _JPEG_ENDS = b"\xff\xd8", b"\xff\xd9"
"""Markers; between them the latter stands nowhere in coded pixels. Source: ITU-T T.81, B.1.1."""
_DAMAGED = "its pixels are damaged or cut off"
_PIXELS = (b"\xe0\x7f\x10\x00", b"\x7f\xe0\x00\x10")
_FRACTIONS = (b"\xe0\x7f\x08\x00", b"\xe0\x7f\x09\x00", b"\x7f\xe0\x00\x08", b"\x7f\xe0\x00\x09")
"""Tags in both byte orders."""
_FIRST_GROUPS = (b"\x02\x00", b"\x08\x00", b"\x00\x02", b"\x00\x08")
"""What a data set without the magic begins with."""
_META = 2048
_STEPS = (2**18, 2**22, 2**26)
"""Bytes of a header that are tried, one after another; real ones are small."""
_NEEDED = ("SamplesPerPixel", "PhotometricInterpretation", "BitsStored", "PixelRepresentation")
"""Tags that a picture must have, beside those for which it is no picture without."""
_COLOURS: dict[int, tuple[str, ...]] = {
    1: ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR"),
    3: ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420"),
}
"""Samples of a pixel -> photometric interpretations that are read."""


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A file whose tags have been checked."""

    data: Any
    """The tags, without pixels (pydicom.Dataset)."""
    path: Path
    width: int
    height: int
    channels: int
    """1 or 3, once decoded."""
    bits: int
    """Bits stored of each value."""
    frames: int
    syntax: str
    compressed: bool
    has_window: bool
    """Whether the file names a window of its own (or needs none)."""
    inflated: bytes | None = None
    """The data set of a deflated file, inflated; None where the file itself holds it."""

    def header(self, reading: Reading) -> Header:
        """See `OpenedImage`."""
        return Header(size=(self.width, self.height), channels=3 if self.channels == 3 else 1, bits=self.bits,
                      pictures=self.frames)

    def pictures(self, form: Geometry, reading: Reading, ranges: Mapping[str, float]) -> list[Picture]:
        """See `OpenedImage`."""
        those = chosen(self.frames, reading.frames)
        burned_in, patient = _text(self.data, "BurnedInAnnotation").upper() == "YES", _patient(self.data)
        return [Picture(square=fitted(Image.fromarray(self.frame(number, reading)), form), width=self.width,
                        height=self.height, channels=self.channels, bits=self.bits,
                        part=part_of(those, self.frames, number), burned_in=burned_in, patient=patient,
                        unwindowed=reading.window == "file" and not self.has_window) for number in those]

    def frame(self, number: int, reading: Reading) -> NDArray[np.uint8]:
        """One picture, (H, W) or (H, W, 3), its frame counted from 0.

        Raises: UnusableError with a reason that holds no value of a tag.
        """
        stored = self._stored(number)
        if stored.shape[:2] != (self.height, self.width) or stored.ndim not in (2, 3):
            raise UnusableError("its pixels are not as many as its header says")
        try:
            return self._colour(stored) if self.channels == 3 else self._grey(stored, number, reading)
        except UnusableError:
            raise
        except Exception:  # a library on tags of any kind; what it says may hold a tag's value
            raise UnusableError("its header's grey values or colours cannot be made sense of") from None

    def _stored(self, number: int) -> NDArray[Any]:
        pixels = needed("pydicom.pixels", DICOM)
        try:
            if self.inflated is not None:
                whole = _dataset(self.inflated)
                whole.file_meta = self.data.file_meta
                found: NDArray[Any] = pixels.pixel_array(whole, index=number)
                return found
            with self.path.open("rb") as file:
                if not self.compressed:
                    values: NDArray[Any] = pixels.pixel_array(file, index=number, transfer_syntax_uid=self.syntax)
                    return values
                check_room(self.path.stat().st_size, what="A compressed DICOM file's pixels", remedy=_UNPACKED)
                whole = _parsed(file.read())
                encaps = needed("pydicom.encaps", DICOM)
                # Where two tables say where frames lie, the decoder goes by this one; so must what is checked.
                offsets = (whole.ExtendedOffsetTable, whole.ExtendedOffsetTableLengths) \
                    if "ExtendedOffsetTable" in whole else None
                stream = encaps.get_frame(whole.PixelData, number, number_of_frames=self.frames,
                                          extended_offsets=offsets)
                self._check_stream(stream)
                values = pixels.pixel_array(whole, index=number)
                return values
        except (BadData, UnusableError):
            raise
        except MemoryError:
            raise UnusableError("it does not fit into memory") from None
        except NotImplementedError:
            raise UnusableError("its pixels are compressed in a way that is not read; save it uncompressed") from None
        except Exception as error:
            if isinstance(error, RuntimeError) and "missing dependencies" in str(error):
                raise BadData("Compressed DICOM files need the packages 'pylibjpeg', 'pylibjpeg-libjpeg' and "
                              "'pylibjpeg-openjpeg'.", remedy=how_to_install("semisilo[dicom]")) from None
            raise UnusableError(self._lacking() or _DAMAGED) from None

    def _lacking(self) -> str:
        """Which tags are missing without which nobody can say what the pixels are; empty where none is. Keywords are no
        values."""
        wanted = _NEEDED if self.data.get("SamplesPerPixel") in (None, "", 1) else (*_NEEDED, "PlanarConfiguration")
        missing = [keyword for keyword in wanted if self.data.get(keyword) in (None, "")]
        return f"its header does not say how its pixels are stored: it lacks {', '.join(missing)}" if missing else ""

    def _check_stream(self, stream: bytes) -> None:
        if self.syntax == _RUN_LENGTHS:  # run lengths: rows and columns are all there is
            return
        shape = stream_shape(stream)
        if shape is None or shape[:2] != (self.width, self.height):
            raise UnusableError("its compressed pixels are not of the size that its header says, or damaged")
        _, _, samples, bits = shape  # a decoder takes memory for what the stream says, up to 16384 values of a pixel
        if stream.startswith(_JPEG_BEGINS) and _JPEG_ENDS not in stream:  # what is missing would be decoded as grey
            raise UnusableError(_DAMAGED)
        if samples != (_whole(self.data, "SamplesPerPixel") or 1) or bits > (_whole(self.data, "BitsAllocated") or 0):
            raise UnusableError("its compressed pixels have other colours or more bits than its header says")

    def _grey(self, stored: NDArray[Any], number: int, reading: Reading) -> NDArray[np.uint8]:
        curve = _Curve(self, number, reading, stored)
        shown = grey.looked_up(stored, curve.apply)
        return 255 - shown if self.data.get("PhotometricInterpretation") == "MONOCHROME1" else shown

    def _colour(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        bits = self.bits
        if self.data.PhotometricInterpretation == "PALETTE COLOR":
            pixels = needed("pydicom.pixels", DICOM)
            stored = pixels.apply_color_lut(stored, self.data)[..., :3]
            bits = 8 * stored.dtype.itemsize
        if stored.ndim != 3 or stored.shape[2] != 3:
            raise UnusableError("its pixels are not as many as its header says")
        if bits == 8:
            return stored.astype(np.uint8)
        return grey.looked_up(np.ascontiguousarray(stored), lambda values: grey.rounded(
            grey.spread(values, 0, 2**bits - 1)))


def open_dicom(path: Path) -> Opened:
    """Reads and checks a file's tags; its pixels stay on disk.

    Raises: NoPictureError for a file without pixels; UnusableError for one that cannot be read; BadData when pydicom is
        not installed.
    """
    needed("pydicom", DICOM)
    silence("pydicom", "pylibjpeg", "libjpeg", "openjpeg")
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(_META)
            if _is_dicom(start) and _DEFLATED in start:
                file.seek(0)
                return _deflated(path, file, size)
            return _checked(path, *_header(file, size), size=size)
    except (UnusableError, BadData):
        raise
    except PermissionError:
        raise UnusableError("this user may not read it") from None
    except MemoryError:
        raise UnusableError("it does not fit into memory") from None
    except Exception:  # a library on bytes of any kind; what it says may hold a tag's value
        raise UnusableError("it is damaged, or not a DICOM file") from None


def _header(file: BinaryIO, size: int) -> tuple[Any, bytes]:
    """The tags before the pixels, and the tag after them (the pixels' own, in a picture).

    From memory, where a length that is a lie gives what is there; a file would first take that much memory.
    """
    for step in _STEPS:
        file.seek(0)
        start = file.read(step)
        source = io.BytesIO(start)
        try:
            data = _parsed(source, stop_before_pixels=True)
        except Exception:  # cut off where this step ends, perhaps
            if step >= size or not _is_dicom(start):
                raise
            continue
        following = start[source.tell() : source.tell() + 4]
        if following in (*_PIXELS, *_FRACTIONS) or step >= size:
            return data, following
    raise UnusableError("its header is too long")


def _is_dicom(start: bytes) -> bool:
    assert DICOM.magic is not None
    offset, magic = DICOM.magic
    return start[offset:].startswith(magic)


def _parsed(source: bytes | io.BytesIO, *, stop_before_pixels: bool = False) -> Any:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    start = file.read(_META)
    file.seek(0)
    if not start:
        raise UnusableError("it is empty")
    if not _is_dicom(start) and start[:2] not in _FIRST_GROUPS:
        raise UnusableError("it is not a DICOM file")
    reader = needed("pydicom", DICOM)
    return reader.dcmread(file, force=not _is_dicom(start), stop_before_pixels=stop_before_pixels)


def _deflated(path: Path, file: BinaryIO, size: int) -> Opened:
    """A file whose data set is one stream of RFC 1951 behind its first tags. Source: PS3.5 A.5.

    What stands before the pixels is inflated first: it says how much may follow.
    """
    filereader = needed("pydicom.filereader", DICOM)
    meta = filereader.read_file_meta_info(path)
    file.seek(_BEFORE_META + int(meta.FileMetaInformationGroupLength))
    check_room(2 * size, what="A deflated DICOM file", remedy=_UNPACKED)
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    start = stream.decompress(file.read(), _STEPS[-1])
    if len(start) < _STEPS[-1] and not stream.eof:
        raise UnusableError("its data set is deflated and cut off")
    source = io.BytesIO(start)
    data = _dataset(source, stop_before_pixels=True)
    data.file_meta = meta
    meta.TransferSyntaxUID = _EXPLICIT
    following = start[source.tell() : source.tell() + 4]
    if following not in (*_PIXELS, *_FRACTIONS) and not stream.eof:
        raise UnusableError("its header is too long")
    told = _checked(path, data, following, size=sys.maxsize)
    values = told.width * told.height * told.frames * (_whole(data, "SamplesPerPixel") or 1)
    pixels = -(-values * (_whole(data, "BitsAllocated") or 0) // 8)
    if source.tell() + pixels > _LARGEST_INFLATED:
        raise UnusableError(f"its data set is deflated and has more than {_LARGEST_INFLATED} bytes; save it"
                            " uncompressed")
    most = source.tell() + pixels + _STEPS[-1]  # as much may stand behind the pixels as before them
    check_room(3 * (source.tell() + pixels), what="A deflated DICOM file", remedy=_UNPACKED)
    inflated = start if stream.eof else start + stream.decompress(stream.unconsumed_tail, most - len(start))
    if len(inflated) >= most:
        raise UnusableError("its data set is deflated and has more bytes than its header says")
    if not stream.eof:
        raise UnusableError("its data set is deflated and cut off")
    return _checked(path, data, following, size=len(inflated), inflated=inflated)


def _dataset(source: bytes | io.BytesIO, *, stop_before_pixels: bool = False) -> Any:
    """Tags in explicit VR and little endian, without what stands before them in a file."""
    reader = needed("pydicom.filereader", DICOM)
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    at_pixels = None
    if stop_before_pixels:
        pixels = {int.from_bytes(each[:2], "little") << 16 | int.from_bytes(each[2:], "little")
                  for each in (_PIXELS[0], *_FRACTIONS[:2])}

        def at_pixels(tag: Any, vr: str | None, length: int) -> bool:
            return int(tag) in pixels

    return reader.read_dataset(file, is_implicit_VR=False, is_little_endian=True, stop_when=at_pixels)


def _checked(path: Path, data: Any, following: bytes, *, size: int, inflated: bytes | None = None) -> Opened:
    meta = getattr(data, "file_meta", None) or {}
    if str(meta.get("MediaStorageSOPClassUID", "")) == _DIRECTORY or "DirectoryRecordSequence" in data:
        raise NoPictureError("a DICOM directory, no picture")
    rows, columns = _whole(data, "Rows"), _whole(data, "Columns")
    if following in _FRACTIONS:
        raise UnusableError("its pixels are fractions, which are not read")
    if following not in _PIXELS or not rows or not columns:
        raise NoPictureError("a DICOM file without pixels")
    limit = Image.MAX_IMAGE_PIXELS or 89_478_485
    if rows * columns > limit:
        raise UnusableError(f"{columns} x {rows} pixels are too many (limit {limit})")
    allocated, samples = _whole(data, "BitsAllocated") or 0, _whole(data, "SamplesPerPixel") or 1
    bits = _whole(data, "BitsStored") or allocated
    photometric = str(data.get("PhotometricInterpretation") or "MONOCHROME2")
    palette = photometric == "PALETTE COLOR"
    if allocated not in (1, 8, 16, 32) or not 1 <= bits <= allocated:
        raise UnusableError("its pixels have a number of bits that is not read")
    if photometric not in _COLOURS.get(samples, ()):
        raise UnusableError("its kind of colours is not read")
    frames = 1 if not data.get("NumberOfFrames") else _whole(data, "NumberOfFrames") or 0
    syntax = str(meta.get("TransferSyntaxUID", "") or "")
    if not syntax:
        implicit, little = data.original_encoding
        syntax = "1.2.840.10008.1.2" if implicit else f"1.2.840.10008.1.2.{1 if little else 2}"
    compressed = bool(needed("pydicom.uid", DICOM).UID(syntax).is_compressed)
    # A decoder of a compressed stream gives values from the lowest bit on, whatever the tag says.
    if (not compressed or syntax == _RUN_LENGTHS) and (_whole(data, "HighBit") or 0) >= bits:
        raise UnusableError("its values lie in the upper bits (HighBit), which is not read; convert it to values"
                            " from the lowest bit on")
    declared = 8 * frames if compressed else -(-rows * columns * samples * allocated * frames // 8)
    if photometric == "YBR_FULL_422" and not compressed:
        declared = declared * 2 // 3
    if frames < 1 or declared > size:
        raise UnusableError("it declares more pixels than the file holds: it is cut off")
    channels = 3 if samples == 3 or palette else 1
    windowed = channels == 3 or bits <= 8 or any(
        where.get(name) not in (None, "") for where in (data, _group(data, 0, "FrameVOILUTSequence"))
        for name in ("WindowCenter", "VOILUTSequence"))
    return Opened(data, path, columns, rows, channels, bits, frames, syntax, compressed, windowed, inflated)


# Tags that say what a picture is --------------------------------------------------------------------------------------


def check_rules(rules: Mapping[str, frozenset[str]]) -> None:
    """Whether DICOM knows tags of these names.

    Raises: BadConfiguration with the nearest name; BadData when pydicom is not installed.
    """
    if not rules:
        return
    dictionary = needed("pydicom.datadict", DICOM)
    for keyword in rules:
        if dictionary.tag_for_keyword(keyword) is None:
            near = difflib.get_close_matches(keyword, dictionary.keyword_dict, n=1)
            raise BadConfiguration(f"[data] dicom: DICOM has no tag '{keyword}'.",
                                   remedy=f"Did you mean '{near[0]}'?" if near else "Write the keyword of a tag, such "
                                          "as Modality, ViewPosition or BodyPartExamined.")


def unlike(path: Path, rules: Mapping[str, frozenset[str]]) -> str:
    """The first tag by which a file does not count; "" for one that does, and for one that cannot be read: what is
    wrong with it is said where its pixels are read.

    Args:
        rules: keyword -> values in small letters of which the file must have one; "" for a file without the tag.
    Raises: BadData when pydicom is not installed.
    """
    try:
        data = open_dicom(path).data
    except UnusableError:
        return ""
    for keyword, values in rules.items():
        there = data.get(keyword)
        texts = {str(each).strip().casefold() for each in (
            there if isinstance(there, (list, tuple)) or type(there).__name__ == "MultiValue" else [there])
            if each is not None} or {""}
        if not texts & values:
            return keyword
    return ""


def _text(data: Any, name: str) -> str:
    value = data.get(name)
    return "" if value is None else str(value).strip()


def _patient(data: Any) -> str:
    """A key of the patient. Two hospitals may give one number to two patients; the issuer tells them apart. Without one
    the key is that of a table whose column has the same number."""
    number, issuer = _text(data, "PatientID"), _text(data, "IssuerOfPatientID")
    return patient_key(f"{issuer}\0{number}" if issuer and number else number)


class _Curve:
    """From stored values of one frame to 0..255, before MONOCHROME1 is inverted."""

    def __init__(self, opened: Opened, number: int, reading: Reading, stored: NDArray[Any]) -> None:
        self._data = opened.data
        self._modality = _group(opened.data, number, "PixelValueTransformationSequence")
        self._voi = _group(opened.data, number, "FrameVOILUTSequence")
        signed = opened.data.get("PixelRepresentation") == 1
        low, high = (-(2 ** (opened.bits - 1)), 2 ** (opened.bits - 1) - 1) if signed else (0, 2**opened.bits - 1)
        if reading.window == "image":
            low, high = int(stored.min()), int(stored.max())
        ends = self._rescaled(np.array([low, high]))
        self._ends = float(ends.min()), float(ends.max())
        if (table := _table(self._modality)) is not None and reading.window != "image":
            self._ends = 0.0, 2.0 ** _by_table(np.array([low]), table)[1] - 1
        self._reading = reading

    def apply(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        values = self._rescaled(stored)
        window = self._reading.window
        if not isinstance(window, str):
            return grey.rounded(grey.linear(values, *window))
        if window == "file" and (shown := self._by_its_own(values)) is not None:
            return shown
        return grey.rounded(grey.spread(values, *self._ends))

    def _rescaled(self, stored: NDArray[Any]) -> NDArray[Any]:
        if (table := _table(self._modality)) is not None:
            return _by_table(stored, table)[0]
        slope = _number(self._modality.get("RescaleSlope"), empty=1)
        intercept = _number(self._modality.get("RescaleIntercept"), empty=0)
        return stored.astype(np.float64) * slope + intercept

    def _by_its_own(self, values: NDArray[Any]) -> NDArray[np.uint8] | None:
        """By the wanted one of the file's tables and windows; None where it has none."""
        tables = [item for item in self._voi.get("VOILUTSequence") or () if _is_table(item)]
        centres, widths = (_numbers(self._voi.get(name)) for name in ("WindowCenter", "WindowWidth"))
        windows = list(zip(centres, widths, strict=False))
        there = len(tables) + len(windows)
        if not there:
            return None
        wanted = min(self._reading.window_number, there) - 1
        if wanted < len(tables):
            mapped, bits = _by_table(np.rint(values), tables[wanted])
            return grey.rounded(grey.spread(mapped, 0, 2**bits - 1))
        centre, width = windows[wanted - len(tables)]
        function = str(self._voi.get("VOILUTFunction") or "LINEAR")
        if not np.isfinite(centre) or not np.isfinite(width) or width < (1 if function == "LINEAR" else 1e-12):
            raise UnusableError("its own window is none: give one as window = [centre, width]")
        curve = {"LINEAR_EXACT": grey.linear_exact, "SIGMOID": grey.sigmoid}.get(function, grey.linear)
        return grey.rounded(curve(values, centre, width))


def _by_table(values: NDArray[Any], item: Any) -> tuple[NDArray[Any], int]:
    """Values by a table of the file, and the bits of what comes out. Source: PS3.3 C.11.1.1.1, C.11.2.1.1."""
    entries, first, bits = (int(value) for value in item.LUTDescriptor)
    entries = entries or 2**16
    if not 1 <= bits <= 16:
        raise UnusableError("its table of grey values cannot be used")
    raw = item.LUTData
    if isinstance(raw, (bytes, bytearray)):
        wide = len(raw) >= 2 * entries
        table = np.frombuffer(raw, dtype="<u2" if wide else np.uint8).astype(np.int64)
    else:
        table = np.array([raw] if np.isscalar(raw) else list(raw), dtype=np.int64) & 0xFFFF
    if len(table) < entries:
        raise UnusableError("its table of grey values is cut off")
    if first >= 2**15 and values.size and float(values.min()) < 0:
        first -= 2**16  # signed pixels, of which a reader may see the first as unsigned
    indices = np.clip(values.astype(np.int64) - first, 0, entries - 1)
    return np.minimum(table[indices], 2**bits - 1), bits


def _group(data: Any, number: int, sequence: str) -> Any:
    """Where the tags of a frame stand: its own functional group, the shared one, or the file's top."""
    for name, index in (("PerFrameFunctionalGroupsSequence", number), ("SharedFunctionalGroupsSequence", 0)):
        items = data.get(name) or ()
        if index < len(items) and items[index].get(sequence):
            return items[index].get(sequence)[0]
    return data


def _whole(data: Any, name: str) -> int | None:
    value = data.get(name)
    return None if value is None else int(value)


def _table(modality: Any) -> Any:
    """The modality's table of values; None where there is none, or one that is empty, as some devices write it."""
    return next((item for item in modality.get("ModalityLUTSequence") or () if _is_table(item)), None)


def _is_table(item: Any) -> bool:
    return bool(item.get("LUTDescriptor")) and item.get("LUTData") not in (None, b"", "")


def _number(value: Any, *, empty: float) -> float:
    """Args: empty: what a tag means that is missing, or there and empty."""
    if value is None or value == "" or (isinstance(value, (list, tuple)) and not value):
        return empty
    found = float(value)
    if not np.isfinite(found) or abs(found) > 1e12:
        raise UnusableError("its rescaling is not a number")
    return found


def _numbers(value: Any) -> list[float]:
    if value is None or value == "":
        return []
    return [float(value)] if isinstance(value, (int, float, str)) else [float(each) for each in value]


