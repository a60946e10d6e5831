"""Takes the screenshots of the documentation from a running demo federation: operator page, report, terminal.

Needs Chromium and playwright, and about five minutes. Run it again after a change of what the pictures show: `make
pictures`. The numbers in them are those of this run.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).resolve().parent / "images"
ROUNDS = 32
COLUMNS = 110
_COLOURS = 96
"""Of a picture: enough for text and lines, and a third of the bytes."""
_TERMINAL = (
    '<body style="margin:0"><div id="screen" style="display:inline-block;padding:14px 18px;background:#0d1117;'
    "color:#e6edf3;font:14px/1.35 'DejaVu Sans Mono',monospace;white-space:pre\">"
    '<span style="color:#9aa4ae">$ </span>{command}\n{output}</div></body>')
_SHOWN_AS = "/srv/demo"
"""What stands for the temporary folder in pictures of the terminal."""


def main() -> None:
    """Takes all pictures."""
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((found for name in names if (found := shutil.which(name))), None)
    if chromium is None:
        sys.exit("There is no Chromium here. Install it (apt-get install chromium), then repeat: make pictures")
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = Path(scratch) / "demo"
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": str(COLUMNS)}
        demo = subprocess.Popen([_script("semisilo"), "demo", "--folder", str(folder), "--rounds", str(ROUNDS)],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        assert demo.stdout is not None
        try:
            address = _wait_for(demo.stdout, r"watch it in a browser while it runs: (\S+)")
            _wait_for(demo.stdout, r"(round 8)/")
            _take_page(browser, address, "#/silos", IMAGES / "page-silos.png", height=860)
            _take_terminal(browser, folder, ["coordinator", "status", "--folder", "coordinator"], "terminal-status.png")
            _take_terminal(browser, folder, ["silo", "check", "--home", "silo-1"], "terminal-check.png")
            _take_page(browser, address, "", IMAGES / "page-overview.png", height=940,
                       when="() => /labels alone [0-9.]+ %/.test(document.body.innerText)")
            for _ in demo.stdout:  # to its end
                pass
        finally:
            demo.terminate()
            demo.wait(timeout=120)
        _take_page(browser, (folder / "report" / "index.html").as_uri(), "", IMAGES / "report.png", height=900)
        _take_terminal(browser, folder, ["silo", "disclosures", "--home", "silo-1"], "terminal-disclosures.png",
                       rows=18)
        browser.close()


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _wait_for(lines: IO[str], pattern: str) -> str:
    """The first group of the first line that matches."""
    seen = []
    for line in lines:
        seen.append(line)
        if match := re.search(pattern, line):
            return match[1]
    sys.exit("The demo ended early:\n" + "".join(seen))


def _take_page(browser: Browser, address: str, view: str, path: Path, *, height: int, when: str = "() => true") -> None:
    page = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
    page.goto(address + ("/" + view if view else ""))
    page.locator("h1").first.wait_for()
    page.wait_for_function("() => !document.querySelector('.loading')")
    page.wait_for_function(when, timeout=300_000)
    page.wait_for_timeout(1500)  # until curves have been drawn
    _save(page.screenshot(), path)
    page.close()


def _take_terminal(browser: Browser, folder: Path, words: list[str], name: str, *, rows: int = 60) -> None:
    done = subprocess.run([_script(words[0]), *words[1:]], cwd=folder, capture_output=True, text=True, check=False,
                          env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"})
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor")
    said = (done.stdout + done.stderr).replace(str(folder), _SHOWN_AS)
    console.print(Text.from_ansi("\n".join(said.splitlines()[:rows])))
    output: Any = console.export_html(inline_styles=True, code_format="{code}")
    page = browser.new_page(viewport={"width": 1100, "height": 600})
    page.set_content(_TERMINAL.format(command=" ".join(words), output=output))
    _save(page.locator("#screen").screenshot(), IMAGES / name)
    page.close()


def _save(screenshot: bytes, path: Path) -> None:
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    picture.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
