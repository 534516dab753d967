"""Draw attention maps on photos from a checkout, without installing visattn.

python tools/overlay_attention.py PHOTO... --model SPEC --method METHOD --out DIR
    as `visattn overlay`
python tools/overlay_attention.py PHOTO --maps FILE --out FILE.png
    maps from any program in a .npy, .npz or .json file: one map as an overlay of the size of the
    photo, several as a figure (.png, .svg, .pdf)
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def read_maps(path: Path, grid: Sequence[int] | None) -> Any:
    """Read maps from a file: an array, nested lists, or the JSON of a map or a caption."""
    import numpy as np
    import torch

    import visattn as va
    from visattn.results.records import read_array

    record = json.loads(path.read_text()) if path.suffix == ".json" else read_array(path)
    maps = record.get("maps", record) if isinstance(record, dict) else record
    if isinstance(maps, dict):
        return va.AttentionMap.from_dict(maps)
    values = torch.from_numpy(np.array(maps, np.float32))
    values = values.unflatten(-1, grid) if grid else values
    values = values if values.ndim > 2 else values[None]
    words = tuple(map(str, record.get("tokens", ()))) if isinstance(record, dict) else ()
    return va.AttentionMap(values, str(path), "gradient", labels=words)


def draw_saved_maps(words: Sequence[str]) -> int:
    """Draw the maps of a file on one photo."""
    import visattn as va
    from visattn.images.resize import ResizeSpec

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photo")
    parser.add_argument("--maps", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help=".png, .svg or .pdf")
    parser.add_argument("--grid", type=int, nargs=2, help="height and width of a flattened axis")
    parser.add_argument("--resize-mode", choices=("crop", "squash", "pad"), default="squash")
    parser.add_argument("--colormap", default="inferno")
    parser.add_argument("--opacity", type=float, default=0.8)
    args = parser.parse_args(words)
    if args.out.exists():
        parser.error(f"{args.out} exists; choose another --out")
    image, maps = va.read_image(args.photo), read_maps(args.maps, args.grid)
    if maps.geometry is None:
        maps = maps.with_geometry(ResizeSpec((224, 224), args.resize_mode).geometry(image.size))
    if maps.geometry.image_size != image.size:
        parser.error(
            f"{args.photo} must have the size of the maps' photo, {maps.geometry.image_size} "
            f"(height, width), got {image.size}"
        )
    drawing = {"colormap": args.colormap, "opacity": args.opacity}
    single = maps.values.ndim == 2
    if args.out.suffix == ".png" and (single or len(maps) == 1):
        va.overlay(image, maps if single else maps[0], **drawing).save(args.out)
    else:
        drawn = [maps] if single else list(maps)
        titles = maps.labels or [str(number) for number in range(1, len(drawn) + 1)]
        va.figure(dict(zip(titles, drawn, strict=True)), image, **drawing).savefig(args.out)
    print(args.out)
    return 0


if __name__ == "__main__":
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    if "--maps" in sys.argv:
        sys.exit(draw_saved_maps(sys.argv[1:]))
    from visattn.cli import main

    sys.exit(main(["overlay", *sys.argv[1:]]))
