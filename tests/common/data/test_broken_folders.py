"""Somebody else's folder: everything that goes wrong in real ones, at once and one by one."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from semisilo.common.data.form import ImageForm, Reading
from semisilo.common.data.formats import decoding
from semisilo.common.data.formats.decoding import decode
from semisilo.common.data.formats.folder import ImageFile, list_images
from semisilo.common.data.formats.pixels import Geometry
from semisilo.common.data.partly_labelled import read_partly_labelled
from semisilo.common.data.readers import read_images, survey
from semisilo.common.errors import BadData, SystemTrouble

FORM = ImageForm(size=8, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


def noise(path: Path, mode: str = "RGB", size: tuple[int, int] = (8, 8), seed: int = 0, **save: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size[::-1], len(mode)) if len(mode) > 1 and mode != "LA" else size[::-1]
    pixels = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels).save(path, **save) if mode != "CMYK" else Image.fromarray(pixels, "CMYK").save(path, **save)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Two classes with three good images and five that are none, and things that are nobody's fault."""
    noise(tmp_path / "cat/a.png", seed=1)
    whole = noise(tmp_path / "cat/b.jpg", size=(64, 64), seed=2).read_bytes()
    noise(tmp_path / "dog/c.png", seed=3)
    (tmp_path / "cat/cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cat/zero.png").write_bytes(b"")
    (tmp_path / "dog/text.png").write_text("I am no picture")
    (tmp_path / "dog/gone.png").symlink_to("nowhere.png")
    bomb = bytearray(noise(tmp_path / "dog/bomb.bmp").read_bytes())
    bomb[18:26] = (60_000).to_bytes(4, "little") * 2
    (tmp_path / "dog/bomb.bmp").write_bytes(bomb)
    (tmp_path / "cat/up").symlink_to("..", target_is_directory=True)
    (tmp_path / "cat/notes.txt").write_text("stained on Monday")
    (tmp_path / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "eel").mkdir()
    return tmp_path


BROKEN = {"cat/cut.jpg": "truncated", "cat/zero.png": "it is empty", "dog/bomb.bmp": "too many",
          "dog/gone.png": "leads nowhere", "dog/text.png": "not an image"}


def test_skip_leaves_out_what_is_broken_and_says_each(broken):
    result = read_images(str(broken), size=8, channels=3, on_error="skip")
    assert result.images.names == ("cat/a.png", "cat/b.jpg", "dog/c.png")
    assert result.classes == ("cat", "dog", "eel"), "an empty class folder is a class"
    found = {item.name: item.reason for item in result.skipped if item.broken}
    assert found.keys() == BROKEN.keys()
    for name, said in BROKEN.items():
        assert said in found[name], name
    assert [item.name for item in result.skipped if not item.broken] == ["cat/notes.txt"]


def test_stop_stops_at_the_first(broken):
    with pytest.raises(BadData) as caught:
        read_images(str(broken), size=8, channels=3)
    assert "dog/gone.png" in caught.value.text, "what the listing shows comes before what decoding shows"
    (broken / "dog/gone.png").unlink()
    with pytest.raises(BadData, match=r"cat/cut\.jpg cannot be read"):
        read_images(str(broken), size=8, channels=3)


def test_report_reads_everything_names_all_that_is_wrong_and_then_stops(broken, caplog):
    with pytest.raises(BadData, match="5 files cannot be used; each is named above"):
        read_images(str(broken), size=8, channels=3, on_error="report")
    said = [record.getMessage() for record in caplog.records if record.name == "semisilo.data"]
    assert [line.partition(":")[0] for line in said] == sorted(BROKEN)
    for name in BROKEN:
        (broken / name).unlink()
    assert len(read_images(str(broken), size=8, channels=3, on_error="report").images) == 3, "then it goes on"


def test_report_at_a_silo_covers_labelled_and_unlabelled_images_at_once(broken, caplog):
    (broken / "unlabelled").mkdir()
    (broken / "unlabelled/bad.png").write_bytes(b"")
    noise(broken / "unlabelled/good.png", seed=9)
    with pytest.raises(BadData, match="6 files cannot be used"):
        read_partly_labelled(str(broken), FORM, classes=("cat", "dog", "eel"), use_labels=True, on_error="report")
    assert "unlabelled/bad.png" in caplog.text
    assert "cat/zero.png" in caplog.text
    skipped = read_partly_labelled(str(broken), FORM, classes=("cat", "dog", "eel"), use_labels=True, on_error="skip")
    assert (len(skipped.labelled), len(skipped.unlabelled)) == (3, 1)
    with pytest.raises(BadData, match=r"gone\.png"):
        read_partly_labelled(str(broken), FORM, classes=("cat", "dog", "eel"), use_labels=True)


def test_the_same_image_in_two_classes_is_warned_of_here(tmp_path, caplog):
    content = noise(tmp_path / "cat/a.png").read_bytes()
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog/copy.png").write_bytes(content)
    noise(tmp_path / "dog/b.png", seed=5)
    for folder in ("cat", "dog"):
        Image.new("RGB", (8, 8)).save(tmp_path / folder / "black.png")
    with caplog.at_level(logging.WARNING):
        assert len(read_images(str(tmp_path), size=8, channels=3).images) == 5
    assert [record.getMessage() for record in caplog.records] == [
        "the same image in two classes: cat/a.png (cat) and dog/copy.png (dog)"]


def test_what_this_user_may_not_read_follows_on_error(tmp_path):
    """As another user: root may read everything."""
    noise(tmp_path / "cat/a.png")
    noise(tmp_path / "cat/closed.png", seed=1).chmod(0)
    noise(tmp_path / "dog/inner/b.png", seed=2)
    (tmp_path / "dog/inner").chmod(0)
    noise(tmp_path / "dog/c.png", seed=3)
    tmp_path.chmod(0o755)
    code = ("import os; from pathlib import Path; from PIL import Image; Image.init(); "
            "from semisilo.common.data.formats.folder import list_images; "
            "from semisilo.common.data.formats.decoding import decoded; "
            "from semisilo.common.data.formats.pixels import Geometry; from semisilo.common.data.form import Reading; "
            f"os.chdir({str(tmp_path)!r}); os.getuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534)); "
            "listing = list_images(Path('.')); "
            "print([(item.name, item.reason, item.broken) for item in listing.skipped]); "
            "print([(file.name, getattr(result, 'reason', '')) for file, result in decoded(listing.images, "
            "Geometry(size=8, channels=3, resize='fit'), Reading(), {})])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    (tmp_path / "dog/inner").chmod(0o755)
    assert done.returncode == 0, done.stderr
    listed, tried = done.stdout.splitlines()
    assert listed == "[('dog/inner', 'the folder cannot be listed: this user may not read it', True)]"
    assert tried == "[('cat/a.png', ''), ('cat/closed.png', 'this user may not read it'), ('dog/c.png', '')]"


def test_an_npz_that_this_user_may_not_read_is_not_called_damaged(tmp_path, monkeypatch):
    np.savez(tmp_path / "closed.npz", images=np.zeros((2, 8, 8), np.uint8))

    def refuse(path: Path, *words: object) -> None:  # as the system does; root may read everything
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadData, match=r"closed\.npz: this user may not read it") as caught:
        read_images(str(tmp_path / "closed.npz"), size=8, channels=1, labelled=False)
    assert caught.value.remedy == "Let this user read it."


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("L", (8, 8), value) for value in (40, 90, 200)]
    for suffix in ("gif", "webp", "png"):
        frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:],
                       **({"lossless": True} if suffix == "webp" else {}))
    got = read_images(str(tmp_path), size=8, channels=1, labelled=False).images.images_NCHW
    assert got[:, 0, 0, 0].tolist() == pytest.approx([40, 40, 40], abs=1)


def test_gamma_and_text_in_a_png_change_nothing(tmp_path):
    plain = noise(tmp_path / "plain/a.png")
    about = PngImagePlugin.PngInfo()
    about.add(b"gAMA", (30_000).to_bytes(4, "big"))
    about.add_text("Comment", "x" * 1000)
    (tmp_path / "gamma").mkdir()
    Image.open(plain).save(tmp_path / "gamma/a.png", pnginfo=about)
    one, other = (read_images(str(tmp_path / name), size=8, channels=3, labelled=False).images.images_NCHW
                  for name in ("plain", "gamma"))
    assert bool((one == other).all())


def test_a_text_bomb_in_a_png_is_refused(tmp_path):
    import zlib

    about = PngImagePlugin.PngInfo()
    about.add(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(50_000_000)))
    noise(tmp_path / "a.png", pnginfo=about)
    with pytest.raises(BadData, match=r"a\.png cannot be read"):
        read_images(str(tmp_path), size=8, channels=3, labelled=False)


def test_a_cmyk_jpeg_and_one_bit_and_palettes_are_colours_and_greys(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    Image.new("1", (16, 16), 1).save(tmp_path / "b.png")
    Image.new("P", (16, 16), 0).save(tmp_path / "c.png")
    got = read_images(str(tmp_path), size=8, channels=3, labelled=False).images.images_NCHW[:, :, 4, 4]
    red, green, blue = got[0].tolist()
    assert red > 200 > 60 > max(green, blue)
    assert got[1].tolist() == [255, 255, 255]
    assert got[2].tolist() == [0, 0, 0]


def test_folders_within_folders_end_somewhere_and_are_named(tmp_path):
    """An archive may hold a thousand of them; a walk that called itself ended in a traceback."""
    (tmp_path / ("d/" * 200)).mkdir(parents=True)
    for depth in (0, 64, 65, 200):
        noise(tmp_path / ("d/" * depth) / "x.png")
    listing = list_images(tmp_path)
    assert [image.name for image in listing.images] == ["d/" * 64 + "x.png", "x.png"]
    assert [(item.name, item.reason, item.broken) for item in listing.skipped] == [
        ("d/" * 64 + "d", "the folder lies more than 64 folders deep, and is not looked into", True)]


def test_a_mesh_of_links_is_walked_once(tmp_path):
    """18 folders with two links each to the next one are 2^17 paths to the image in the last."""
    for number in range(18):
        (tmp_path / f"f{number:02d}").mkdir()
        for name in ("a", "b") if number < 17 else ():
            (tmp_path / f"f{number:02d}" / name).symlink_to(f"../f{number + 1:02d}", target_is_directory=True)
    noise(tmp_path / "f17/x.png")
    listing = list_images(tmp_path)
    assert [image.name for image in listing.images] == ["f00/" + "a/" * 17 + "x.png", "f17/x.png"]
    assert len(listing.skipped) == 17 + 2 * 16
    assert {(item.reason, item.broken) for item in listing.skipped} == {
        ("a link to a folder to which another link has led; its files are listed there", False)}
    assert listing.skipped[0].name == "f00/" + "a/" * 16 + "b"
    assert len(read_images(str(tmp_path), size=8, channels=1, labelled=False).images) == 2, "nothing is broken"


def test_folders_that_are_links_are_entered_beside_the_folders_themselves(tmp_path):
    """In byte order of whole paths, as they always were: "a.png" before "a/b.png", for "." comes before "/"."""
    for name in ("a/b.png", "a.png", "a0/c.png", "pool/cat/1.png", "pool/cat/inner/2.png", "pool/dog/3.png"):
        noise(tmp_path / name)
    (tmp_path / "cat").symlink_to("pool/cat", target_is_directory=True)
    (tmp_path / "pool/dog/up").symlink_to("..", target_is_directory=True)
    (tmp_path / "whole").symlink_to("pool", target_is_directory=True)
    found = [image.name for image in list_images(tmp_path).images]
    assert found == sorted(found, key=lambda name: name.encode())
    assert found == ["a.png", "a/b.png", "a0/c.png", "cat/1.png", "cat/inner/2.png", "pool/cat/1.png",
                     "pool/cat/inner/2.png", "pool/dog/3.png", "whole/cat/1.png", "whole/cat/inner/2.png",
                     "whole/dog/3.png"]
    assert not list_images(tmp_path).skipped, "a link to a folder above ends there, and nothing is said of it"


@pytest.mark.slow
def test_thousands_of_files_are_listed_and_read_in_order(tmp_path):
    stream = io.BytesIO()
    Image.new("L", (4, 4), 7).save(stream, "PNG")
    for number in range(3000):
        (tmp_path / f"{number}.png").write_bytes(stream.getvalue())
    result = read_images(str(tmp_path), size=4, channels=1, labelled=False)
    assert result.images.names == tuple(sorted((f"{number}.png" for number in range(3000)), key=str.encode))
    assert survey(str(tmp_path)).num_images == 3000


def test_what_is_wrong_with_a_file_is_said_before_what_is_wrong_with_the_list_after_it(broken: Path) -> None:
    """Files are decoded ahead of where they are looked at."""
    def files() -> Iterator[ImageFile]:
        yield ImageFile(broken / "cat/a.png", "a", "")
        yield ImageFile(broken / "cat/zero.png", "zero", "")
        raise BadData("The list is damaged.")

    for on_error, text in (("stop", "zero cannot be read: it is empty"), ("skip", "The list is damaged")):
        with pytest.raises(BadData, match=text):
            decode(files, 3, form=Geometry(size=8, channels=3, resize="fit"), reading=Reading(), on_error=on_error,
                   where="here")


# Disks and shares that go away ----------------------------------------------------------------------------------------


AWAY = [errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN]


def fails(number: int, *names: str):
    """`open`, which cannot read files of these names."""
    real = io.open

    def opened(file, *args, **options):
        if Path(os.fspath(file)).name in names if isinstance(file, (str, os.PathLike)) else False:
            raise OSError(number, os.strerror(number), os.fspath(file))
        return real(file, *args, **options)
    return opened


@pytest.fixture
def few(tmp_path: Path) -> Path:
    for name in ("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png"):
        noise(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("on_error", ["skip", "stop", "report"])
@pytest.mark.parametrize("number", AWAY)
def test_a_share_that_goes_away_while_it_is_read_is_no_small_data_set(
        few: Path, number: int, on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", fails(number, "c.png", "d.png"))
    with pytest.raises(SystemTrouble, match=r"c\.png: "):
        read_images(str(few), size=8, channels=3, on_error=on_error)


def many(folder: Path, count: int) -> list[Path]:
    return [noise(folder / f"{name}/{index:02}.png") for name in ("cat", "dog") for index in range(count // 2)]


@pytest.mark.parametrize(("count", "lost", "waits"), [(40, 1, False), (40, 5, False), (40, 6, True), (80, 8, False)])
@pytest.mark.parametrize("kind", ["bad sectors", "removed"])
def test_a_few_files_that_are_gone_or_that_the_disk_fails_to_read_are_single_ones(
        tmp_path: Path, kind: str, count: int, lost: int, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad sector, or one file that was renamed in a folder in use, held a silo up for ever."""
    paths = many(tmp_path, count)
    chosen = paths[2:2 + lost]
    if kind == "removed":
        def renamed(path: Path):
            found = list_images(path)
            for each in chosen:
                each.unlink()
            return found
        monkeypatch.setattr("semisilo.common.data.formats.folder.list_images", renamed)
    else:
        names = {each.name for each in chosen}
        real = io.open
        monkeypatch.setattr("builtins.open", lambda file, *args, **options: fails(errno.EIO, *names)(
            file, *args, **options) if "cat" in str(file) else real(file, *args, **options))
    if waits:
        with pytest.raises(SystemTrouble, match=r"cat/02\.png: "):
            read_images(str(tmp_path), size=8, channels=3, on_error="skip")
        return
    found = read_images(str(tmp_path), size=8, channels=3, on_error="skip")
    assert len(found.images) == count - lost
    reason = "there is no such file" if kind == "removed" else "the disk fails to read it"
    assert [(each.name, each.reason) for each in found.skipped] == [
        (each.relative_to(tmp_path).as_posix(), f"cannot be read: {reason}") for each in chosen]


def test_a_single_bad_sector_stops_who_wants_to_be_stopped_and_a_dead_disk_does_not(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many(tmp_path, 20)
    monkeypatch.setattr("builtins.open", fails(errno.EIO, "02.png"))
    with pytest.raises(BadData, match=r"cat/02\.png cannot be read: the disk fails to read it"):
        read_images(str(tmp_path), size=8, channels=3, on_error="stop")
    monkeypatch.setattr("builtins.open", fails(errno.EIO, *(f"{index:02}.png" for index in range(2, 10))))
    with pytest.raises(SystemTrouble, match=r"cat/02\.png: "):
        read_images(str(tmp_path), size=8, channels=3, on_error="stop")


def test_a_bad_sector_of_a_file_without_a_suffix_is_told_and_holds_up_nothing(
        few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise(few / "cat/e.png").rename(few / "cat/e")
    monkeypatch.setattr(Path, "open", lambda self, *args, **options: fails(errno.EIO, "e")(self, *args, **options))
    monkeypatch.setattr("builtins.open", fails(errno.EIO, "e"))
    found = read_images(str(few), size=8, channels=3, on_error="skip")
    assert [(each.name, each.broken) for each in found.skipped] == [("cat/e", True)]
    assert len(found.images) == 4


def test_a_share_that_is_unmounted_when_nearly_all_is_read_is_no_small_data_set(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = many(tmp_path, 40)
    real, calls = decoding._pictures, []

    def pictures(file: ImageFile, *more):
        calls.append(file)
        if file.name.endswith("dog/18.png"):
            for each in paths:
                each.unlink(missing_ok=True)
        return real(file, *more)
    monkeypatch.setattr(decoding, "_threads", lambda: 1)
    monkeypatch.setattr(decoding, "_pictures", pictures)
    with pytest.raises(SystemTrouble, match=r"dog/18\.png: was there a moment ago"):
        read_images(str(tmp_path), size=8, channels=3, on_error="skip")
    assert len(calls) == 40


@pytest.mark.parametrize("on_error", ["skip", "stop"])
def test_files_that_are_gone_since_they_were_listed_are_no_small_data_set(
        few: Path, on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an unmount: the folder is there, and empty."""
    def unmounted(path: Path):
        found = list_images(path)
        for each in gone:
            (few / each).unlink(missing_ok=True)
        return found
    gone = ("cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png")
    monkeypatch.setattr("semisilo.common.data.formats.folder.list_images", unmounted)
    with pytest.raises(SystemTrouble, match=r"a\.png: was there a moment ago"):
        read_images(str(few), size=8, channels=3, on_error=on_error)
    for name in gone[:2]:
        noise(few / name)
    gone = ()
    assert len(read_images(str(few), size=8, channels=3, on_error=on_error).images) == 2, "listed anew"


def test_a_folder_or_a_file_without_a_suffix_that_goes_away_while_it_is_listed_is_no_small_data_set(
        few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise(few / "cat/e.png").rename(few / "cat/e")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *args, **options: fails(errno.ESTALE, "e")(self, *args, **options))
        with pytest.raises(SystemTrouble, match="cat/e: "):
            list_images(few)
    real = os.scandir

    def scanned(path):
        if Path(path).name == "dog":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fspath(path))
        return real(path)
    monkeypatch.setattr(os, "scandir", scanned)
    with pytest.raises(SystemTrouble, match="dog: "):
        list_images(few)


def test_a_file_that_is_damaged_is_still_left_out(few: Path) -> None:
    (few / "dog/c.png").write_bytes(b"nonsense")
    assert len(read_images(str(few), size=8, channels=3, on_error="skip").images) == 3
