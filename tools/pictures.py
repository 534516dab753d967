"""Make the pictures of README and documentation again, from the sample photos: make pictures."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
# The gallery: the same two photos for all methods, by what they need of a model. Two methods in a
# picture, so that a phone shows their names at a size that can be read.
PHOTOS = slice(1, 3)
COLUMNS = 2
# Two models of the gallery do not come with visattn; their pictures are made if these runs exist:
# visattn fit --run runs/scenes_vit --config scenes_resnet --model.classifier VisionTransformer
#   --model.classifier.img_size '[96, 96]' --model.classifier.patch_size 8
#   --model.classifier.stem conv --model.classifier.embed_dim 64 --model.classifier.depth 4
#   --model.classifier.num_heads 4 --trainer.max_epochs 12 --model.optim.optimizer.lr 2e-3
# visattn fit --run runs/flowers_cbam --config flowers_mobilenetv2_frozen
# Soft beside hard attention, in the guide to captions:
# visattn fit --run runs/flickr8k_soft --config flickr8k_soft --trainer.max_epochs 8
#   --trainer.precision bf16-mixed
# and the line of configs/README.md for runs/flickr8k_hard, with 2 epochs.
RUNS = {"tokens": Path("runs/scenes_vit"), "gates": Path("runs/flowers_cbam")}
CAPTIONERS = {"soft": Path("runs/flickr8k_soft"), "hard": Path("runs/flickr8k_hard")}
FUNCTION_WORDS = {"a", "an", "the", "is", "are", "in", "on", "doing"}
SCENES = "data shapes --count 2 --size 96 --textures plain"
GATES = {"28 × 28": 0, "14 × 14": 2, "7 × 7": 7, "4 × 4": 9}  # title, number of the gate


def main() -> int:
    """Write the pictures into `docs`."""
    photos = {photo.stem: str(photo) for photo in va.sample_photos()}
    for name, (line, file) in PICTURES.items():
        command, photo, *options = line.split()
        with TemporaryDirectory() as folder:
            visattn([command, photos[photo], *options, "--out", folder])
            save(Image.open(Path(folder, file)), name)
    picture_demo()
    shown = va.sample_photos()[PHOTOS]
    for needs in ("features", "gradient", "scores", "pixels"):
        draw(needs, va.load("imagenet-classifier"), shown)
    if RUNS["tokens"].is_dir():
        with TemporaryDirectory() as folder:
            visattn([*SCENES.split(), "--out", folder])
            draw("tokens", va.load(str(RUNS["tokens"])), sorted(Path(folder).glob("*.png")))
    if RUNS["gates"].is_dir():
        model = va.load(str(RUNS["gates"]))
        for number, titles in enumerate(groups([*GATES], COLUMNS), 1):
            maps = {each: va.explain(model, shown, "gates", layers=GATES[each]) for each in titles}
            save_gallery(maps, shown, f"gates_{number}")
    if all(run.is_dir() for run in CAPTIONERS.values()):
        draw_soft_and_hard(va.sample_photos()[0])
    return 0


def picture_demo() -> None:
    """Take a picture of the page that `visattn demo` writes; this needs Chromium."""
    if (browser := shutil.which("chromium")) is None:
        print("docs/demo.jpg was not made: chromium is not installed")
        return
    with TemporaryDirectory() as folder:
        visattn(["demo", "--no-browser", "--out", folder])
        file, page = Path(folder, "demo.png"), Path(folder, "index.html").as_uri()
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1300,710"]
        shot = [browser, *options, f"--screenshot={file}", page]
        subprocess.run(shot, check=True, stderr=subprocess.DEVNULL)
        save(Image.open(file), "demo")


def draw(needs: str, model: Any, photos: Sequence[Path]) -> None:
    """Draw the methods that need the same of a model, a few in a picture."""
    names = [method.name for method in METHODS.values() if method.needs == needs]
    for number, methods in enumerate(groups(names, COLUMNS), 1):
        save_gallery(va.explain(model, photos, methods), photos, f"{needs}_{number}")


def draw_soft_and_hard(photo: Path) -> None:
    """Draw the words of a captioner with soft attention above those of one with hard attention."""
    rows: list[dict[str, Any]] = []
    for kind, run in CAPTIONERS.items():
        [caption] = va.caption(va.load(str(run)), photo)
        named = [index for index, word in enumerate(caption.words) if word not in FUNCTION_WORDS]
        print(f"{kind} attention: {caption.text}")
        rows.append({f"{kind}: {caption.words[each]}": caption.maps[each] for each in named[:2]})
    with TemporaryDirectory() as folder:
        file = Path(folder, "figure.png")
        va.figure(rows, [photo] * 2, crop=True, smooth=False, width=5).savefig(file)
        save(Image.open(file), "soft_and_hard")


def groups(names: list[str], size: int) -> list[list[str]]:
    """Return names in groups of a size, the last one of what is left."""
    return [names[start : start + size] for start in range(0, len(names), size)]


def save_gallery(maps: Any, photos: Sequence[Path], name: str) -> None:
    """Draw a picture of the gallery."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "gallery.png")
        va.figure(maps, photos, crop=True, width=4, rc={"axes.titlesize": 7.5}).savefig(file)
        save(Image.open(file), f"gallery_{name}")


def save(picture: Image.Image, name: str) -> None:
    """Write a picture into `docs`."""
    picture = picture.convert("RGB")
    picture.thumbnail((WIDTH, WIDTH))
    picture.save(DOCS / f"{name}.jpg", quality=85, optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
