"""Draw the pictures of README.md and docs/*.md anew, by the commands and the code that the pages show for them.

    python tools/pictures.py           writes docs/images
    python tools/pictures.py --check   fails when one of them shows other data; words are not compared

The code of a picture NAME.png is the nearest block above it that has "NAME.png": commands of memsched, or Python after
the blocks of its section. A page made by `memsched report` is photographed by a browser, not by this script.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memsched.show.plots import palette

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"^!\[[^\]]*\]\((?:docs/)?images/(\w+)\.png\)$", re.MULTILINE)
_BARS = sorted({*palette.STREAMS.values(), *palette.ROLES.values()})  # they have names
_COLOURS = sorted({*_BARS, *palette.CLASSES.values(), palette.MEMORY, *palette.LINES})
_GREY = 60  # levels between the largest and the smallest part of a colour: text is greyer than that
_ALIKE = 24  # levels by which a part of a colour may differ
_MOVED = 4  # pixels by which a mark may move
_STROKE = 1  # pixels, of the edge of a difference in a bar that are left out: the strokes of names are as thin
_LEGEND = 125  # rows of pixels at the bottom, without data
MOST_PIXELS = 10  # that may differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture on a page, and what draws it: lines of a shell or Python."""

    page: Path
    name: str
    language: str
    code: str


def pictures() -> list[Picture]:
    """All pictures of the pages that a command or Python draws."""
    return [one for one in shown() if not by_browser(one)]


def shown() -> list[Picture]:
    """All pictures of the pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found += [_picture(page, text, match) for match in _PICTURE.finditer(text)]
    return found


def by_browser(picture: Picture) -> bool:
    """Whether a picture shows a page that its code writes."""
    return f"{picture.name}.png" not in picture.code


def _picture(page: Path, text: str, match: re.Match[str]) -> Picture:
    name = match[1]
    for block in reversed([*_BLOCK.finditer(text, 0, match.start())]):
        language, code = block[1], block[2]
        if not re.search(rf"\b{name}\.(?:png|html)\b", code):
            continue
        if language == "python":
            section = text.rfind("\n## ", 0, block.start())
            before = [one[2] for one in _BLOCK.finditer(text, max(section, 0), block.start()) if one[1] == "python"]
            return Picture(page=page, name=name, language=language, code="\n".join([*before, code]))
        lines = code.replace(" && ", "\n").splitlines()
        if language == "console":  # such a block shows many commands, each by itself
            lines = [line.removeprefix("$ ") for line in lines if re.search(rf"\b{name}\.(?:png|html)\b", line)]
        commands = [line for line in lines if line.startswith("memsched ")]
        return Picture(page=page, name=name, language="sh", code="\n".join(commands))
    raise SystemExit(f"{page.name} has no code above {name}.png that writes a file of this name")


def draw(picture: Picture, folder: Path) -> Path:
    """Draw a picture in a folder."""
    module = [sys.executable, "-m", "memsched"]
    calls = [[*module, *shlex.split(line, comments=True)[1:]] for line in picture.code.splitlines()]
    if picture.language == "python":
        calls = [[sys.executable, "-c", f"import memsched as ms\n{picture.code}"]]
    for call in calls:
        done = subprocess.run(
            call, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | {"MPLBACKEND": "Agg"}
        )
        if done.returncode:
            raise SystemExit(f"{picture.name}.png of {picture.page.name} cannot be drawn: {done.stderr}")
    return folder / f"{picture.name}.png"


def difference(one: Path, other: Path) -> int:
    """Pixels in areas of a colour of data near which the other picture has no such pixel; all if the sizes differ.

    Text and the legend are left out, since they look different in each version of matplotlib.
    """
    first, second = _pixels(one), _pixels(other)
    if first.shape != second.shape:
        return first.size + second.size
    total = 0
    for colour in _COLOURS:
        mine, theirs = (_mask(pixels[:-_LEGEND], colour) for pixels in (first, second))
        edge = _STROKE if any(np.abs(_parts(colour) - _parts(bar)).max() <= 2 * _ALIKE for bar in _BARS) else 0
        for alone in (mine & ~_grown(theirs, _MOVED), theirs & ~_grown(mine, _MOVED)):
            total += int((~_grown(~alone, edge)).sum())
    return total


def _pixels(path: Path) -> npt.NDArray[np.int16]:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"), np.int16)


def _parts(colour: str) -> npt.NDArray[np.int16]:
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.int16)


def _mask(pixels: npt.NDArray[np.int16], colour: str) -> npt.NDArray[np.bool_]:
    """Where the pixels have a colour."""
    parts = _parts(colour)
    if np.ptp(parts) < _GREY:
        return np.zeros(pixels.shape[:2], bool)
    return np.asarray((np.abs(pixels - parts) <= _ALIKE).all(axis=2))


def _grown(mask: npt.NDArray[np.bool_], most: int) -> npt.NDArray[np.bool_]:
    """A mask with the pixels that are at most so far away in each direction."""
    for axis in (0, 1):
        near = np.copy(mask)
        for by in range(1, most + 1):
            for way in (-by, by):
                near |= np.roll(mask, way, axis)
        mask = near
    return mask


def main() -> None:
    """Write the pictures, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a picture looks different")
    check = parser.parse_args().check
    different = []
    for name, picture in {one.name: one for one in pictures()}.items():
        with tempfile.TemporaryDirectory() as folder:
            drawn, kept = draw(picture, Path(folder)), IMAGES / f"{name}.png"
            if not kept.exists() or difference(drawn, kept) > MOST_PIXELS:
                different.append(name)
            if not check:
                kept.write_bytes(drawn.read_bytes())
    print(f"different: {', '.join(different) or 'none'}")
    if check and different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
