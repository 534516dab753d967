"""Sort-of-CLEVR: images of six objects with questions, generated on the fly."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from visattn.data.loading import mix_seed, per_sample_uniforms
from visattn.data.questions.batch import Question, QuestionSample
from visattn.data.source import Source
from visattn.results.kinds import Split

SORT_OF_CLEVR_COLORS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "orange": (255, 156, 0),
    "gray": (128, 128, 128),
    "yellow": (255, 255, 0),
}
"""Colors of the objects in drawing order; each occurs once per image."""
SORT_OF_CLEVR_SIZE = 75
"""Height and width of the images in pixels, without margins."""
RADIUS = 5
_NUM_OBJECTS = len(SORT_OF_CLEVR_COLORS)
_NUM_ATTEMPTS = 32  # per object; at least 62 % of positions are free, so all fail with p = 1e-13
_SENTINEL = 999  # squared distance of an object to itself in the original


class SortOfClevrLayout(NamedTuple):
    """Contents of images: one object of each color."""

    centers: Int[Tensor, "*n 6 2"]
    """Pixel at the center of each object: column and row."""
    rectangles: Bool[Tensor, "*n 6"]
    """Whether the object is a rectangle; otherwise it is a circle."""


def sample_layouts(seed: int, indices: list[int]) -> SortOfClevrLayout:
    """Sample random layouts; each depends only on the seed and its index.

    Centers are integers from 5 to 69 at squared distances of at least 100; each is resampled until
    it fits the earlier ones. Each object is a rectangle or a circle with probability 1/2.

    Example:
        >>> sample_layouts(0, [3, 5]).centers.shape
        torch.Size([2, 6, 2])

    Source:
        https://github.com/kimhc6028/relational-networks, sort_of_clevr_generator.py.
    """
    uniforms = per_sample_uniforms(
        mix_seed(seed, 0), indices, _NUM_OBJECTS * (2 * _NUM_ATTEMPTS + 1)
    )
    positions = uniforms[:, _NUM_OBJECTS:].view(len(indices), _NUM_OBJECTS, _NUM_ATTEMPTS, 2)
    candidates = RADIUS + (positions * (SORT_OF_CLEVR_SIZE - 2 * RADIUS)).long()
    centers = candidates[:, :1, 0]
    for attempts in candidates.unbind(1)[1:]:
        distances = (attempts[:, :, None] - centers[:, None]).square().sum(-1)
        first = (distances >= (2 * RADIUS) ** 2).all(-1).int().argmax(1)
        chosen = attempts.gather(1, first[:, None, None].expand(-1, 1, 2))
        centers = torch.cat([centers, chosen], 1)
    return SortOfClevrLayout(centers, uniforms[:, :_NUM_OBJECTS] < 0.5)


def draw_layouts(
    layout: SortOfClevrLayout, *, size: int = SORT_OF_CLEVR_SIZE
) -> UInt8[Tensor, "n 3 {size} {size}"]:
    """Draw images: white, with filled rectangles of 11 x 11 pixels and circles of radius 5.

    Later colors cover earlier ones, without antialiasing, as in OpenCV. Images larger than 75
    pixels get white margins; the objects keep their size.

    Raises:
        ValueError: If the size is below 75.

    Example:
        >>> image = draw_layouts(sample_layouts(0, [0]))
        >>> image.shape, image[0, :, 0, 0]
        (torch.Size([1, 3, 75, 75]), tensor([255, 255, 255], dtype=torch.uint8))
    """
    offset = left_margin(size)
    images = torch.full((len(layout.centers), 3, size, size), 255, dtype=torch.uint8)
    steps = torch.arange(-RADIUS, RADIUS + 1)
    disc = steps[:, None].square() + steps.square() <= RADIUS**2
    for color, rgb in enumerate(SORT_OF_CLEVR_COLORS.values()):
        covered = disc | layout.rectangles[:, color, None, None]
        image, row, column = covered.nonzero().unbind(1)
        x, y = (layout.centers[image, color] + (offset - RADIUS)).unbind(1)
        images[image, :, y + row, x + column] = torch.tensor(rgb, dtype=torch.uint8)
    return images


def layout_boxes(
    layout: SortOfClevrLayout, *, size: int = SORT_OF_CLEVR_SIZE
) -> Float[Tensor, "*n 6 4"]:
    """Return the boxes of objects: left, top, right and bottom in pixels of the image.

    They bound all pixels of an object, including those that a later object covers.
    """
    low = (layout.centers + (left_margin(size) - RADIUS)).float()
    return torch.cat([low, low + (2 * RADIUS + 1)], -1)


def left_margin(size: int) -> int:
    """Return the width of the white margin at the left and top of an image of this size."""
    if size < SORT_OF_CLEVR_SIZE:
        raise ValueError(
            f"size must be at least {SORT_OF_CLEVR_SIZE} pixels, the size of Sort-of-CLEVR images, "
            f"got {size}"
        )
    return (size - SORT_OF_CLEVR_SIZE) // 2


class SortOfClevrFacts(NamedTuple):
    """Facts that determine the answers, for each object of n images."""

    left: Bool[Tensor, "n 6"]
    """Whether the center is on the left half."""
    top: Bool[Tensor, "n 6"]
    """Whether the center is on the top half."""
    closest: Int[Tensor, "n 6"]
    """The closest other object; ties go to the first in the order of colors."""
    furthest: Int[Tensor, "n 6"]
    """The furthest object."""
    same_shape: Bool[Tensor, "n 6 6"]
    """Objects of the same shape, the object itself included."""


def layout_facts(layout: SortOfClevrLayout, *, original: bool = False) -> SortOfClevrFacts:
    """Return the facts that determine the answers to questions.

    The original generator sets the squared distance of an object to itself to 999, so an object
    whose neighbors are further than 31.6 pixels away is its own closest object.

    Example:
        >>> centers = torch.tensor([[[5, 5], [69, 5], [69, 69], [5, 69], [69, 30], [30, 69]]])
        >>> layout = SortOfClevrLayout(centers, torch.zeros(1, 6, dtype=torch.bool))
        >>> layout_facts(layout).closest[0], layout_facts(layout, original=True).closest[0]
        (tensor([1, 4, 4, 5, 1, 3]), tensor([0, 4, 2, 5, 1, 3]))
    """
    centers, rectangles = layout
    distances = (centers[:, :, None] - centers[:, None]).square().sum(-1)
    hidden = _SENTINEL if original else 4 * SORT_OF_CLEVR_SIZE**2
    closest = (distances + hidden * torch.eye(_NUM_OBJECTS, dtype=torch.long)).argmin(-1)
    left, top = (2 * centers < SORT_OF_CLEVR_SIZE).unbind(-1)
    same_shape = rectangles[:, :, None] == rectangles[:, None]
    return SortOfClevrFacts(left, top, closest, distances.argmax(-1), same_shape)


SORT_OF_CLEVR_GROUPS = {
    "non_relational": ("shape", "left", "top"),
    "relational": ("closest", "furthest", "count"),
}
"""Types of questions by group."""
SORT_OF_CLEVR_ANSWERS = ("yes", "no", "rectangle", "circle", "1", "2", "3", "4", "5", "6")
TEMPLATES = {
    "shape": "what is the shape of the {} object ?",
    "left": "is the {} object on the left half of the image ?",
    "top": "is the {} object on the top half of the image ?",
    "closest": "what is the shape of the object closest to the {} object ?",
    "furthest": "what is the shape of the object furthest from the {} object ?",
    "count": "how many objects have the shape of the {} object ?",
}
_NAMES = tuple(SORT_OF_CLEVR_COLORS)
_NUM_SUBTYPES = 3
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def sort_of_clevr_texts() -> list[str]:
    """Return all 36 questions, in the order of types and colors.

    Example:
        >>> sort_of_clevr_texts()[0]
        'what is the shape of the red object ?'
    """
    types = chain.from_iterable(SORT_OF_CLEVR_GROUPS.values())
    return [TEMPLATES[type_].format(color) for type_ in types for color in _NAMES]


class SortOfClevr(Sequence[QuestionSample]):
    """Images of six colored rectangles and circles with questions, generated on access.

    Sample i of a split depends only on the seed, the split and i; indices beyond the length give
    new images, so every training epoch can have its own. Colors and types of questions are
    independent and uniform, so a question may occur twice for an image.

    The words of a question carry the same information (color, group, type) as the numeric code of
    the original.

    Args:
        num_images: Number of images.
        split: `train`, `validation` or `test`.
        seed: Seed of images and questions.
        questions: Questions per image and group.
        original: Whether to reproduce the errors of the original generator: "closest" may be the
            object itself (3.4 % of these answers are wrong).
        size: Height and width in pixels, at least 75; larger images have white margins.

    Raises:
        ValueError: If the size is below 75.

    Example:
        >>> sample = SortOfClevr(10, split="test")[3]
        >>> sample.image.shape, len(sample.questions)
        (torch.Size([3, 75, 75]), 20)

    Source:
        Santoro et al. 2017, arXiv:1706.01427, section 4.3; generated as in
        https://github.com/kimhc6028/relational-networks, with questions in words.
    """

    endless = True  # indices beyond the length give other images

    def __init__(
        self,
        num_images: int,
        *,
        split: Split = "train",
        seed: int = 0,
        questions: int = 10,
        original: bool = False,
        size: int = SORT_OF_CLEVR_SIZE,
    ) -> None:
        left_margin(size)
        self.num_images = num_images
        self.split = split
        self.size = size
        self.num_questions = questions
        self.original = original
        self.seed = mix_seed(seed, _SPLITS.index(split))

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[QuestionSample]:
        """Return several samples; generating them together is faster."""
        layout = sample_layouts(self.seed, indices)
        images = draw_layouts(layout, size=self.size)
        boxes = layout_boxes(layout, size=self.size)
        samples: list[QuestionSample] = []
        for row, questions in enumerate(self._questions(indices, layout)):
            name = f"{self.split}-{indices[row]}"
            samples.append(QuestionSample(name, images[row], questions, boxes[row]))
        return samples

    def _questions(
        self, indices: list[int], layout: SortOfClevrLayout
    ) -> Iterator[tuple[Question, ...]]:
        """Yield the questions of each image, group by group."""
        count = self.num_questions
        uniforms = per_sample_uniforms(mix_seed(self.seed, 1), indices, 4 * count)
        colors, types = uniforms.view(len(indices), 2, 2, count).unbind(1)
        colors = (colors * len(_NAMES)).long().tolist()
        types = (types * _NUM_SUBTYPES).long().tolist()
        # Single elements of lists are faster to read than those of tensors.
        facts = [fact.tolist() for fact in layout_facts(layout, original=self.original)]
        named = dict(zip(SortOfClevrFacts._fields, facts, strict=True))
        rectangles = layout.rectangles.tolist()
        names = [*SORT_OF_CLEVR_GROUPS.values()]

        def ask(row: int, type_: str, color: int) -> Question:
            if type_ in ("left", "top"):
                return _question(type_, color, "yes" if named[type_][row][color] else "no")
            if type_ == "count":
                same = tuple(i for i, equal in enumerate(named["same_shape"][row][color]) if equal)
                return _question(type_, color, str(len(same)), same)
            other = color if type_ == "shape" else named[type_][row][color]
            answer = "rectangle" if rectangles[row][other] else "circle"
            return _question(type_, color, answer, () if type_ == "shape" else (other,))

        for row in range(len(indices)):
            yield tuple(
                ask(row, names[group][type_], color)
                for group in range(2)
                for type_, color in zip(types[row][group], colors[row][group], strict=True)
            )


@lru_cache(4096)
def _question(type_: str, color: int, answer: str, second_step: tuple[int, ...] = ()) -> Question:
    referents = ((color,), second_step) if second_step else ((color,),)
    group = next(name for name, types in SORT_OF_CLEVR_GROUPS.items() if type_ in types)
    return Question(TEMPLATES[type_].format(_NAMES[color]), answer, type_, group, referents)


@dataclass
class SortOfClevrImages(Source):
    """Sort-of-CLEVR: six colored rectangles and circles, with questions in words; no files needed.

    Args:
        train: Number of training images in an epoch; every epoch has its own.
        val: Number of validation images.
        test: Number of test images.
        image_size: Height and width in pixels, at least 75.
        questions: Questions per image of each group.
        original: Whether to reproduce the errors of the original generator; see `SortOfClevr`.
        seed: Seed of images and questions; by default the seed of the data module.
    """

    train: int = 9800
    val: int = 300
    test: int = 2000
    image_size: int = 80
    questions: int = 10
    original: bool = False
    seed: int | None = None
    answers = SORT_OF_CLEVR_ANSWERS
    texts: ClassVar = sort_of_clevr_texts()
    types: ClassVar = {
        kind: group for group, kinds in SORT_OF_CLEVR_GROUPS.items() for kind in kinds
    }
    num_steps = 2
    num_workers = 0

    def __call__(self, split: Split) -> SortOfClevr:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the images of a split."""
        counts = {"train": self.train, "validation": self.val, "test": self.test}
        return SortOfClevr(
            counts[split],
            split=split,
            seed=self.seed or 0,
            questions=self.questions,
            original=self.original,
            size=self.image_size,
        )
