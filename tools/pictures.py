"""Make the pictures of README and documentation again, from the sample photos: make pictures."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

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
# The model with gates does not come with visattn; its pictures are made if this run exists:
# visattn fit --run runs/flowers_cbam --config flowers_mobilenetv2_frozen
FLOWERS = Path("runs/flowers_cbam")
# Soft beside hard attention, in the guide to captions:
# visattn fit --run runs/flickr8k_soft --config flickr8k_soft --trainer.max_epochs 8
#   --trainer.precision bf16-mixed
# and the line of configs/README.md for runs/flickr8k_hard, with 2 epochs.
CAPTIONERS = {"soft": Path("runs/flickr8k_soft"), "hard": Path("runs/flickr8k_hard")}
NOT_SHOWN = {"a", "an", "the", "is", "are", "in", "on", "doing"}  # words
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
    draw("tokens", explainer_with_tokens(), shown)
    if FLOWERS.is_dir():
        model = va.load(str(FLOWERS))
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
        right = [
            str(each) for each in va.sample_photos() if each.stem in ("skateboarder", "dinner")
        ]
        visattn(["demo", *right, "--no-browser", "--out", folder])
        file, page = Path(folder, "demo.png"), Path(folder, "index.html").as_uri()
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1300,420"]
        shot = [browser, *options, f"--screenshot={file}", page]
        subprocess.run(shot, check=True, stderr=subprocess.DEVNULL)
        save(Image.open(file), "demo")


class CellAttention(nn.Module):
    """Self-attention with 8 heads, whose values are the tokens themselves."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qk = nn.Linear(dim, 2 * 8 * 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of the tokens by their attention."""
        q, k = self.qk(x).unflatten(-1, (2, 8, 32)).permute(2, 0, 3, 1, 4)
        v = x.unflatten(-1, (8, -1)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class AttentionPooling(nn.Module):
    """A classifier in which a class token attends to the cells, in place of their mean."""

    def __init__(self, classifier: Any) -> None:
        super().__init__()
        self.backbone: Any = classifier.backbone
        self.head: Any = classifier.head
        dim = self.head.in_features
        self.token = nn.Parameter(torch.zeros(dim))
        self.attention = CellAttention(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of normalized images."""
        return self.classify(self.backbone.forward_features(x).flatten(2).mT)

    def classify(self, cells: Tensor) -> Tensor:
        """Return the logits, from the features of the cells."""
        tokens = torch.cat([self.token.expand(len(cells), 1, -1), cells], 1)
        return self.head(self.attention(tokens)[:, 0])


def explainer_with_tokens() -> va.Explainer:
    """Train an attention pooling on crops of the sample photos, for a minute.

    The targets are the classes that the classifier predicts, so it attends to their evidence.
    """
    torch.manual_seed(0)
    classifier: Any = va.load("imagenet-classifier").requires_grad_(requires_grad=False)
    crop = v2.Compose([v2.RandomResizedCrop(224, scale=(0.1, 1)), v2.RandomHorizontalFlip()])
    photos = [decode_image(str(each), ImageReadMode.RGB) for each in va.sample_photos()]
    pixels = classifier.normalize(torch.stack([crop(each) for each in photos for _ in range(25)]))
    model = AttentionPooling(classifier).eval()
    with torch.no_grad():
        grids = [model.backbone.forward_features(each) for each in pixels.split(25)]
        cells = torch.cat(grids).flatten(2).mT
        sure, classes = model.head(cells.mean(1)).softmax(-1).max(-1)
    cells, classes = cells[sure > 0.3], classes[sure > 0.3]
    optimizer = torch.optim.AdamW([model.token, *model.attention.parameters()], 1e-3)
    for _ in range(60):
        batch = torch.randint(len(classes), (48,))
        loss = F.cross_entropy(model.classify(cells[batch]), classes[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    kept = {"class_names": classifier.class_names, "input_size": classifier.img_size}
    return va.Explainer(model, mean=classifier.mean, std=classifier.std, **kept)


def draw(needs: str, model: Any, photos: Sequence[Path]) -> None:
    """Draw the methods that need the same of a model, a few in a picture."""
    names = [method.name for method in METHODS.values() if method.needs == needs]
    explainer = model if isinstance(model, va.Explainer) else va.Explainer(model)
    for number, methods in enumerate(groups(names, COLUMNS), 1):
        save_gallery(explainer.explain(photos, methods), photos, f"{needs}_{number}")


def draw_soft_and_hard(photo: Path) -> None:
    """Draw the words of a captioner with soft attention above those of one with hard attention."""
    rows: list[dict[str, Any]] = []
    for kind, run in CAPTIONERS.items():
        [caption] = va.caption(va.load(str(run)), photo)
        named = [index for index, word in enumerate(caption.words) if word not in NOT_SHOWN]
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
