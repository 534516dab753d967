"""Tables of Hugging Face: the batches of loose files, streams, and refusals."""

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from caption_data import CaptionPaths, write_caption_data
from classification_data import write_photo_folders
from detection_data import write_coco_instances
from module_batches import check_modules, count_equal_batches, set_up
from question_data import write_vqa

from visattn.data import TableSource
from visattn.data.captions.files import read_captions, read_split_file, select_listed
from visattn.data.questions.vqa_files import read_vqa
from visattn.images.resize import ResizeSpec
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.training import (
    CaptionDataModule,
    CocoDetectionDataModule,
    FolderDataModule,
    HubCaptionDataModule,
    HubClassificationDataModule,
    HubDetectionDataModule,
    HubVQADataModule,
    VQADataModule,
)

datasets = pytest.importorskip("datasets")
SPLITS = {"train": "train", "validation": "validation", "test": "test"}
COLUMNS = {"image": "jpg", "captions": "sentences", "id": "img_id"}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=17, sides=False)


def cell(path: Path) -> dict[str, Any]:
    return {"bytes": path.read_bytes(), "path": path.name}


def table(columns: dict[str, Iterable[Any]], image: str = "jpg", **kinds: Any) -> Any:
    """Return a table with a column of images."""
    rows = datasets.Dataset.from_dict({key: [*cells] for key, cells in columns.items()})
    for name, kind in {image: datasets.Image(decode=False), **kinds}.items():
        rows = rows.cast_column(name, kind)
    return rows


@pytest.fixture(scope="module")
def tables(paths: CaptionPaths) -> Any:
    entries = read_captions(paths.captions)
    made = datasets.DatasetDict()
    for split in SPLITS:
        chosen = select_listed(entries, read_split_file(getattr(paths, split)))
        made[split] = table(
            {
                "jpg": [cell(paths.photos / entry.file) for entry in chosen],
                "sentences": [[*entry.captions] for entry in chosen],
                "img_id": [entry.id for entry in chosen],
            }
        )
    return made


@pytest.fixture(params=["parquet", "save_to_disk", "memory", "stream"])
def data(request: pytest.FixtureRequest, tables: Any, tmp_path: Path) -> Any:
    if request.param == "memory":
        return tables
    if request.param == "stream":
        return {split: rows.to_iterable_dataset() for split, rows in tables.items()}
    folder = tmp_path / request.param
    if request.param == "save_to_disk":
        tables.save_to_disk(folder)
    else:
        folder.mkdir()
        for split, rows in tables.items():
            for number in range(2):
                file = folder / f"{split}-{number:05}-of-00002.parquet"
                rows.shard(2, number).to_parquet(file)
    return str(folder)


def hub_captions(data: Any, **options: Any) -> HubCaptionDataModule:
    source = TableSource(data, test="test", columns=COLUMNS)
    return HubCaptionDataModule(source, min_word_freq=2, batch_size=3, **options)


def file_captions(paths: CaptionPaths, **options: Any) -> CaptionDataModule:
    splits = {"train": paths.train, "val": paths.validation, "test": paths.test}
    return CaptionDataModule(
        str(paths.captions), str(paths.photos), min_word_freq=2, batch_size=3,
        **{name: str(path) for name, path in splits.items()}, **options,
    )  # fmt: skip


def test_caption_batches_equal_those_of_loose_files(data: Any, paths: CaptionPaths) -> None:
    options = {"hflip": True, "seed": 3, "phrases": str(paths.phrases)}
    check_modules(lambda: hub_captions(data, **options), lambda: file_captions(paths, **options))


def test_a_run_resumes_in_the_middle_of_an_epoch(tables: Any, tmp_path: Path) -> None:
    tables.save_to_disk(tmp_path / "saved")
    whole = [*set_up(hub_captions(str(tmp_path / "saved"))).train_dataloader()]
    stopped = set_up(hub_captions(str(tmp_path / "saved"))).train_dataloader()
    _ = [*itertools.islice(stopped, 2)]
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = set_up(hub_captions(str(tmp_path / "saved"))).train_dataloader()
    resumed.load_state_dict(state)
    assert count_equal_batches(resumed, whole[2:]) == len(whole) - 2 > 1


def test_features_are_cached_by_id(tables: Any, paths: CaptionPaths, tmp_path: Path) -> None:
    options = {"feature_cache_dir": str(tmp_path / "cache")}
    encoder = TimmEncoder("test_resnet", img_size=(64, 64))
    files = set_up(file_captions(paths, **options), encoder)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    hub = set_up(hub_captions(tables, **options), encoder)
    assert count_equal_batches(hub.train_dataloader(), files.train_dataloader()) > 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before
    clash = {**tables, "test": tables["train"].select([0])}
    with pytest.raises(ValueError, match="have the same id: name another column"):
        hub_captions(clash, **options)


@pytest.mark.parametrize("named", [True, False])
def test_class_batches_equal_those_of_folders(named: bool, tmp_path: Path) -> None:
    write_photo_folders(tmp_path, train=5)
    rows: dict[str, Any] = {}
    names = ["daisy", "rose", "tulip"]
    for split in ("train", "val"):
        files = sorted((tmp_path / split).rglob("*.jpg"))
        labels = [file.parent.name for file in files]
        kinds = {"label": datasets.ClassLabel(names=names)} if named else {}
        rows[split] = table({"jpg": map(cell, files), "label": labels}, **kinds)
    options: dict[str, Any] = {
        "train_transforms": ["RandomHorizontalFlip", {"RandomResizedCrop": {"size": 24}}],
        "batch_size": 4, "seed": 3,
    }  # fmt: skip
    columns = {"image": "jpg"}
    source = TableSource(datasets.DatasetDict(rows), val="val", columns=columns)
    check_modules(
        lambda: HubClassificationDataModule(source, **options),
        lambda: FolderDataModule(str(tmp_path), **options),
    )


@pytest.mark.parametrize("box_format", ["xywh", "xyxy"])
def test_boxes_equal_those_of_coco(box_format: Any, tmp_path: Path) -> None:
    write_coco_instances(tmp_path)
    rows: dict[str, Any] = {}
    for split in ("train", "val"):
        content = json.loads((tmp_path / f"annotations/instances_{split}2017.json").read_text())
        objects = []
        for image in content["images"]:
            boxes = [a for a in content["annotations"] if a["image_id"] == image["id"]]
            corners = [(x, y, x + w, y + h) for x, y, w, h in (a["bbox"] for a in boxes)]
            objects.append(
                {
                    "bbox": corners if box_format == "xyxy" else [a["bbox"] for a in boxes],
                    "category": [{3: "square", 5: "fence"}[a["category_id"]] for a in boxes],
                    "iscrowd": [a.get("iscrowd", 0) for a in boxes],
                    "area": [a["area"] for a in boxes],
                }
            )
        files = [tmp_path / f"{split}2017" / image["file_name"] for image in content["images"]]
        ids = [file.name for file in files]
        rows[split] = table({"jpg": map(cell, files), "objects": objects, "image_id": ids})
    columns = {"image": "jpg", "id": "image_id"}
    source = TableSource(datasets.DatasetDict(rows), val="val", columns=columns)
    hub = HubDetectionDataModule(source, box_format=box_format, batch_size=2)
    files = CocoDetectionDataModule(
        train=str(tmp_path / "annotations/instances_train2017.json"),
        val=str(tmp_path / "annotations/instances_val2017.json"),
        batch_size=2,
    )
    assert hub.class_names == files.class_names == ("fence", "square")
    for module in (hub, files):
        module.input_spec = set_up_spec()
        module.setup("fit")
    pairs = zip(hub.train_dataloader(), files.train_dataloader(), strict=True)
    for batch, expected in pairs:
        for part, same in zip(batch[1:], expected[1:], strict=True):
            assert torch.equal(part, same)
        assert [each.id for each in batch.samples] == [each.id for each in expected.samples]
    wrong: Any = "xywh" if box_format == "xyxy" else "xyxy"
    with pytest.raises(ValueError, match=r"bbox must be"):
        HubDetectionDataModule(source, box_format=wrong)


def set_up_spec() -> Any:
    from visattn.training.data_module import InputSpec

    return InputSpec((24, 32), (0.5,) * 3, (0.5,) * 3)


def test_questions_equal_those_of_vqa(tmp_path: Path) -> None:
    rows: dict[str, Any] = {}
    for split in ("train", "val"):
        photos = read_vqa(*write_vqa(tmp_path, split), f"COCO_{split}2014_{{id:012}}.jpg")
        rows[split] = table(
            {
                "jpg": [cell(tmp_path / f"{split}2014" / photo.file) for photo in photos],
                "question": [[q.text for q in photo.questions] for photo in photos],
                "answers": [[[*q.answers] for q in photo.questions] for photo in photos],
                "answer_type": [[q.type for q in photo.questions] for photo in photos],
                "id": [photo.file for photo in photos],
            }
        )
    source = TableSource(datasets.DatasetDict(rows), val="val", columns={"image": "jpg"})
    hub = HubVQADataModule(source, num_workers=0, batch_size=2)
    questions = str(tmp_path / "v2_OpenEnded_mscoco_{split}2014_questions.json")
    annotations = str(tmp_path / "v2_mscoco_{split}2014_annotations.json")
    files = VQADataModule(questions, str(tmp_path / "{split}2014"), annotations=annotations,
                          num_workers=0, batch_size=2)  # fmt: skip
    assert hub.data_info == files.data_info
    for module in (hub, files):
        module.input_spec = set_up_spec()
        module.setup("fit")
    for batch, expected in zip(hub.train_dataloader(), files.train_dataloader(), strict=True):
        assert [sample.questions for sample in batch.samples] == [
            sample.questions for sample in expected.samples
        ]
        assert torch.equal(batch.images, expected.images)
        assert torch.equal(batch.soft_scores, expected.soft_scores)


def test_wrong_tables_are_refused(tables: Any, paths: CaptionPaths) -> None:
    def rows(cells: list[Any], captions: list[Any], **options: Any) -> Any:
        made = table({"jpg": cells, "sentences": captions, "img_id": [*range(len(cells))]})
        return TableSource({"train": made, "validation": made}, columns=COLUMNS, **options)

    photo = cell(paths.photos / read_split_file(paths.train)[0])
    named = {"bytes": None, "path": str(paths.photos / "a.jpg")}
    twice = {"train": tables["train"].select([0, 0]), "validation": tables["test"]}
    for source, reason in (
        (TableSource(tables), "train has no column image; name it with columns: .* jpg, sentences"),
        (TableSource(tables, columns={"caption": "jpg"}), "columns are image, .*; got caption"),
        (TableSource(tables, val="dev", columns=COLUMNS), "no split 'dev'; there are train"),
        (TableSource(twice, columns=COLUMNS), "rows have the same img_id"),
        (rows([photo, named], ["a", "b"]), "train: rows hold no photo in jpg"),
        (rows([None, photo], ["a", "b"]), "train: rows hold no photo in jpg"),
    ):
        with pytest.raises(ValueError, match=reason):
            HubCaptionDataModule(source, min_word_freq=1)


def test_rows_without_a_class_are_refused() -> None:
    kind = datasets.ClassLabel(names=["cat", "dog"])
    rows = table({"jpg": [{"bytes": b"x", "path": None}] * 2, "label": [1, -1]}, label=kind)
    source = TableSource({"train": rows}, val=None, columns={"image": "jpg"})
    module = HubClassificationDataModule(source)
    module.input_spec = set_up_spec()
    with pytest.raises(ValueError, match="a class must be from 0 to 1, got -1"):
        module.open_dataset("train")


def test_workers_get_the_place_of_a_table_and_not_its_photos(tables: Any, tmp_path: Path) -> None:
    import pickle

    tables.save_to_disk(tmp_path / "saved")
    module = hub_captions(str(tmp_path / "saved"))
    photos = module.open_images("train", ResizeSpec((24, 24)))
    content = pickle.dumps(photos)
    assert len(content) < 20_000 < sum(len(p.read_bytes(2**20)) for p in module.tables["train"])
    pairs: zip[tuple[Any, Any]] = zip(pickle.loads(content)[3], photos[3], strict=True)
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
