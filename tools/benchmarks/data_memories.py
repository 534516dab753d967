"""Peak memory of reading photos with captions, measured in a separate process.

python -m benchmarks.data_memories shards FOLDER     source and folder written by `data_speeds`
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peak_memories import megabytes, printed_memory
from visattn.data.captions.dataset import CaptionDataset, CaptionedPhotos
from visattn.data.captions.files import read_captions
from visattn.data.feature_cache import FeatureCache
from visattn.data.shards.reader import ShardedPhotos, ShardSamples
from visattn.images.resize import ResizeSpec

RESIZE = ResizeSpec((224, 224))
SOURCES = ("shards", "loose", "features")
INDEX = "index"


def open_photos(source: str, folder: Path) -> CaptionDataset:
    """Return the photos of a folder, read from one of `SOURCES`."""
    sharded = ShardedPhotos(ShardSamples(folder / "shards", "train"), RESIZE)
    if source == "shards":
        return CaptionDataset(sharded)
    if source == "features":
        return CaptionDataset(sharded, feature_cache=FeatureCache(folder / "features"))
    entries = read_captions(folder / "captions.jsonl")
    return CaptionDataset(CaptionedPhotos(entries, folder / "photos", RESIZE))


def data_memory(source: str, folder: Path) -> float | None:
    """Return the megabytes that an epoch, or opening an index, adds; None if not measurable.

    Raises:
        RuntimeError: If the process failed.
    """
    return printed_memory("benchmarks.data_memories", [source, str(folder)])


def main(argv: Sequence[str]) -> int:
    """Print the memory of reading all photos once, or of opening an index."""
    source, folder = argv[0], Path(argv[1])
    before = megabytes("VmRSS")
    if source == INDEX:
        _ = ShardSamples(folder, "train").labels
    else:
        for _ in open_photos(source, folder):
            pass
    print(megabytes("VmHWM") - before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
