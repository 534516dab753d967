"""Lists of paths in one array of bytes."""

import os
import sys
from pathlib import Path

from hypothesis import given, strategies as st

from visattn.data.loading.loader import PathList

NAMES = st.text(st.characters(exclude_characters="/\0"), min_size=1).map(os.fsencode)


@given(st.lists(st.builds(os.fsdecode, NAMES | st.binary(min_size=1).filter(lambda b: 0 not in b))))
def test_a_path_list_is_a_list_of_paths(names: list[str]) -> None:
    paths = [Path("folder") / name for name in names]
    files = PathList(paths)
    assert list(files) == paths
    assert [files[index] for index in range(-len(paths), 0)] == paths
    assert list(files[1::2]) == paths[1::2]


def test_a_path_takes_its_bytes_and_eight_more() -> None:
    files = PathList(
        Path(f"train/n01440764/n01440764_{number}.JPEG") for number in range(1000, 3000)
    )
    total = sum(sys.getsizeof(value) for value in vars(files).values() if hasattr(value, "nbytes"))
    buffers = sum(value.nbytes for value in (files._bytes, files._ends))
    assert buffers == 2000 * len("train/n01440764/n01440764_1000.JPEG") + 2001 * 8
    assert total < buffers + 16_000 + 500
