"""Draw attention maps on photos, from a checkout, without an installation.

python tools/overlay_attention.py PHOTO... --model SPEC --method METHOD --out DIR
    as `visattn overlay`
python tools/overlay_attention.py PHOTO --maps FILE --out FILE.png
    maps of a .npy, .npz or .json file, of any program: one map at the size of its photo, several
    as a figure (.png, .svg, .pdf)
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def draw_saved_maps(words: Sequence[str]) -> int:
    """Draw the maps of a file on one photo."""
    import torch

    import visattn as va
    from visattn.images.resize import ResizeSpec, resize_to_input
    from visattn.results.map_files import read_saved_maps
    from visattn.results.records import from_dict

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
        parser.error(f"{args.out} exists: choose another --out")
    image, saved = va.read_image(args.photo), read_saved_maps(args.maps, args.grid)
    if saved.geometry is None:
        _, geometry = resize_to_input(image, ResizeSpec((224, 224), args.resize_mode))
    else:
        geometry = from_dict(va.Geometry, saved.geometry)
    if geometry.image_size != image.size:
        parser.error(
            f"{args.maps} belongs to an image of {geometry.image_size} pixels, {args.photo} has "
            f"{image.size}"
        )
    maps = va.AttentionMap(torch.from_numpy(saved.maps), str(args.maps), "gradient", geometry)
    drawing = {"colormap": args.colormap, "opacity": args.opacity}
    if len(maps) == 1 and args.out.suffix == ".png":
        va.overlay(image, maps[0], **drawing).save(args.out)
    else:
        titles = saved.words or [str(number) for number in range(1, len(maps) + 1)]
        va.figure(dict(zip(titles, maps, strict=True)), image, **drawing).savefig(args.out)
    print(args.out)
    return 0


if __name__ == "__main__":
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    if "--maps" in sys.argv:
        sys.exit(draw_saved_maps(sys.argv[1:]))
    from visattn.cli import main

    sys.exit(main(["overlay", *sys.argv[1:]]))
