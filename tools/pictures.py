"""Make the pictures of README and documentation again, from the sample photos: make pictures."""

from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

import visattn as va
from visattn.attribution import METHODS
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
# The gallery: the same two photos for all methods, four in a picture, by what they need of a model.
PHOTOS = slice(1, 3)
COLUMNS = 4
GALLERY = {
    f"{needs}_{number + 1}": names[COLUMNS * number : COLUMNS * (number + 1)]
    for needs in ("features", "gradient", "scores")
    for names in [[each.name for each in METHODS.values() if each.needs == needs]]
    for number in range(-(-len(names) // COLUMNS))
}


def main() -> int:
    """Write the pictures into `docs`."""
    photos = {photo.stem: str(photo) for photo in va.sample_photos()}
    for name, (line, file) in PICTURES.items():
        command, photo, *options = line.split()
        with TemporaryDirectory() as folder:
            visattn([command, photos[photo], *options, "--out", folder])
            save(Image.open(Path(folder, file)), name)
    model, shown = va.load("imagenet-classifier"), va.sample_photos()[PHOTOS]
    for name, methods in GALLERY.items():
        with TemporaryDirectory() as folder:
            file = Path(folder, "gallery.png")
            va.figure(va.explain(model, shown, methods), shown, crop=True).savefig(file)
            save(Image.open(file), f"gallery_{name}")
    return 0


def save(picture: Image.Image, name: str) -> None:
    """Write a picture into `docs`."""
    picture = picture.convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    picture.save(DOCS / f"{name}.jpg", quality=85, optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
