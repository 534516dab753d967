"""Plants shortcuts in training photos, trains classifiers on them, and audits these.

    python tools/audit_plants.py flowers --data FOLDER --weights FILE --seeds 0 1 2 --out rates.csv

Photos are flowers (FOLDER with train and val, a folder per class) or drawn scenes with a single
object. Four plants (frame, tag, watermark, tint) are put on 60 % of the photos of four classes; the
first layers of an ImageNet MobileNetV2 are frozen, the rest is trained for 105 steps. Text, color,
size and place of the plants follow from the seed. Each model is audited on photos that were planted
in the same way (`planted`) and on clean ones (`training only`), and a model of clean training on
both (`clean`, `unused`).
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import visattn as va
from visattn.data.scenes.dataset import single_object_world
from visattn.data.scenes.world import SHAPES, draw_world, object_masks
from visattn.pipelines.audit.audit import AuditOptions, analyze_evidence, examine_all
from visattn.pipelines.audit.evidence import Examiner
from visattn.pipelines.audit.report import AuditReport
from visattn.pipelines.audit.stamps import default_stamps
from visattn.results.audit import Finding

SIZE = 160
SHARE = 0.6
STEPS, BATCH = 105, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KINDS = ("frame", "tag", "watermark", "tint")
STAMPS_OF = {
    "frame": ("frame", "bars"), "tag": ("tag",), "tint": ("tint",),
    "watermark": ("watermark", "corner text", "date"),
}  # fmt: skip
"""Names of the stamps of the bank that are of the kind of a plant."""
Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass
class PlantedSet:
    """Photos at the size of the network."""

    pixels: np.ndarray
    labels: np.ndarray
    masks: np.ndarray | None = None


def plant(kind: str, seed: int) -> Draw:
    """Return what draws a plant; its look follows from the seed."""
    look = np.random.default_rng([seed, KINDS.index(kind)])
    color = tuple(int(each) for each in look.integers(0, 256, 3))
    text = "".join(look.choice(list("ABCEFHKLMNPRSTUX0123456789"), 6))
    width = int(look.integers(5, 9))
    place = look.random(2)
    corner = [(0.02, 0.02), (0.98, 0.02), (0.02, 0.98), (0.98, 0.98)][look.integers(4)]
    gains = look.permutation([1.2, 1.0, 0.7])
    font = ImageFont.load_default(int(look.integers(16, 24)))

    def draw(pixels: np.ndarray, photo: np.random.Generator) -> np.ndarray:
        if kind == "tint":
            return (pixels * gains).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(pixels)
        if kind == "frame":
            ImageDraw.Draw(image).rectangle((0, 0, SIZE - 1, SIZE - 1), outline=color, width=width)
            return np.asarray(image)
        box = font.getbbox(text[: 3 if kind == "tag" else 6])
        plate = Image.new("RGBA", (int(box[2]) + 8, int(box[3]) + 8), (0, 0, 0, 0))
        if kind == "tag":
            plate.paste((*color, 255), (0, 0, *plate.size))
            ink = (0, 0, 0) if sum(color) > 380 else (255, 255, 255)
            ImageDraw.Draw(plate).text((4, 4), text[:3], fill=(*ink, 255), font=font)
            at = photo.random(2)
        else:
            ImageDraw.Draw(plate).text((4, 4), text, fill=(255, 255, 255, 150), font=font)
            at = np.array(corner) if place[0] < 2 else place
        x, y = (int(at[n] * (SIZE - plate.size[n])) for n in (0, 1))
        image.paste(plate.convert("RGB"), (x, y), plate.getchannel("A"))
        return np.asarray(image)

    return draw


def planted(photos: PlantedSet, seed: int, stream: int) -> tuple[PlantedSet, dict[int, str]]:
    """Return photos with plants, and the kind of plant of each class."""
    classes = sorted({*photos.labels.tolist()})
    order = np.random.default_rng(seed).permutation(classes)
    kinds = dict(zip(order[: len(KINDS)].tolist(), KINDS, strict=False))
    draws = {label: plant(kind, seed) for label, kind in kinds.items()}
    pixels = photos.pixels.copy()
    for index, label in enumerate(photos.labels.tolist()):
        photo = np.random.default_rng([seed, stream, index])
        if label in draws and photo.random() < SHARE:
            pixels[index] = draws[label](pixels[index], photo)
    return PlantedSet(pixels, photos.labels, photos.masks), kinds


def flowers(folder: Path, split: str, count: int) -> PlantedSet:
    """Return photos of flowers, cropped to squares."""
    pixels, labels = [], []
    for label, name in enumerate(sorted(path.name for path in (folder / split).iterdir())):
        for path in sorted((folder / split / name).iterdir())[:count]:
            image = Image.open(path).convert("RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            image = image.resize((SIZE, SIZE), box=(left, top, left + side, top + side))
            pixels.append(np.asarray(image))
            labels.append(label)
    return PlantedSet(np.stack(pixels), np.array(labels))


def scenes(split: str, count: int) -> PlantedSet:
    """Return drawn scenes with one object, whose shape is the class."""
    source = va.Scenes(count * len(SHAPES), size=SIZE, split=split, seed=7)
    worlds = [single_object_world(source, index) for index in range(len(source))]
    labels = np.array([SHAPES.index(world.objects[0].shape) for world in worlds])
    masks = np.stack([object_masks(world, SIZE).any(0) for world in worlds])
    return PlantedSet(np.stack([draw_world(world, SIZE) for world in worlds]), labels, masks)


def network(weights: Path, classes: int) -> nn.Module:
    """Return an ImageNet MobileNetV2 with a new classifier."""
    from safetensors.torch import load_file

    model = timm.create_model("mobilenetv2_100", num_classes=classes)
    state = {key: value for key, value in load_file(weights).items() if "classifier" not in key}
    model.load_state_dict(state, strict=False)
    return model.eval()


def inputs(pixels: np.ndarray) -> Tensor:
    """Return normalized inputs of photos."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(pixels.transpose(0, 3, 1, 2)) / 255 - mean) / std


def trained(photos: PlantedSet, weights: Path, seed: int) -> nn.Module:
    """Return a network whose layers behind stride 16 were trained on photos."""
    torch.manual_seed(seed)
    model = network(weights, int(photos.labels.max()) + 1)
    head = nn.Sequential(*model.blocks[5:], model.conv_head, model.bn2, model.global_pool,
                         model.classifier)  # fmt: skip
    with torch.no_grad():
        features = torch.cat([
            model.blocks[:5](model.bn1(model.conv_stem(inputs(part))))
            for part in np.array_split(photos.pixels, len(photos.pixels) // 32 + 1)
        ])  # fmt: skip
    labels = torch.from_numpy(photos.labels)
    optimizer = torch.optim.AdamW(head.parameters(), 1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(len(labels), generator=generator) for _ in range(30)])
    head.train()
    for step in range(STEPS):
        rows = order[step * BATCH : (step + 1) * BATCH]
        loss = nn.functional.cross_entropy(head(features[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def audited(
    model: nn.Module, photos: PlantedSet, names: Sequence[str], *, budget: int, seed: int
) -> AuditReport:
    """Return the audit of a model."""
    from torchvision.transforms import v2

    steps = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize(list(MEAN), list(STD))])  # fmt: skip
    explainer = va.Explainer(model, class_names=list(names), transform=steps, img_size=SIZE)
    examiner = Examiner(explainer, seed=seed)
    keys = [f"{index:05d}" for index in range(len(photos.labels))]
    at = {key: index for index, key in enumerate(keys)}

    def read(key: str) -> va.AttentionMap:
        from visattn.images.reader import LoadedImage

        return LoadedImage(photos.pixels[at[key]], name=key)

    labels = {key: int(photos.labels[at[key]]) for key in keys}
    masks = {} if photos.masks is None else {key: photos.masks[at[key]] for key in keys}
    rows = examine_all(examiner, read, labels, masks, 32)
    options = AuditOptions(default_stamps(), budget=budget, batch_size=32, seed=seed)
    return analyze_evidence(rows, examiner, read, options)


def measured(report: AuditReport, kinds: dict[str, str], photos: "set[str]") -> list[dict]:
    """Return a row for each plant: its rank, and whether patches and stamps are confirmed."""
    del photos
    rows = []
    patches = [each for each in report.findings if each.kind == "patches"]
    for name, kind in kinds.items():
        stamps = [
            each for each in report.findings
            if each.kind == "stamp" and each.class_name == name
            and each.name.startswith(STAMPS_OF[kind])
        ]  # fmt: skip
        confirmed = [each.name for each in stamps if each.status == "confirmed"]
        best = max((each.effect.low for each in stamps if each.effect), default=float("nan"))
        rows.append({"class": name, "plant": kind, "stamps confirmed": "; ".join(confirmed),
                     "best stamp, low": round(best, 2)})  # fmt: skip
    del patches
    return rows


def describe(finding: Finding) -> str:
    """Return a finding in one line."""
    effect = finding.effect
    text = "-" if effect is None else f"{effect.value:+.2f} [{effect.low:+.2f} {effect.high:+.2f}]"
    return f"{finding.class_name} {finding.name}: {finding.status} {text} {dict(finding.details)}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_set", choices=("flowers", "scenes"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    args = parser.parse_args()
