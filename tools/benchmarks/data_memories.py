"""What reading photos with captions holds at most, in a process of its own.

python -m benchmarks.data_memories shards FOLDER      how, and where `data_speeds` put the photos
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peak_memories import megabytes, printed_memory
from visattn.data.captions.dataset import CaptionDataset
from visattn.data.captions.files import read_captions
from visattn.data.captions.images import CaptionedPhotos
from visattn.data.feature_cache.cache import FeatureCache
from visattn.data.images.resize import ResizeSpec
from visattn.data.shards.datasets import ShardedPhotos
from visattn.data.shards.reader import ShardSamples

FRAMING = ResizeSpec((224, 224))
WAYS = ("shards", "loose", "features")
INDEX = "index"


def told_photos(way: str, folder: Path) -> CaptionDataset:
    """Return the photos of a folder, read in a way of `WAYS`."""
    sharded = ShardedPhotos(ShardSamples(folder / "shards", "train"), FRAMING)
    if way == "shards":
        return CaptionDataset(sharded)
    if way == "features":
        return CaptionDataset(sharded, cache=FeatureCache(folder / "features"))
    entries = read_captions(folder / "captions.jsonl")
    return CaptionDataset(CaptionedPhotos(entries, folder / "photos", FRAMING))


def data_memory(way: str, folder: Path) -> float | None:
    """Return the megabytes that an epoch, or opening an index, adds; None where nobody counts.

    Raises:
        RuntimeError: If the process failed.
    """
    return printed_memory("benchmarks.data_memories", [way, str(folder)])


def main(argv: Sequence[str]) -> int:
    """Print what reading all photos once holds, or what opening an index does."""
    way, folder = argv[0], Path(argv[1])
    before = megabytes("VmRSS")
    if way == INDEX:
        _ = ShardSamples(folder, "train").labels
    else:
        for _ in told_photos(way, folder):
            pass
    print(megabytes("VmHWM") - before)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
