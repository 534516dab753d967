"""Boxes in the files of ImageNet's localization task."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from visattn.data.regions.readers import read_annotated_images, read_imagenet_boxes

ZEBRA, TENCH = "n02391049", "n01440764"
BOXES = {"val_1": [(ZEBRA, (1, 0, 4, 2)), (ZEBRA, (5, 3, 8, 6))], "val_2": [(TENCH, (0, 1, 3, 5))]}


def written(folder: Path) -> tuple[Path, Path]:
    """Write the same boxes as XML files and as CSV; return the folder and the file."""
    data, annotations = (folder / kind / "CLS-LOC" / "val" for kind in ("Data", "Annotations"))
    (data / TENCH).mkdir(parents=True)
    annotations.mkdir(parents=True)
    Image.new("RGB", (8, 6)).save(data / "val_1.JPEG")
    Image.new("RGB", (8, 6)).save(data / TENCH / "val_2.JPEG")
    lines = ["ImageId,PredictionString"]
    for name, objects in BOXES.items():
        sides = ("xmin", "ymin", "xmax", "ymax")
        parts = "".join(
            f"<object><name>{category}</name><pose>Unspecified</pose><bndbox>"
            + "".join(f"<{side}>{n}</{side}>" for side, n in zip(sides, box, strict=True))
            + "</bndbox></object>"
            for category, box in objects
        )
        size = "<size><width>8</width><height>6</height><depth>3</depth></size>"
        xml = f"<annotation><filename>{name}</filename>{size}{parts}</annotation>"
        (annotations / f"{name}.xml").write_text(xml)
        words = " ".join(f"{category} {' '.join(map(str, box))}" for category, box in objects)
        lines.append(f"{name},{words} ")
    file = folder / "LOC_val_solution.csv"
    file.write_text("\n".join(lines) + "\n")
    return annotations, file


def test_xml_and_csv_give_the_same_boxes(tmp_path: Path) -> None:
    annotations, file = written(tmp_path)
    result = read_annotated_images(annotations)
    assert [image.name for image in result] == [f"{TENCH}/val_2.JPEG", "val_1.JPEG"]
    assert read_annotated_images(file, images=tmp_path / "Data") != []
    images = tmp_path / "Data" / "CLS-LOC" / "val"
    assert read_imagenet_boxes(file, images) == result
    mask, boxes = result[1].region_masks(ZEBRA)
    expected = np.zeros((6, 8), dtype=bool)
    expected[0:2, 1:4] = expected[3:6, 5:8] = True
    assert np.array_equal(mask, expected)
    assert np.array_equal(boxes, expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<xmax>4<", "<xmax>40<", r"inside of an image of 8 x 6 pixels, got 1, 0, 40, 2"),
        ("<xmin>1<", "<xmin>nan<", "inside of an image"),
        ("<xmin>1<", "<xmin>left<", "a box must be four numbers"),
        ("<name>", "<nome>", "no XML"),
        ("<width>8</width>", "", "has no size/width"),
        ("<annotation>", "<!DOCTYPE a><annotation>", "defines entities"),
    ],
)
def test_invalid_files_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    annotations, _ = written(tmp_path)
    file = annotations / "val_1.xml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=rf"val_1\.xml.*{message}"):
        read_annotated_images(annotations)


def test_missing_images_and_other_tables_are_refused(tmp_path: Path) -> None:
    annotations, file = written(tmp_path)
    images = tmp_path / "Data" / "CLS-LOC" / "val"
    for text, message in (
        ("a,b\n", "columns must be ImageId and PredictionString"),
        ("ImageId,PredictionString\nval_1,n1 1 2 3\n", "a box must be four numbers"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_imagenet_boxes(file, images)
    (images / "val_1.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match="no image val_1"):
        read_imagenet_boxes(annotations)
