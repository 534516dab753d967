"""Valid annotation files of every kind, and the readers of each kind."""

import gzip
import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from visattn.commands.loop import read_record
from visattn.data.captions.files import read_caption_results, read_captions
from visattn.data.phrases import read_phrases
from visattn.data.regions.coco_instances import read_instance_file
from visattn.data.regions.masks import segmentation_mask
from visattn.geometry.affine import Geometry
from visattn.results.records import read_array, to_dict


class Kind(NamedTuple):
    """A kind of annotation file: its file name, a valid file, and its reader."""

    name: str
    content: bytes
    reader: Callable[[Path], object]


def written(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


KARPATHY: Any = {
    "images": [
        {
            "filename": "a.jpg",
            "filepath": "val2014",
            "split": "train",
            "sentences": [{"raw": "A dog ."}, {"raw": "It runs ."}],
        },
        {"filename": "b.jpg", "split": "val", "sentences": [{"raw": "Ein Café ."}]},
    ]
}
COCO: Any = {
    "images": [{"id": 7, "file_name": "a.jpg"}, {"id": 8, "file_name": "b.jpg"}],
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "A dog ."},
        {"image_id": 8, "id": 2, "caption": "It runs ."},
    ],
}
SQUARE = [[1.0, 1.0, 4.0, 1.0, 4.0, 3.0, 1.0, 3.0]]
INSTANCES: Any = {
    "images": [{"id": 3, "file_name": "b.png", "height": 6, "width": 8}],
    "categories": [{"id": 17, "name": "cat"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 17, "bbox": [1, 1, 3, 2], "segmentation": SQUARE},
        {
            "id": 2,
            "image_id": 3,
            "category_id": 17,
            "bbox": [5, 0, 1, 6],
            "segmentation": {"size": [6, 8], "counts": [30, 6, 12]},
        },
        {
            "id": 3,
            "image_id": 3,
            "category_id": 17,
            "bbox": [0, 0, 8, 6],
            "segmentation": {"size": [6, 8], "counts": "n06<"},  # 30, 6, 12
        },
    ],
}
PHRASES: Any = {
    "a.jpg": [
        {
            "sentence": "A dog runs .",
            "phrases": [
                {
                    "first_word": 0,
                    "words": 2,
                    "phrase": "A dog",
                    "types": ["animals"],
                    "boxes": [[0.0, 0.25, 0.5, 1.0]],
                }
            ],
        }
    ]
}
RESULTS: Any = [{"image_id": 37, "caption": "a ring"}, {"image_id": "b.jpg", "caption": ""}]


def npy(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
    return file.getvalue()


def _captions(path: Path) -> object:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*dropped", UserWarning)
        return read_captions(path)


def _maps(path: Path) -> object:
    try:
        return read_array(path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _instances(path: Path) -> object:
    images, _ = read_instance_file(path)
    try:
        return [
            segmentation_mask(o.segmentation, image.size)
            for image in images
            for o in image.objects
            if o.segmentation
        ]
    except ValueError as error:  # as LocatedImage.regions does, with the image
        raise ValueError(f"{path}: {error}") from error


def _record(path: Path) -> object:
    """A record of a result from a stranger: it is used, or made again."""
    record = read_record(path)
    if record is None:
        raise ValueError("no record of visattn")
    return record


RECORD: Any = {
    "made": {
        "command": "overlay", "name": "a", "photo": "a.png", "sha256": "", "settings": {},
        "files": ["a.npz"], "rows": [], "table": [], "card": {},
    },
    "key": "gradcam", "site": "layer4", "kind": "gradient",
    "geometry": to_dict(Geometry.identity((5, 7))), "info": {"probability": 0.5},
    "scale": {"vmin": 0.0, "vmax": 1.0, "signed": False},
}  # fmt: skip
NOISE = np.random.default_rng(3).random((2, 3, 5))
KINDS: dict[str, Kind] = {
    "tokens": Kind(
        "a.txt", "a.jpg#0\tA dog .\na.jpg#1\tEin Café .\nb.jpg#0\tB\n".encode(), _captions
    ),
    "table": Kind(
        "a.csv", b'image,caption\na.jpg,A dog .\na.jpg,"It, ""too"" , runs ."\n', _captions
    ),
    "karpathy": Kind("a.json", written(KARPATHY), _captions),
    "coco captions": Kind("a.json", written(COCO), _captions),
    "json lines": Kind(
        "a.jsonl",
        b'{"file": "a.jpg", "id": 5, "captions": ["A", "B"]}\n{"image": "b.jpg", "caption": "C"}\n',
        _captions,
    ),
    "coco results": Kind("a.json", written(RESULTS), read_caption_results),
    "result lines": Kind("a.jsonl", b"\n".join(map(written, RESULTS)), read_caption_results),
    "result table": Kind("a.tsv", b"37\ta ring\nb.jpg\t\n", read_caption_results),
    "instances": Kind("a.json", written(INSTANCES), _instances),
    "phrases": Kind("a.json", written(PHRASES), read_phrases),
    "packed phrases": Kind("a.json.gz", gzip.compress(written(PHRASES), mtime=0), read_phrases),
    "array": Kind("a.npy", npy(NOISE), _maps),
    "arrays": Kind("a.npz", npz(maps=NOISE, other=np.zeros(3)), _maps),
    "map record": Kind("a.json", written(RECORD), _record),
}
