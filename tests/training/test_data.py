"""Data modules: any source, what is reported before the first step, photos of any kind."""

import json
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from caption_data import write_caption_data
from classification_data import (
    accept_test_cifar_files,
    write_cifar,
    write_digits,
    write_photo_folders,
)
from PIL import Image
from question_data import write_vqa
from segmentation_data import write_instances, write_mask_folder
from torchvision.transforms import v2

from visattn.data import (
    CaptionFile,
    ClassFolders,
    ClutteredDigits,
    CocoInstances,
    DigitCanvases,
    MaskFolders,
    SceneCaptions,
    SceneObjects,
    SingleObjects,
    SortOfClevrImages,
    TorchvisionImages,
    VQAFiles,
)
from visattn.data.classification.cluttered_mnist import ClutterSpec
from visattn.data.classification.digit_sequences import DigitSequenceSpec
from visattn.images.reader import ImageError
from visattn.training import (
    CaptionData,
    ClassificationData,
    DetectionData,
    QuestionData,
    SegmentationData,
    SequenceData,
)
from visattn.training.data_module import DataModule, InputSpec

SIZE = (24, 24)
SCENES: dict[str, Any] = {"train": 5, "val": 3, "test": 3, "image_size": 24}


def opened(data: DataModule, stage: str = "fit") -> Any:
    data.input_spec = InputSpec(SIZE, (0.5,) * 3, (0.5,) * 3)
    data.setup(stage)
    return data


def every_kind(folder: Path) -> dict[str, Callable[[], DataModule]]:
    """Return a data module with each source."""
    write_digits(folder)
    write_photo_folders(folder / "flowers")
    write_mask_folder(folder / "masks")
    paths = write_caption_data(folder / "captions", photos=9)
    crowd = {"image_id": 0, "category_id": 7, "bbox": [40, 0, 12, 40], "iscrowd": 1,
             "segmentation": [[40, 0, 52, 0, 52, 40, 40, 40]]}  # fmt: skip
    for split in ("train", "val"):
        write_vqa(folder / "vqa", split)
        file = write_instances(folder / "coco", f"{split}2017", 4)
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, "annotations": [*content["annotations"], crowd]}))
    files = (
        f"{folder}/vqa/v2_OpenEnded_mscoco_{{split}}2014_questions.json",
        f"{folder}/vqa/v2_mscoco_{{split}}2014_annotations.json",
    )
    coco = f"{folder}/coco/annotations/instances_{{split}}2017.json"
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 0}
    root = str(folder)
    return {
        "flowers": lambda: ClassificationData(ClassFolders(f"{root}/flowers"), **options),
        "digits": lambda: ClassificationData(TorchvisionImages("MNIST", root, 5), **options),
        "clutter": lambda: ClassificationData(
            ClutteredDigits(root, 5, canvas=ClutterSpec((31, 33), 2)), **options
        ),
        "shapes": lambda: ClassificationData(SingleObjects(**SCENES), **options),
        "canvases": lambda: SequenceData(
            DigitCanvases(root, 5, spec=DigitSequenceSpec(max_digits=2)), **options
        ),
        "captions": lambda: CaptionData(
            CaptionFile(str(paths.captions), str(paths.photos)),
            phrases=str(paths.phrases), min_word_freq=1, **options,
        ),
        "scenes": lambda: CaptionData(SceneCaptions(**SCENES), **options),
        "clevr": lambda: QuestionData(
            SortOfClevrImages(5, 3, 3, 80, 2), **options
        ),
        "vqa": lambda: QuestionData(
            VQAFiles(*files, f"{root}/vqa/{{split}}2014"), **options
        ),
        "boxes": lambda: DetectionData(CocoInstances(coco), **options),
        "objects": lambda: DetectionData(SceneObjects(**SCENES), **options),
        "masks": lambda: SegmentationData(
            MaskFolders(f"{root}/masks/images", f"{root}/masks/masks"),
            class_names=["a", "b", "c", "d"], **options,
        ),
        "areas": lambda: SegmentationData(CocoInstances(coco), **options),
        "scene areas": lambda: SegmentationData(SceneObjects(**SCENES), **options),
    }  # fmt: skip


def tensors(batch: Any) -> list[torch.Tensor]:
    return [part for part in batch if isinstance(part, torch.Tensor)]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_every_source_is_read_the_same_in_every_order_and_process(
    workers: int, tmp_path: Path
) -> None:
    """A resumed epoch, other workers and another object of the data give the same batches."""
    for name, build in every_kind(tmp_path).items():
        data = build()
        if name == "clevr":
            data.input_spec = InputSpec((80, 80), (0.5,) * 3, (0.5,) * 3)
            data.setup("fit")
        else:
            opened(data)
        loader = data.train_dataloader()
        batches = [tensors(batch) for batch in loader]
        assert len(batches) == len(data.dataset("train")) // 2, name
        again = build()
        again.input_spec = data.input_spec
        again.num_workers = workers
        resumed = again.train_dataloader()
        resumed.load_state_dict({**loader.state_dict(), "batches_done": 1})
        for batch, expected in zip(map(tensors, resumed), batches[1:], strict=True):
            assert all(map(torch.equal, batch, expected)), name
        assert sum(len(batch.images) for batch in data.val_dataloader()) == len(
            data.samples("validation")
        )
        assert all(isinstance(line, str) for line in data.report())
        drawn = getattr(data.samples("train"), "endless", False)
        loader.epoch_sampler.set_epoch(1)
        pixels = {image.numpy().tobytes() for batch in loader for image in batch.images}
        before = {image.numpy().tobytes() for batch, *_ in batches for image in batch}
        assert drawn != bool(pixels & before), name


def photos(folder: Path, count: int = 4) -> list[str]:
    files = [str(folder / f"{number}.png") for number in range(count)]
    for number, file in enumerate(files):
        pixels = np.full((30, 40, 3), 60 * number, np.uint8)
        pixels[10:20, 5:15] = 255
        Image.fromarray(pixels).save(file)
    return files


def test_a_function_is_a_source_for_each_task(tmp_path: Path) -> None:
    files = photos(tmp_path)
    mask = str(tmp_path / "mask.png")
    Image.fromarray(np.eye(30, 40, dtype=np.uint8)).save(mask)
    box = (5, 10, 15, 20)
    kinds: tuple[tuple[type[DataModule], list[Any], dict[str, Any]], ...] = (
        (ClassificationData, ["cat", "dog", "cat", "dog"], {}),
        (
            CaptionData,
            [["a cat"], ["a dog", "one dog"], ["a cat"], ["a dog"]],
            {"min_word_freq": 1},
        ),
        (QuestionData, [[("is it red ?", "yes"), ("what ?", "dog")]] * 4, {}),
        (DetectionData, [[("cat", box)], [], [("dog", box)], [("cat", box)]], {}),
        (SegmentationData, [mask] * 4, {"class_names": ["no", "yes"]}),
    )
    for kind, known, options in kinds:

        def source(split: str, known: Any = known) -> list[tuple[str, Any]]:
            half = slice(0, 3) if split == "train" else slice(3, 4)
            return list(zip(files[half], known[half], strict=True))

        data = opened(kind(source, batch_size=3, **options))
        (batch,) = data.train_dataloader()
        assert batch.images.shape == (3, 3, *SIZE)
        assert list(data.report()), kind
        assert len(data.example_batch(9).images) == 1


def test_counts_are_of_what_the_loss_reads(tmp_path: Path) -> None:
    kinds = every_kind(tmp_path)
    found = {
        name: opened(kinds[name]()).count_targets("train") for name in ("flowers", "boxes", "areas")
    }
    assert found["flowers"] == ("images", Counter(daisy=3, rose=3, tulip=3))
    assert found["boxes"] == ("objects", Counter(cat=4, dog=4))
    assert found["areas"] == ("objects with a mask", Counter(cat=4, dog=4))
    unit, counts = opened(kinds["captions"]()).count_targets("train")
    assert unit.startswith("captions, 0.0% of their words unknown, 100.0% of them with phrases")
    assert counts.total() == 40
    unit, counts = kinds["vqa"]().count_targets("train")  # pyright: ignore[reportGeneralTypeIssues]
    assert counts == Counter({"other": 1, "yes/no": 1, "number": 1})
    assert opened(kinds["scenes"]()).count_targets("train") is None


def labels(**splits: list[tuple[Any, str]]) -> ClassificationData:
    return ClassificationData(lambda split: splits.get(split, []), batch_size=1)


def test_the_report_refuses_what_cannot_be_right(tmp_path: Path) -> None:
    first, second, third, _ = photos(tmp_path)
    with pytest.raises(ValueError, match=r"1 photos are in the training and .*/0\.png; put each"):
        list(labels(train=[(first, "a"), (second, "b")], validation=[(first, "a")]).report())
    (tmp_path / "link").symlink_to(tmp_path)
    again = str(tmp_path / "link" / "0.png")
    with pytest.raises(ValueError, match="1 photos are in the training"):
        list(labels(train=[(first, "a"), (second, "b")], validation=[(again, "a")]).report())
    with pytest.raises(ValueError, match="validation split has classes that training lacks"):
        list(labels(train=[(first, "a"), (second, "b")], validation=[(third, "c")]).report())
    with pytest.raises(ValueError, match="the data have no train samples"):
        opened(labels(train=[]))
    boxes = [(file, [("cat", (0.1, 0.1, 0.5, 0.5))]) for file in (first, second, third)]
    with pytest.raises(ValueError, match="boxes must be in pixels, but all are between 0 and 1"):
        list(DetectionData(lambda split: boxes if split == "train" else []).report())
    (masks := tmp_path / "masks").mkdir()
    Image.fromarray(255 * np.eye(30, 40, dtype=np.uint8)).save(masks / "0.png")
    pairs = [(first, masks / "0.png")]
    data = SegmentationData(lambda split: pairs, class_names=["no", "yes"])
    with pytest.raises(ValueError, match=r"255 is ignored by default: set class_map: \{0: 0"):
        list(data.remarks())


def test_captions_without_words_are_refused_and_a_tuple_is_a_list() -> None:
    samples = ((np.zeros((8, 8, 3), np.uint8), ("a red dog",)),)
    data = CaptionData(lambda split: samples, min_word_freq=1)
    assert data.vocabulary.words[-3:] == ("a", "dog", "red")
    with pytest.raises(ValueError, match="the training captions have no words: .* a list"):
        CaptionData(lambda split: [(np.zeros((8, 8, 3), np.uint8), ("...",))])


def test_the_report_says_what_contradicts_itself(tmp_path: Path) -> None:
    names = ("turn_left", "turn_right", "bright")
    samples = [(np.zeros((3, 3, 3), np.uint8), name) for name in names]
    source = lambda split: samples if split == "train" else []  # noqa: E731
    flip: v2.Transform = v2.RandomHorizontalFlip()
    cases: list[list[v2.Transform]] = [[], [v2.RandomInvert()], [flip], [v2.RandomApply([flip])]]
    for flips in cases:
        said = list(ClassificationData(source, train_transforms=flips).remarks())
        assert len(said) == ("Flip" in repr(flips))
        assert all("classes turn_left, turn_right say left or right" in line for line in said)
    captions = [(f"{n}.jpg", f"<start> a dog of {n} <end>") for n in range(12)]
    data = CaptionData(lambda split: captions if split == "train" else [], min_word_freq=1)
    assert "all captions begin with 'start' and end with 'end'" in next(data.remarks())
    lines = list(labels(train=[("a.jpg", "a"), ("b.jpg", "b"), ("c.jpg", "b")],
                        validation=[("d.jpg", "b")]).report())  # fmt: skip
    assert lines == ["train: 3 images, of 2 classes from a (1) to b (2)",
                     "validation: 1 images, of 2 classes from a (0) to b (1)"]  # fmt: skip


def folders(root: Path, *names: str, value: int = 1) -> None:
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (number, 0, value)).save(root / name / "1.png")


def test_class_folders_are_found_as_people_make_them(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    folders(tmp_path / "a", f"train/{composed}", "train/bar", f"valid/{decomposed}", "valid/bar",
            "train/@eaDir", "train/bar/@eaDir", "train/.git", "elsewhere/more")  # fmt: skip
    (tmp_path / "a/train/bar/link").symlink_to(tmp_path / "a/elsewhere")
    (tmp_path / "a/elsewhere/loop").symlink_to(tmp_path / "a/train/bar")
    (tmp_path / "a/elsewhere/above").symlink_to(tmp_path / "a/train")
    source = ClassFolders(str(tmp_path / "a"))
    assert source.class_names == ("bar", composed)
    assert source("train").labels.tolist() == [0, 0, 1]
    assert source("validation").labels.bincount().tolist() == [1, 1]
    folders(tmp_path / "flat", "cat", "dog")
    for number in range(9):
        Image.new("RGB", (8, 8)).save(tmp_path / "flat/cat" / f"a{number}.png")
    flat = ClassFolders(str(tmp_path / "flat"), val_fraction=0.3)
    assert [flat(split).labels.bincount().tolist() for split in ("train", "validation")] == [
        [7], [3, 1]]  # fmt: skip
    assert "has no folder train: 30% of the photos of each class" in flat.notes[0]
    with pytest.raises(FileNotFoundError, match="photos are expected as .*/CLASS/PHOTO"):
        ClassFolders(str(tmp_path / "nowhere"))


def test_values_of_float_photos_are_the_same_gray_in_all(tmp_path: Path) -> None:
    files = {top: str(tmp_path / f"{top}.tif") for top in (0.2, 1.0, 60000, 70000)}
    for top, file in files.items():
        values = np.tile(np.linspace(0, top, 24), (24, 1))
        kind = "float32" if top <= 1 else "int32"
        Image.fromarray(values.astype(kind)).save(file)

    def highest(*tops: float, **options: Any) -> list[int]:
        data = ClassificationData(lambda split: [(files[top], "a") for top in tops], **options)
        dataset = opened(data).dataset("train")
        return [int(dataset[row][0].max()) for row in range(len(tops))]

    assert highest(0.2, 1.0) == [51, 255]
    assert highest(60000) == [round(60000 / 257)]
    assert highest(60000, 70000, value_range=(0, 70000)) == [round(255 * 6 / 7), 255]
    with pytest.raises(ImageError, match=r"got 0 to 70000: set value_range=\[LOW, HIGH\]"):
        highest(70000)


def test_one_seed_sets_the_order_and_what_is_drawn(tmp_path: Path) -> None:
    """A source with a seed of its own keeps it."""
    write_digits(tmp_path)
    sources: dict[str, tuple[Any, Callable[..., Any]]] = {
        "scenes": (CaptionData, lambda **own: SceneCaptions(**SCENES, **own)),
        "objects": (ClassificationData, lambda **own: SingleObjects(**SCENES, **own)),
        "clevr": (QuestionData, lambda **own: SortOfClevrImages(5, 3, 3, **own)),
        "clutter": (
            ClassificationData, lambda **own: ClutteredDigits(str(tmp_path), val=5, **own)
        ),
        "canvases": (SequenceData, lambda **own: DigitCanvases(str(tmp_path), val=5, **own)),
    }  # fmt: skip
    for name, (module, source) in sources.items():
        shared = source()

        def first(seed: int, chosen: Any, module: Any = module) -> torch.Tensor:
            sample = module(chosen, seed=seed).samples("train")[0]
            return torch.as_tensor(getattr(sample, "image", sample[0]))

        assert torch.equal(first(0, shared), first(0, source(seed=0))), name
        assert torch.equal(first(1, shared), first(0, source(seed=1))), name
        assert not torch.equal(first(0, shared), first(1, shared)), name
        assert torch.equal(first(0, source(seed=7)), first(1, source(seed=7))), name
        assert shared.seed is None, name


def test_rare_classes_are_drawn_as_often_as_others() -> None:
    samples = [(torch.zeros(3, 2, 2).byte(), "cat" if number else "dog") for number in range(8)]
    weights = ClassificationData(lambda split: samples, balanced=True).weights()
    assert weights is not None
    assert weights.tolist() == pytest.approx([1, *[1 / 7] * 7])


def test_transforms_are_random_in_training_and_fixed_in_evaluation(tmp_path: Path) -> None:
    write_digits(tmp_path)
    moves: list[v2.Transform] = [v2.RandomAffine([-45, 45], translate=(0.2, 0.2))]

    def built(seed: int) -> Any:
        source = TorchvisionImages("MNIST", str(tmp_path), 5)
        return ClassificationData(source, transforms=moves, batch_size=6, seed=seed)

    first, second = built(0), built(1)
    assert all(map(torch.equal, *(next(iter(d.val_dataloader())) for d in (first, second))))
    train = first.dataset("train")
    assert torch.equal(train[0][0], train[0][0])
    assert not torch.equal(train[0][0], train[18][0])  # in the next epoch
    assert not torch.equal(train[0][0], second.dataset("train")[0][0])


def test_digits_and_cifar_keep_their_labels(tmp_path: Path, monkeypatch: Any) -> None:
    write_digits(tmp_path)
    digits = TorchvisionImages("MNIST", str(tmp_path), 5)
    assert digits.class_names == tuple("0123456789")
    counts = {}
    for split in ("train", "validation", "test"):
        samples: Any = digits(split)  # pyright: ignore[reportArgumentType]
        counts[split] = len(samples)
        for image, label in samples:
            assert (int(image[0].float().mean(1).argmax()) - 4) // 2 == label
    assert counts == {"train": 18, "validation": 5, "test": 11}
    write_cifar(tmp_path)
    accept_test_cifar_files(monkeypatch)
    for image, label in TorchvisionImages("CIFAR10", str(tmp_path), 3)("train"):
        assert torch.equal(image[0], torch.arange(32, dtype=torch.uint8).expand(32, 32))
        assert (image[1] == 20 * label).all()
    with pytest.raises(FileNotFoundError, match="does not hold MNIST .* or download: true"):
        TorchvisionImages("MNIST", str(tmp_path / "none"))("train")
    raw = tmp_path / "MNIST/raw/train-labels-idx1-ubyte"
    raw.write_bytes(raw.read_bytes()[:-1] + bytes([10]))
    with pytest.raises(ValueError, match="labels up to 10: it is damaged"):
        digits("train")


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_unreadable_training_photos_are_replaced_with_a_warning(
    tmp_path: Path, num_workers: int
) -> None:
    write_photo_folders(tmp_path, train=7)
    for number in (1, 4):
        path = tmp_path / "train" / "rose" / f"{number}.jpg"
        path.write_bytes(path.read_bytes()[:-100])
    options: Any = {"batch_size": 4, "num_workers": num_workers}
    data = opened(ClassificationData(ClassFolders(str(tmp_path)), on_error="substitute", **options))
    with warnings.catch_warnings(record=True) as said:  # worker processes print theirs
        warnings.simplefilter("always")
        batches = list(data.train_dataloader())
        epochs = [[data.dataset("train")[row + 21 * n][0] for row in range(21)] for n in (0, 1)]
    assert torch.equal(*map(torch.stack, epochs))  # in each epoch by the same
    assert sum(len(batch.labels) for batch in batches) == 20
    texts = [str(each.message) for each in said]
    assert all(text.endswith("using the next photo instead") for text in texts)
    assert {text.partition(".jpg")[0][-6:] for text in texts} == {"rose/1", "rose/4"}
    with pytest.raises(ImageError, match=r"rose/[14]\.jpg"):
        list(opened(ClassificationData(ClassFolders(str(tmp_path)), **options)).train_dataloader())
    (tmp_path / "val/rose/0.jpg").write_bytes(b"no photo")
    with pytest.raises(ImageError, match=r"val/rose/0\.jpg"):  # the score would be another one
        list(data.val_dataloader())


def test_captions_that_say_a_side_are_not_mirrored(tmp_path: Path) -> None:
    files = photos(tmp_path)
    texts = [["a dog on the left"], ["ein Hund links"], ["狗在右边"], ["a bright dog"]]
    source = lambda split: list(zip(files, texts, strict=True))  # noqa: E731
    flipped = opened(CaptionData(source, min_word_freq=1, hflip=True)).dataset("train")
    plain = opened(CaptionData(source, min_word_freq=1)).dataset("train")
    changed = [
        {not torch.equal(flipped[row + 4 * epoch].image, plain[row].image) for epoch in range(12)}
        for row in range(4)
    ]
    assert changed == [{False}, {False}, {False}, {True, False}]


def test_phrases_are_mirrored_with_their_photo(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path, photos=5, sides=False)
    source = CaptionFile(str(paths.captions), str(paths.photos))
    data = opened(CaptionData(source, phrases=str(paths.phrases), min_word_freq=1, hflip=True))
    boxes = {data.dataset("train")[4 * epoch].phrases[0][0].boxes[0] for epoch in range(12)}
    (left, top, right, bottom), mirrored = sorted(boxes)
    assert mirrored == pytest.approx((1 - right, top, 1 - left, bottom))


def test_questions_of_the_training_give_words_and_answers(tmp_path: Path) -> None:
    data = every_kind(tmp_path)["vqa"]()
    info = data.data_info
    assert {"is", "it", "red", "dogs"} <= set(info["words"])
    assert sorted(info["answers"]) == ["2", "ball", "yes"]
    sample = data.samples("train")[0]
    assert [question.answer for question in sample.questions] == ["yes", "ball"]
    assert sample.questions[0].answers.count("yes") == 9
    file = tmp_path / "vqa/v2_mscoco_train2014_annotations.json"
    content = json.loads(file.read_text())
    del content["annotations"][0]["answers"][0]["answer"]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"questions\.json, questions\[0\]: no 'answer'"):
        type(data.source)(**vars(data.source))("train")  # type: ignore[operator]
