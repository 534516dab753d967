"""Questions of Sort-of-CLEVR in words, and the dataset."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from visattn.data.loading.sample_seed import mix_seed, per_sample_uniforms
from visattn.data.questions.batch import Question, QuestionSample
from visattn.data.questions.sort_of_clevr import (
    SORT_OF_CLEVR_COLORS,
    SORT_OF_CLEVR_SIZE,
    SortOfClevrFacts,
    SortOfClevrLayout,
    draw_layouts,
    layout_boxes,
    layout_facts,
    left_margin,
    pair_facts,
    sample_layouts,
)
from visattn.results.kinds import Split

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
        self.num_images, self.split, self.size = num_images, split, size
        self.num_questions, self.original, self.ternary = questions, original, ternary
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
        images, boxes = draw_layouts(layout, size=self.size), layout_boxes(layout, size=self.size)
        samples: list[QuestionSample] = []
        for row, questions in enumerate(self._questions(indices, layout)):
            world = SortOfClevrLayout(layout.centers[row], layout.rectangles[row])
            name = f"{self.split}-{indices[row]}"
            samples.append(QuestionSample(name, images[row], questions, boxes[row], world))
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
    group = _group_of(type_)
    return Question(TEMPLATES[type_].format(_NAMES[color]), answer, type_, group, referents)


@lru_cache(4096)
def _ternary_question(
    type_: str, pair: Sequence[int], objects: tuple[int, ...], surplus: int
) -> Question:
    answer = str(len(objects) + surplus) if type_ != "line" else "yes" if objects else "no"
    text = TEMPLATES[type_].format(*(_NAMES[color] for color in pair))
    referents = (tuple(pair), objects) if objects else (tuple(pair),)
    return Question(text, answer, type_, "ternary", referents)


def _group_of(type_: str) -> str:
    return next(group for group, types in SORT_OF_CLEVR_GROUPS.items() if type_ in types)
