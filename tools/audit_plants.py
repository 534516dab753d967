"""Rates of `visattn audit` on shortcuts that are planted into the training of classifiers.

    python tools/audit_plants.py --seeds 0 1 2 3 4 --folder runs --out rates.jsonl
    python tools/audit_plants.py --seeds 0 --flowers DIR --weights FILE --folder A --out B

Photos are drawn scenes with one object, whose shape is the class, at 64 pixels, and the model is a
small CNN that was trained on clean scenes; with --flowers they are photos (DIR with train and val,
a folder per class) at 160 pixels, and the model is a MobileNetV2 of ImageNet, whose layers behind
stride 16 are trained. Four plants (frame, tag, watermark, tint) are put on 60 % of the photos of
four classes; their color, text, size and place follow from the seed. For each seed a model is
trained further on photos with the plants ("planted"), on clean ones ("clean"), or on photos of
which 60 % have one of the plants, whichever their class ("ignoring": it saw the plants, and they
say nothing of the class). They are audited on photos with the plants and on clean ones; there
stamps are compared with more clean models, --references. With --photos planted there are no stamps.
Seeds from 100 on were used to set up the analyses. Models and reports are kept in the folder of
--folder, and read when they are there.

What a plant is worth to a model ("used") is measured without the audit: the plant is drawn on
clean photos of other classes, and the change of the log-odds of its class is averaged; "beside
blur" compares with the same pixels blurred, as a tag that covers the object raises all other
classes. A plant that is used by less than a nat is none that an audit has to confirm, whatever the
training meant.

With --own-stamps planted models are tested by stamps alone, among which are the plants themselves
("own frame", ...), on 16 clean photos of a class, beyond the reference models; "learned" is what
the planted model uses a plant more than these do.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import load_file, save_file
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn
from torchvision.transforms import v2

from visattn.commands.options import CommandParser, seed
from visattn.data.scenes.dataset import Scenes, single_object_world
from visattn.data.scenes.world import SHAPES, draw_world, object_masks
from visattn.images.reader import LoadedImage
from visattn.pipelines.audit.audit import AuditOptions, analyze_evidence, examine_all
from visattn.pipelines.audit.evidence import Examiner, class_log_odds
from visattn.pipelines.audit.report import AuditReport, load_audit
from visattn.pipelines.audit.stamps import Stamp, default_stamps
from visattn.pipelines.explainer import Explainer
from visattn.results.audit import Finding

SHARE = 0.6
MEAN, STD = (0.5,) * 3, (0.5,) * 3  # of the ImageNet weights
KINDS = ("frame", "tag", "watermark", "tint")
STAMPS_OF = {
    "frame": ("frame", "bars"), "tag": ("tag",), "tint": ("tint",),
    "watermark": ("watermark", "corner text", "date"),
}  # fmt: skip
"""Names of the stamps of the bank that are of the kind of a plant."""
CROPS, CROP = 12, 3.5  # of a candidate in the report, the nearest; side in cells
_OWN_PHOTOS = 16  # of a class: too few for a search of patches, enough for stamps
PURE = 0.7  # share of these crops that show the plant; 0.6 of the photos of the class have it
Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


@dataclass
class PlantedSet:
    """Photos at the size of the network.

    Args:
        pixels: The photos.
        labels: Class of each.
        masks: Objects, if they are known.
        kinds: Kind of the plant of each class that has one.
        changed: Pixels of the plants.
    """

    pixels: np.ndarray
    labels: np.ndarray
    names: Sequence[str]
    masks: np.ndarray | None = None
    kinds: dict[int, str] | None = None
    changed: np.ndarray | None = None


def plant(kind: str, look: np.random.Generator, size: int) -> Draw:
    """Return what draws a plant."""
    color = tuple(int(each) for each in look.integers(0, 256, 3))
    text = "".join(look.choice(list("ABCEFHKLMNPRSTUX0123456789"), 6))
    width = int(look.integers(size // 32, size // 18 + 1))
    corner = [(0.02, 0.02), (0.98, 0.02), (0.02, 0.98), (0.98, 0.98)][look.integers(4)]
    gains = look.permutation([1.2, 1.0, 0.7])
    font = ImageFont.load_default(int(look.integers(max(9, size // 10), max(11, size // 7))))

    def draw(pixels: np.ndarray, photo: np.random.Generator) -> np.ndarray:
        if kind == "tint":
            return (pixels * gains).clip(0, 255).astype(np.uint8)
        image = Image.fromarray(pixels)
        if kind == "frame":
            ImageDraw.Draw(image).rectangle((0, 0, size - 1, size - 1), outline=color, width=width)
            return np.asarray(image)
        words = text[:3] if kind == "tag" else text
        box = font.getbbox(words)
        plate = Image.new("RGBA", (min(int(box[2]) + 4, size), int(box[3]) + 4), (0, 0, 0, 0))
        at = np.array(corner)
        ink = (255, 255, 255, 220)
        if kind == "tag":
            plate.paste((*color, 255), (0, 0, *plate.size))
            ink = (0, 0, 0, 255) if sum(color) > 380 else (255, 255, 255, 255)
            at = photo.random(2)
        ImageDraw.Draw(plate).text((2, 2), words, fill=ink, font=font)
        x, y = (int(at[n] * (size - plate.size[n])) for n in (0, 1))
        image.paste(plate.convert("RGB"), (x, y), plate.getchannel("A"))
        return np.asarray(image)

    return draw


def plants(number: int, names: Sequence[str], size: int) -> dict[int, tuple[str, Draw]]:
    """Return kind and drawing of the plant of four classes, for a seed."""
    order = np.random.default_rng(number).permutation(len(names))
    return {
        int(label): (kind, plant(kind, np.random.default_rng([number, place]), size))
        for place, (label, kind) in enumerate(zip(order, KINDS, strict=False))
    }


def with_plants(
    photos: PlantedSet, number: int, stream: int, *, anywhere: bool = False
) -> PlantedSet:
    """Return photos with plants on 60 % of those of four classes.

    Args:
        photos: Clean ones.
        number: Seed of the plants.
        stream: Of the random numbers that decide which photos have one, and where.
        anywhere: Whether each of these photos, of any class, has one of the four at random.
    """
    draws = plants(number, photos.names, photos.pixels.shape[1])
    pixels = photos.pixels.copy()
    for index, label in enumerate(photos.labels.tolist()):
        photo = np.random.default_rng([number, stream, index])
        if (anywhere or label in draws) and photo.random() < SHARE:
            chosen = int(photo.choice(sorted(draws))) if anywhere else label
            pixels[index] = draws[chosen][1](pixels[index], photo)
    kinds = {label: kind for label, (kind, _) in draws.items()}
    changed = (pixels != photos.pixels).any(3)
    return PlantedSet(pixels, photos.labels, photos.names, photos.masks, kinds, changed)


def flowers(folder: Path, split: str, count: int, size: int = 160) -> PlantedSet:
    """Return photos of flowers, cropped to squares."""
    pixels, labels = [], []
    names = sorted(path.name for path in (folder / split).iterdir())
    for label, name in enumerate(names):
        for path in sorted((folder / split / name).iterdir())[:count]:
            with Image.open(path) as opened:
                image = opened.convert("RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            image = image.resize((size, size), box=(left, top, left + side, top + side))
            pixels.append(np.asarray(image))
            labels.append(label)
    return PlantedSet(np.stack(pixels), np.array(labels), names)


def scenes(split: Any, count: int, size: int = 64) -> PlantedSet:
    """Return drawn scenes with one object, whose shape is the class."""
    source = Scenes(2 * count * len(SHAPES), size=size, split=split, seed=7)
    chosen: dict[int, list[int]] = {}
    worlds = [single_object_world(source, index) for index in range(len(source))]
    for index, world in enumerate(worlds):
        chosen.setdefault(SHAPES.index(world.objects[0].shape), []).append(index)
    order = [index for label in sorted(chosen) for index in chosen[label][:count]]
    labels = np.array([SHAPES.index(worlds[index].objects[0].shape) for index in order])
    masks = np.stack([object_masks(worlds[index], size).any(0) for index in order])
    pixels = np.stack([draw_world(worlds[index], size) for index in order])
    return PlantedSet(pixels, labels, SHAPES, masks)


def inputs(pixels: np.ndarray) -> Tensor:
    """Return normalized inputs of photos."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (torch.from_numpy(pixels.transpose(0, 3, 1, 2)) / 255 - mean) / std


def small_network(classes: int) -> nn.Module:
    """Return a CNN with 8 x 8 cells of 64 pixels."""
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1)):
        convolution = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        layers.append(nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU()))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def mobile_network(weights: Path, classes: int) -> Any:
    """Return an ImageNet MobileNetV2 with a new classifier."""
    model = timm.create_model("mobilenetv2_100", pad_type="same", num_classes=classes)
    state = {key: value for key, value in load_file(weights).items() if "classifier" not in key}
    model.load_state_dict(state, strict=False)
    return model.eval()


def trained(
    photos: PlantedSet, weights: Path, number: int, *, flowers: bool, steps: int
) -> nn.Module:
    """Return a classifier of photos: a small CNN, or the tail of a MobileNetV2.

    Args:
        photos: To train on.
        weights: What training starts from; for scenes it starts anew if the file is missing.
        number: Seed.
        flowers: Whether they are photos of flowers.
        steps: Steps of training.
    """
    torch.manual_seed(number)
    labels = torch.from_numpy(photos.labels)
    if not flowers:
        model = small_network(len(photos.names))
        if weights.exists():
            model.load_state_dict(load_file(weights))
        tail, features, batch, shift = model, inputs(photos.pixels), 48, 4
    else:
        model = mobile_network(weights, len(photos.names))
        tail = nn.Sequential(*model.blocks[5:], model.conv_head, model.bn2, model.global_pool,
                             model.classifier)  # fmt: skip
        stem = nn.Sequential(model.conv_stem, model.bn1, *model.blocks[:5])
        parts = np.array_split(photos.pixels, len(photos.pixels) // 32 + 1)
        with torch.no_grad():
            features = torch.cat([stem(inputs(part)) for part in parts])
        batch, shift = 64, 0
    optimizer = torch.optim.AdamW(tail.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, steps)
    generator = torch.Generator().manual_seed(number)
    tail.train()
    for _ in range(steps):
        rows = torch.randint(len(labels), (batch,), generator=generator)
        moved = torch.randint(-shift, shift + 1, (2,), generator=generator).tolist()
        shown = features[rows].roll(moved, (2, 3)) if shift else features[rows]
        loss = nn.functional.cross_entropy(tail(shown), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def audited(model: nn.Module, photos: PlantedSet, stamps: Sequence[Stamp]) -> AuditReport:
    """Return the audit of a model."""
    steps = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
                        v2.Normalize(list(MEAN), list(STD))])  # fmt: skip
    size = photos.pixels.shape[1]
    explainer = Explainer(model, class_names=list(photos.names), transform=steps, img_size=size)
    examiner = Examiner(explainer)
    keys = {f"{index:05d}": index for index in range(len(photos.labels))}

    def read(key: str) -> LoadedImage:
        return LoadedImage(photos.pixels[keys[key]], name=key)

    labels = {key: int(photos.labels[index]) for key, index in keys.items()}
    masks = photos.masks
    objects = {} if masks is None else {key: masks[index] for key, index in keys.items()}
    rows = examine_all(examiner, read, labels, objects, 32)
    options = AuditOptions(stamps, batch_size=32)
    return analyze_evidence(rows, examiner, read, options)


def report_of(
    model: nn.Module, photos: PlantedSet, folder: Path, *, stamps: bool
) -> tuple[AuditReport, float | None]:
    """Return the audit of a model and the CPU seconds that it took; one in the folder is read."""
    if (folder / "findings.json").exists():
        return load_audit(folder), None
    start = time.process_time()
    report = audited(model, photos, default_stamps() if stamps else [])
    report.save(folder)
    return report, round(time.process_time() - start, 1)


def use_of(
    model: nn.Module, photos: PlantedSet, label: int, draw: Draw, *, beside_blur: bool = False
) -> float:
    """Return what a plant changes of the log-odds of its class on clean photos of the others.

    Args:
        model: The classifier.
        photos: Clean ones.
        label: The class.
        draw: Draws the plant.
        beside_blur: Whether it is compared with the same pixels blurred, not with the photo.
    """
    others = np.flatnonzero(photos.labels != label)[::12]
    clean = photos.pixels[others]
    edited = np.stack([
        draw(pixels, np.random.default_rng(index)) for index, pixels in enumerate(clean)
    ])  # fmt: skip
    if beside_blur:
        spread = 0.08 * clean.shape[1]
        changed = (edited != clean).any(3, keepdims=True)
        clean = np.where(changed, gaussian_filter(clean, (0, spread, spread, 0)), clean)
    with torch.no_grad():
        after, before = (class_log_odds(model(inputs(each)))[:, label] for each in (edited, clean))
    return float((after - before).mean())


def own_stamps(draws: dict[int, tuple[str, Draw]]) -> list[Stamp]:
    """Return the plants of a seed as stamps."""

    def stamp(kind: str, draw: Draw) -> Stamp:
        def drawn(image: Image.Image, generator: np.random.Generator) -> Image.Image:
            return Image.fromarray(draw(np.asarray(image), generator))

        return Stamp(f"own {kind}", drawn, is_local=kind != "tint")

    return [stamp(kind, draw) for kind, draw in draws.values()]


def own_rates(
    model: nn.Module, others: Sequence[nn.Module], photos: PlantedSet, number: int
) -> Iterator[dict[str, Any]]:
    """Yield what stamps say of each plant if the plants are among them.

    Args:
        model: A planted one.
        others: Reference models.
        photos: Clean ones.
        number: Seed of the plants.
    """
    rows = np.concatenate([
        np.flatnonzero(photos.labels == label)[:_OWN_PHOTOS] for label in range(len(photos.names))
    ])  # fmt: skip
    few = PlantedSet(photos.pixels[rows], photos.labels[rows], photos.names)
    draws = plants(number, photos.names, photos.pixels.shape[1])
    stamps = [*default_stamps(), *own_stamps(draws)]
    own, *references = [audited(each, few, stamps) for each in (model, *others)]
    judged = {
        (each.name, each.class_name): each for each in own.with_references(references).findings
    }
    confirmed = {pair for pair, each in judged.items() if each.status == "confirmed"}
    for label, (kind, draw) in draws.items():
        used = [use_of(each, photos, label, draw) for each in (model, *others)]
        name = photos.names[label]
        finding = judged[f"own {kind}", name]
        yield {
            "plant": kind, "class": name, "used": round(used[0], 2),
            "learned": round(used[0] - float(np.mean(used[1:])), 2),
            "own": finding.status, "effect": finding.effect and round(finding.effect.value, 2),
            "of its kind": sorted(
                each for each, of_class in confirmed
                if of_class == name and each.startswith(STAMPS_OF[kind])
            ),
        }  # fmt: skip


def rates(report: AuditReport, photos: PlantedSet) -> Iterator[dict[str, Any]]:
    """Yield what the audit says of each plant, and of candidates that are none."""
    patches = [each for each in report.findings if each.kind == "patches"]
    stamps = [each for each in report.findings if each.kind == "stamp"]
    ranked = patches  # as in the report
    on_plant = [_is_of_plant(each, photos, report.maps.shape[1:]) for each in ranked]
    first_other = on_plant.index(False) if False in on_plant else len(ranked)
    for label, kind in (photos.kinds or {}).items():
        name = photos.names[label]
        own = [
            (place, each)
            for place, each in enumerate(ranked)
            if on_plant[place] and each.class_name == name
        ]
        in_class = [each for each in stamps if each.class_name == name]
        of_kind = [each for each in in_class if each.name.startswith(STAMPS_OF[kind])]
        yield {
            "plant": kind, "class": name,
            "candidates": [each.status for _, each in own],
            "on top": any(place < first_other for place, _ in own),
            "stamps": [each.name for each in of_kind if each.status == "confirmed"],
            "effects": [each.effect.value for _, each in own if each.effect],
        }  # fmt: skip
    others = [each for each, plants in zip(ranked, on_plant, strict=True) if not plants]
    confirmed = [each for each in others if each.status == "confirmed"]
    yield {
        "plant": "none",
        "others": len(others),
        "others confirmed": len(confirmed),
        "confirmed outside": sum(each.is_beside_objects for each in confirmed),
        "stamps confirmed": [
            f"{each.class_name}: {each.name}" for each in stamps if each.status == "confirmed"
        ],
        "stamp tests": len(stamps),
        "notes": list(report.content.notes),
    }


def _is_of_plant(finding: Finding, photos: PlantedSet, grid: Sequence[int]) -> bool:
    """Whether the crops of a candidate in the report show the plant of their photo."""
    if photos.changed is None:
        return False
    side = photos.pixels.shape[1]
    half = CROP / 2 * side / max(grid)
    shown: list[bool] = []
    for name, place in [*zip(finding.photos, finding.places, strict=True)][:CROPS]:
        (left, top), (right, bottom) = (
            [round(min(max(at * side + reach, 0), side)) for at in place] for reach in (-half, half)
        )
        shown.append(bool(photos.changed[int(name), top:bottom, left:right].any()))
    return bool(np.mean(shown) >= PURE)


def model_of(
    train: PlantedSet, kind: str, number: int, folder: Path, weights: Path | None
) -> nn.Module:
    """Return the planted, clean or ignoring model of a seed; one in the folder is read."""
    file = folder / f"{kind}{number}.safetensors"
    if file.exists():
        count = len(train.names)
        model = small_network(count) if weights is None else mobile_network(weights, count)
        model.load_state_dict(load_file(file))
        return model.eval()
    photos = train
    if kind != "clean":
        photos = with_plants(train, number, 0, anywhere=kind == "ignoring")
    start = weights or folder / "start.safetensors"
    steps = 300 if weights is None else 105
    model = trained(photos, start, number, flowers=weights is not None, steps=steps)
    save_file(model.state_dict(), file)
    return model


def main() -> None:
    """Append a line of JSON for each plant of each audit."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--seeds", type=seed, nargs="+", required=True, help="seeds of plants")
    parser.add_argument("--flowers", type=Path, help="folder of photos, instead of scenes")
    parser.add_argument("--weights", type=Path, help="of timm's mobilenetv2_100, for --flowers")
    parser.add_argument("--count", type=int, default=200, help="audited photos of a class")
    parser.add_argument(
        "--models",
        choices=("planted", "clean", "ignoring"),
        nargs="+",
        default=("planted", "clean"),
        help="which models are audited",
    )
    parser.add_argument(
        "--photos",
        choices=("planted", "clean"),
        nargs="+",
        default=("planted", "clean"),
        help="on which photos; clean ones get stamps, beyond more models",
    )
    parser.add_argument("--references", type=int, default=5, help="number of these models")
    parser.add_argument("--own-stamps", action="store_true", help="test the plants as stamps alone")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the models")
    parser.add_argument("--out", type=Path, required=True, help="file of results")
    args = parser.parse_args()
    if args.flowers is None:
        train, val = scenes("train", 600), scenes("validation", args.count)
    else:
        train, val = (flowers(args.flowers, *each) for each in (("train", 150),
                                                                ("val", args.count)))  # fmt: skip
    args.folder.mkdir(parents=True, exist_ok=True)
    start = args.folder / "start.safetensors"
    if args.flowers is None and not start.exists():
        first = trained(train, start, 1000, flowers=False, steps=800)
        save_file(first.state_dict(), start)
    numbers = range(1001, 1001 + args.references)
    if args.own_stamps:
        _append_own(args, train, val, numbers)
        return
    references: list[AuditReport] = []
    if "clean" in args.photos:
        for number in numbers:
            model = model_of(train, "clean", number, args.folder, args.weights)
            report, _ = report_of(model, val, args.folder / f"clean{number}_clean", stamps=True)
            references.append(report)
    for number in args.seeds:
        photos = {"planted": with_plants(val, number, 1), "clean": val}
        for kind in args.models:
            model = model_of(train, kind, number, args.folder, args.weights)
            for data in args.photos:
                file = args.folder / f"{kind}{number}_{data}"
                report, seconds = report_of(model, photos[data], file, stamps=data == "clean")
                if data == "clean":
                    report = report.with_references(references)
                about = {"seed": number, "model": kind, "photos": data, "cpu": seconds}
                _append(args.out, about, report, photos["planted"], model, val)


def _append_own(
    args: Namespace, train: PlantedSet, val: PlantedSet, numbers: Sequence[int]
) -> None:
    """Append what stamps say of each plant if the plants are among them."""
    others = [model_of(train, "clean", each, args.folder, args.weights) for each in numbers]
    for number in args.seeds:
        model = model_of(train, "planted", number, args.folder, args.weights)
        with args.out.open("a") as file:
            for row in own_rates(model, others, val, number):
                file.write(json.dumps({"seed": number, **row}) + "\n")


def _append(
    out: Path,
    about: dict[str, Any],
    report: AuditReport,
    planted: PlantedSet,
    model: nn.Module,
    clean: PlantedSet,
) -> None:
    """Append the rates of an audit, with how much the model uses each plant."""
    draws = plants(about["seed"], clean.names, clean.pixels.shape[1])
    used = {
        kind: [
            round(use_of(model, clean, label, draw, beside_blur=each), 2) for each in (False, True)
        ]
        for label, (kind, draw) in draws.items()
    }
    photos = planted if about["photos"] == "planted" else replace(clean, kinds=planted.kinds)
    with out.open("a") as file:
        for row in rates(report, photos):
            uses = used.get(row["plant"], [None, None])
            known = {
                "accuracy": report.content.accuracy, "used": uses[0], "beside blur": uses[1],
            }  # fmt: skip
            file.write(json.dumps({**about, **known, **row}) + "\n")


if __name__ == "__main__":
    main()
