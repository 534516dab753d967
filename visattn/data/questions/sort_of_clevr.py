"""Sort-of-CLEVR: images of six objects, drawn on the fly; what is in them and where."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.data.questions.batch import Question, QuestionSample
from visattn.results.kinds import Split

SORT_OF_CLEVR_COLORS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "orange": (255, 156, 0),
    "gray": (128, 128, 128),
    "yellow": (255, 255, 0),
}
"""Colors of the objects in the order in which they are drawn; each occurs once per image."""
SORT_OF_CLEVR_SIZE = 75
"""Height and width of the images in pixels, without margins."""
RADIUS = 5
_NUM_OBJECTS = len(SORT_OF_CLEVR_COLORS)
_NUM_ATTEMPTS = 32  # per object; at least 62 % of the places are free, so all fail in 1e-13
_SENTINEL = 999  # squared distance by which the original hides the object itself


class SortOfClevrLayout(NamedTuple):
    """Contents of images: one object of each color."""

    centers: Int[Tensor, "*n 6 2"]
    """Pixel at the center of each object: column and row."""
    rectangles: Bool[Tensor, "*n 6"]
    """Whether the object is a rectangle; otherwise it is a circle."""


def sample_layouts(seed: int, indices: list[int]) -> SortOfClevrLayout:
    """Return random layouts; each depends on the seed and its index alone.

    Centers are integers from 5 to 69 at squared distances of at least 100; each is drawn again
    until it fits the earlier ones. Each object is a rectangle or a circle with probability 1/2.

    Example:
        >>> sample_layouts(0, [3, 5]).centers.shape
        torch.Size([2, 6, 2])

    Source:
        https://github.com/kimhc6028/relational-networks, sort_of_clevr_generator.py.
    """
    uniforms = per_sample_uniforms(
        mix_seed(seed, 0), indices, _NUM_OBJECTS * (2 * _NUM_ATTEMPTS + 1)
    )
    places = uniforms[:, _NUM_OBJECTS:].view(len(indices), _NUM_OBJECTS, _NUM_ATTEMPTS, 2)
    candidates = RADIUS + (places * (SORT_OF_CLEVR_SIZE - 2 * RADIUS)).long()
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

    Later colors cover earlier ones. There is no antialiasing: pixels are those of OpenCV. Images
    larger than 75 pixels have white margins; no object changes its size.

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
    """Return the boxes of objects: left, top, right and bottom in pixels of the drawn image.

    They bound all pixels of an object, including those that a later object covers.
    """
    low = (layout.centers + (left_margin(size) - RADIUS)).float()
    return torch.cat([low, low + (2 * RADIUS + 1)], -1)


def left_margin(size: int) -> int:
    """Return the width of the white margin on the left and at the top of an image of a size."""
    if size < SORT_OF_CLEVR_SIZE:
        raise ValueError(
            f"size must be at least {SORT_OF_CLEVR_SIZE} pixels, that of Sort-of-CLEVR; larger "
            f"images have white margins; got {size}"
        )
    return (size - SORT_OF_CLEVR_SIZE) // 2


class SortOfClevrFacts(NamedTuple):
    """What the answers to questions depend on, for each object of n images."""

    left: Bool[Tensor, "n 6"]
    """Whether the center is on the left half."""
    top: Bool[Tensor, "n 6"]
    """Whether the center is on the top half."""
    closest: Int[Tensor, "n 6"]
    """The closest other object; of several the first in the order of colors."""
    furthest: Int[Tensor, "n 6"]
    """The furthest object."""
    same_shape: Bool[Tensor, "n 6 6"]
    """Objects of the same shape, the object itself included."""


def layout_facts(layout: SortOfClevrLayout, *, original: bool = False) -> SortOfClevrFacts:
    """Return what the answers to questions about single objects depend on.

    The original generator replaces the zero distance of an object to itself by 999, so that an
    object whose neighbors are further than 31.6 pixels away is its own closest object.

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


class PairFacts(NamedTuple):
    """Objects that stand in a relation to a pair of objects, for p pairs."""

    between: Bool[Tensor, "p 6"]
    """Objects whose center lies in the box between the centers of the pair, its edge included."""
    line: Bool[Tensor, "p 6"]
    """Objects near the line through the centers of the pair."""
    obtuse: Bool[Tensor, "p 6"]
    """Objects that form a triangle with an angle of at least 90 degrees with the pair."""


def pair_facts(
    centers: Int[Tensor, "p 6 2"], pairs: Int[Tensor, "p 2"], *, original: bool = False
) -> PairFacts:
    """Return what the answers to questions about pairs of different objects depend on.

    Near the line means within 12 pixels, which the original measures vertically.

    Example:
        >>> centers = torch.tensor([[[5, 5], [65, 65], [30, 30], [5, 60], [69, 69], [60, 30]]])
        >>> facts = pair_facts(centers, torch.tensor([[0, 1]]))
        >>> [objects.nonzero()[:, 1].tolist() for objects in facts]
        [[2, 3, 5], [2, 4], [3, 5]]
    """
    first, second = (
        centers.gather(1, index[:, None, None].expand(-1, 1, 2)) for index in pairs.unbind(1)
    )
    others = torch.ones(centers.shape[:2], dtype=torch.bool).scatter_(1, pairs, value=0)
    low = torch.minimum(first, second)
    high = torch.maximum(first, second)
    between = ((low <= centers) & (centers <= high)).all(-1)
    along = second - first
    offset = centers - first
    cross = along[..., 0] * offset[..., 1] - along[..., 1] * offset[..., 0]
    if original:  # the slope of a vertical line is a huge number there
        level = (along[..., 0] == 0) & (offset[..., 0] == 0) & (offset[..., 1].abs() <= 12)
        near = (cross.abs() <= 12 * along[..., 0].abs()) & (along[..., 0] != 0) | level
    else:
        near = cross.square() <= 144 * along.square().sum(-1)
    sides = torch.stack(
        torch.broadcast_tensors(
            along.square().sum(-1),
            offset.square().sum(-1),
            (centers - second).square().sum(-1),
        )
    )
    # If the largest squared side is at least the sum of the others, the angle is at least 90
    # degrees. Centers on one line (cross 0) form no triangle.
    obtuse = (2 * sides.amax(0) >= sides.sum(0)) & (cross != 0)
    return PairFacts(between & others, near & others, obtuse & others)


SORT_OF_CLEVR_GROUPS = {
    "non_relational": ("shape", "left", "top"),
    "relational": ("closest", "furthest", "count"),
    "ternary": ("between", "line", "obtuse"),
}
"""Types of questions by group; `ternary` questions are about two colors."""
SORT_OF_CLEVR_ANSWERS = ("yes", "no", "rectangle", "circle", "1", "2", "3", "4", "5", "6")
TEMPLATES = {
    "shape": "what is the shape of the {} object ?",
    "left": "is the {} object on the left half of the image ?",
    "top": "is the {} object on the top half of the image ?",
    "closest": "what is the shape of the object closest to the {} object ?",
    "furthest": "what is the shape of the object furthest from the {} object ?",
    "count": "how many objects have the shape of the {} object ?",
    "between": "how many objects are between the {} and the {} object ?",
    "line": "is there an object on the line through the {} and the {} object ?",
    "obtuse": "how many objects form an obtuse triangle with the {} and the {} object ?",
}
_NAMES = tuple(SORT_OF_CLEVR_COLORS)
_NUM_SUBTYPES = 3
_SPLITS: tuple[Split, ...] = ("train", "validation", "test")
_NUM_PAIR_COLORS = 5  # ternary questions are about the first five colors


def sort_of_clevr_texts(*, ternary: bool = False) -> list[str]:
    """Return all questions, in the order of types and colors: 36, or 96 with ternary ones.

    Example:
        >>> sort_of_clevr_texts()[0]
        'what is the shape of the red object ?'
    """
    types = (*SORT_OF_CLEVR_GROUPS["non_relational"], *SORT_OF_CLEVR_GROUPS["relational"])
    texts = [TEMPLATES[type_].format(color) for type_ in types for color in _NAMES]
    if ternary:
        names = _NAMES[:_NUM_PAIR_COLORS]
        pairs = [(a, b) for a in names for b in names if a != b]
        types = SORT_OF_CLEVR_GROUPS["ternary"]
        texts += [TEMPLATES[type_].format(*pair) for type_ in types for pair in pairs]
    return texts


class SortOfClevr(Dataset[QuestionSample]):
    """Images of six colored rectangles and circles with questions, drawn on access.

    Sample i of a split depends on the seed, the split and i alone; indices beyond the length give
    new images, so that every epoch of a training can have its own. Colors and types of questions
    are independent and uniform, so that a question may occur twice about an image.

    The 18 numbers by which the original encodes a question (color, second color, group, type) are
    the same information as its words.

    Args:
        num_images: Number of images.
        split: `train`, `validation` or `test`.
        seed: Seed of images and questions.
        questions: Questions per image and group.
        original: Whether answers have the faults of the original generator: "closest" may be the
            object itself (3.4 % of these answers are wrong), and of ternary questions, counts are
            one too high and "on the line" is measured vertically.
        ternary: Whether there are questions about two colors, as in later versions of the original.
        size: Height and width in pixels, at least 75; larger images have white margins.

    Raises:
        ValueError: If the split is unknown, or a number is out of range.

    Example:
        >>> sample = SortOfClevr(10, split="test")[3]
        >>> sample.image.shape, len(sample.questions)
        (torch.Size([3, 75, 75]), 20)

    Source:
        Santoro et al. 2017, arXiv:1706.01427, section 4.3; the generator is that of
        https://github.com/kimhc6028/relational-networks, with questions in words.
    """

    def __init__(
        self,
        num_images: int,
        *,
        split: Split = "train",
        seed: int = 0,
        questions: int = 10,
        original: bool = False,
        ternary: bool = False,
        size: int = SORT_OF_CLEVR_SIZE,
    ) -> None:
        if split not in _SPLITS:
            raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
        if num_images < 1 or questions < 1 or seed < 0:
            raise ValueError(
                "num_images and questions must be at least 1 and seed at least 0, got "
                f"{num_images}, {questions} and {seed}"
            )
        left_margin(size)
        self.num_images = num_images
        self.split = split
        self.size = size
        self.num_questions = questions
        self.original = original
        self.ternary = ternary
        self.seed = mix_seed(seed, _SPLITS.index(split))
        self.answers = (
            (*SORT_OF_CLEVR_ANSWERS, "0") if ternary and not original else (SORT_OF_CLEVR_ANSWERS)
        )

    def __len__(self) -> int:
        return self.num_images

    def __getitem__(self, index: int) -> QuestionSample:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[QuestionSample]:
        """Return several samples; drawing them together is faster."""
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
        uniforms = per_sample_uniforms(mix_seed(self.seed, 1), indices, 7 * count)
        single, pairs = uniforms.split([4 * count, 3 * count], 1)
        colors, types = single.view(len(indices), 2, 2, count).unbind(1)
        colors = (colors * len(_NAMES)).long().tolist()
        types = (types * _NUM_SUBTYPES).long().tolist()
        facts = _ObjectFacts.of(layout_facts(layout, original=self.original), layout)
        names = (SORT_OF_CLEVR_GROUPS["non_relational"], SORT_OF_CLEVR_GROUPS["relational"])
        ternary = self._ternary_questions(pairs, layout) if self.ternary else ()
        for row in range(len(indices)):
            questions = [
                facts.question(row, names[group][type_], color)
                for group in range(2)
                for type_, color in zip(types[row][group], colors[row][group], strict=True)
            ]
            yield (*questions, *(ternary[row] if ternary else ()))

    def _ternary_questions(
        self, uniforms: torch.Tensor, layout: SortOfClevrLayout
    ) -> list[list[Question]]:
        """Return the questions about two colors, for each image."""
        types, first, second = uniforms.view(len(uniforms), 3, self.num_questions).unbind(1)
        first = (first * _NUM_PAIR_COLORS).long()
        second = (second * (_NUM_PAIR_COLORS - 1)).long()
        second += second >= first
        pairs = torch.stack([first, second], -1).flatten(0, 1)
        centers = layout.centers.repeat_interleave(self.num_questions, 0)
        facts = torch.stack(pair_facts(centers, pairs, original=self.original)).tolist()
        subtypes = (types * _NUM_SUBTYPES).long().flatten().tolist()
        questions = [
            _ternary_question(
                SORT_OF_CLEVR_GROUPS["ternary"][subtype],
                tuple(pair),
                tuple(i for i, fits in enumerate(facts[subtype][row]) if fits),
                int(self.original),
            )
            for row, (subtype, pair) in enumerate(zip(subtypes, pairs.tolist(), strict=True))
        ]
        size = self.num_questions
        return [questions[i * size : (i + 1) * size] for i in range(len(uniforms))]


class _ObjectFacts(NamedTuple):
    """`SortOfClevrFacts` and shapes as lists, which are faster to read one by one."""

    left: list[list[bool]]
    top: list[list[bool]]
    closest: list[list[int]]
    furthest: list[list[int]]
    same_shape: list[list[list[bool]]]
    rectangles: list[list[bool]]

    @classmethod
    def of(cls, facts: SortOfClevrFacts, layout: SortOfClevrLayout) -> "_ObjectFacts":
        left, top, closest, furthest, same_shape = (fact.tolist() for fact in facts)
        return cls(left, top, closest, furthest, same_shape, layout.rectangles.tolist())

    def question(self, row: int, type_: str, color: int) -> Question:
        """Return a question about one color of an image."""
        if type_ in ("left", "top"):
            return _question(type_, color, "yes" if getattr(self, type_)[row][color] else "no")
        if type_ == "count":
            same = tuple(i for i, equal in enumerate(self.same_shape[row][color]) if equal)
            return _question(type_, color, str(len(same)), same)
        other = color if type_ == "shape" else getattr(self, type_)[row][color]
        answer = "rectangle" if self.rectangles[row][other] else "circle"
        return _question(type_, color, answer, () if type_ == "shape" else (other,))


@lru_cache(4096)
def _question(type_: str, color: int, answer: str, second_step: tuple[int, ...] = ()) -> Question:
    referents = ((color,), second_step) if second_step else ((color,),)
    group = next(name for name, types in SORT_OF_CLEVR_GROUPS.items() if type_ in types)
    return Question(TEMPLATES[type_].format(_NAMES[color]), answer, type_, group, referents)


@lru_cache(4096)
def _ternary_question(
    type_: str, pair: Sequence[int], objects: tuple[int, ...], surplus: int
) -> Question:
    answer = str(len(objects) + surplus)
    if type_ == "line":
        answer = "yes" if objects else "no"
    text = TEMPLATES[type_].format(*(_NAMES[color] for color in pair))
    referents = (tuple(pair), objects) if objects else (tuple(pair),)
    return Question(text, answer, type_, "ternary", referents)
