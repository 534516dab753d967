"""Make the pictures of README and documentation again, from the sample photos: make pictures."""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import visattn as va
from visattn.cli import main as visattn

DOCS = Path(__file__).parents[1] / "docs"
WIDTH = 1300  # pixels
# picture: the command, whose photo comes second, and the file that it writes
PICTURES = {
    "words": ("caption skateboarder --figures png", "skateboarder.png"),
    "overlay": ("overlay cat", "cat.gradcam.png"),
    "methods": (
        "overlay dinner --method gradcam layercam integrated_gradients occlusion --figures png",
        "dinner.methods.png",
    ),
}


def main() -> int:
    """Write the pictures into `docs`."""
    photos = {photo.stem: str(photo) for photo in va.sample_photos()}
    for name, (line, file) in PICTURES.items():
        command, photo, *options = line.split()
        with TemporaryDirectory() as folder:
            visattn([command, photos[photo], *options, "--out", folder])
            picture = Image.open(Path(folder, file)).convert("RGB")
        picture.thumbnail((WIDTH, WIDTH))
        picture.save(DOCS / f"{name}.jpg", quality=85, optimize=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
