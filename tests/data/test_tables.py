"""Tables of Hugging Face: the samples of loose files, read by index; photos lie in the rows."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from visattn.data import HubBoxes, HubCaptions, HubClasses, HubQuestions
from visattn.images.reader import read_image

datasets = pytest.importorskip("datasets")


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Four photos of 20 x 30 pixels with a class, captions, questions and boxes."""
    cells = []
    for number in range(4):
        file = tmp_path / f"{number}.png"
        Image.fromarray(np.full((20, 30, 3), 60 * number, np.uint8)).save(file)
        cells.append({"bytes": file.read_bytes(), "path": file.name})
    rows = datasets.Dataset.from_dict({
        "image": cells, "label": [1, 0, 1, 0], "captions": [["a dog", "one dog"]] * 4,
        "question": ["what is it ?"] * 4, "answers": [["a dog", "Dog.", "cat"]] * 4,
        "answer_type": ["animal", None] * 2,
        "objects": [{"bbox": [[3, 4, 10, 9]], "category": [1]}] * 4,
    })  # fmt: skip
    rows = rows.cast_column("image", datasets.Image(decode=False))
    rows = rows.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    return datasets.DatasetDict({"train": rows, "validation": rows.select([2])})


def test_rows_are_samples_of_each_task(table: Any) -> None:
    classes = HubClasses(table)
    assert classes.class_names == ("cat", "dog")
    assert classes("train").labels.tolist() == [1, 0, 1, 0]  # pyright: ignore[reportAttributeAccessIssue]
    photo, label = pickle.loads(pickle.dumps(classes("train")))[2]
    assert (int(read_image(photo).pixels.max()), label) == (120, 1)
    captions = HubCaptions(table)("train")
    assert captions[1].captions == ("a dog", "one dog")
    assert len({sample.id for sample in captions}) == 4
    asked = [photo.questions[0] for photo in HubQuestions(table)("train")]
    assert [(each.answer, each.type) for each in asked] == [("dog", "animal"), ("dog", "other")] * 2
    for box_format, box in (("xywh", (3, 4, 13, 13)), ("xyxy", (3, 4, 10, 9))):
        image = HubBoxes(table, box_format=box_format)("train")[0]  # pyright: ignore[reportArgumentType]
        assert (image.size, image.objects[0].box) == ((20, 30), box)


def test_wrong_names_and_rows_without_photos_are_refused(table: Any) -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"train": "all"}, "no split 'all'; choose from train, validation"),
        ({"columns": {"words": "x"}}, "columns must be of image, captions"),
        ({"columns": {"label": "kind"}}, "train has no column kind; set the option columns"),
    )
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            HubClasses(table, **options)
    links = table["train"].map(lambda row: {"image": {"bytes": None, "path": "/etc/passwd"}})
    with pytest.raises(ValueError, match="every row must hold a photo"):
        HubClasses(datasets.DatasetDict({"train": links, "validation": links}))
