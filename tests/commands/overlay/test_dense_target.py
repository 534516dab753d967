"""Options of `visattn overlay` for a pixel, region, box or query."""

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visattn.attribution import BoxTarget, PixelTarget, QueryTarget, RegionTarget
from visattn.commands.overlay.command import build_parser
from visattn.commands.overlay.methods import check_one_photo, dense_record, dense_target


def parsed(*options: str) -> argparse.Namespace:
    return build_parser().parse_args(["dog.jpg", "--model", "m", "--out", "o", *options])


def test_options_select_targets() -> None:
    assert dense_target(parsed("--class", "dog")) is None
    assert dense_target(parsed("--pixel", "120,80", "--class", "cat")) == PixelTarget(
        "cat", 120, 80
    )
    assert dense_target(parsed("--box", "1,2,30,40", "--class", "3")) == BoxTarget(
        (1, 2, 30, 40), 3
    )
    best = parsed("--box", "best")
    assert dense_target(best) == BoxTarget(None)
    assert dense_target(parsed("--query", "5", "--class", "star")) == QueryTarget(5, "star")
    assert dense_record(best) == {"box": "best"}


def test_a_region_is_an_image_or_the_prediction(tmp_path: Path) -> None:
    file = tmp_path / "mask.png"
    Image.fromarray(np.eye(6, dtype=np.uint8) * 255).save(file)
    target = dense_target(parsed("--region", str(file)))
    assert isinstance(target, RegionTarget)
    assert np.array_equal(np.asarray(target.mask), np.eye(6, dtype=bool))
    predicted = dense_target(parsed("--region", "predicted", "--class", "dog"))
    assert isinstance(predicted, RegionTarget)
    assert predicted.mask is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--region", "predicted"], "needs the class, --class NAME"),
        (["--pixel", "1,2", "--query", "3"], "--pixel and --query exclude each other"),
    ],
)
def test_mistakes_are_explained(options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dense_target(parsed(*options))


def test_missing_masks_wrong_numbers_and_several_photos(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist; give an image, or predicted"):
        dense_target(parsed("--region", "no_such.png"))
    with pytest.raises(SystemExit):
        parsed("--pixel", "12;8")
    assert "must be 2 numbers with commas between them, such as 120,80" in capsys.readouterr().err
    check_one_photo(parsed("--box", "best"), 2)
    with pytest.raises(ValueError, match="belongs to one photo, got 2 photos"):
        check_one_photo(parsed("--pixel", "1,2"), 2)
