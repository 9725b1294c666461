"""Pictures of a report for the documentation: `python -m tests.screenshots RUN/report.html`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

from tests.browser import picture

MOST_BYTES = 300_000
TALL = 16_000  # pixels: more than any report needs

# Width, height (None: down to the end of the page, at half the size), dark.
VIEWS: dict[str, tuple[int, int | None, bool]] = {
    "report-desktop": (1280, 900, False),
    "report-dark": (1280, 900, True),
    "report-full": (1280, None, False),
    "report-phone": (390, 2400, False),
}


def take(page: Path, folder: Path) -> list[Path]:
    """Write one PNG file per view.

    Args:
        page: A `report.html`.
        folder: Where to.

    Returns:
        The files.

    Raises:
        ValueError: A picture is too large for a repository.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (width, height, dark) in VIEWS.items():
        file = folder / f"{name}.png"
        with tempfile.TemporaryDirectory() as scratch:
            raw = Path(scratch, "raw.png")
            picture(page, raw, width, height or TALL, dark=dark)
            with Image.open(raw) as image:
                shown = _cut(image.convert("RGB"))
                if height is None:
                    shown = shown.reduce(2)
                shown.quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{file}: {file.stat().st_size} bytes, more than {MOST_BYTES}")
        files.append(file)
    return files


def _cut(image: Image.Image) -> Image.Image:
    """The picture without the empty rest below the page."""
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    box = ImageChops.difference(image, empty).getbbox()
    return image if box is None else image.crop((0, 0, image.width, min(image.height, box[3] + 32)))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="a report.html")
    parser.add_argument("--output", type=Path, default=Path("docs/images"), help="folder")
    arguments = parser.parse_args()
    for file in take(arguments.page, arguments.output):
        print(f"{file}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()
