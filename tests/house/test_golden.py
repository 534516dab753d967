"""Comparison with golden images: missing or different images fail, rounding passes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Golden = Callable[[str, np.ndarray], None]
Compare = Callable[[Path, np.ndarray], None]


@pytest.fixture
def compare(golden: Golden) -> Compare:
    return golden.__globals__["_compare"]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, np.ndarray]:
    drawn = np.random.default_rng(5).integers(10, 240, (7, 11, 3), dtype=np.uint8)
    Image.fromarray(drawn).save(tmp_path / "kept.png")
    return tmp_path / "kept.png", drawn


@pytest.mark.parametrize("change", [0, 2, -2])
def test_rounding_differences_pass(
    change: int, compare: Compare, kept: tuple[Path, np.ndarray]
) -> None:
    path, drawn = kept
    compare(path, (drawn.astype(int) + change).astype(np.uint8))


@pytest.mark.parametrize("change", [3, -3])
def test_single_differing_value_fails(
    change: int, compare: Compare, kept: tuple[Path, np.ndarray]
) -> None:
    path, drawn = kept
    drawn[5, 3, 2] = int(drawn[5, 3, 2]) + change
    with pytest.raises(pytest.fail.Exception, match=r"differs by up to 3/255, most at y=5 x=3; 1 "):
        compare(path, drawn)


def test_different_size_fails(compare: Compare, kept: tuple[Path, np.ndarray]) -> None:
    path, drawn = kept
    with pytest.raises(pytest.fail.Exception, match=r"is \(7, 11, 3\), drawn was \(5, 11, 3\)"):
        compare(path, drawn[:5])


def test_missing_golden_image_fails(compare: Compare, kept: tuple[Path, np.ndarray]) -> None:
    path, drawn = kept
    with pytest.raises(pytest.fail.Exception, match=r"no golden image lost\.png"):
        compare(path.with_name("lost.png"), drawn)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        (np.zeros((5, 7, 3)), "is uint8"),
        (np.zeros((5, 7), np.uint8), "is uint8"),
        (np.zeros((97, 7, 3), np.uint8), "at most 96 pixels"),
    ],
)
def test_oversized_golden_image_fails(drawn: np.ndarray, said: str, golden: Golden) -> None:
    with pytest.raises(pytest.fail.Exception, match=said):
        golden("never_written", drawn)
