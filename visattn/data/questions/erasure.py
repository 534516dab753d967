"""Scenes without one of their objects: does the answer change with what it depends on?"""

from dataclasses import replace
from typing import Literal, NamedTuple

from visattn.data.questions.batch import QuestionSample
from visattn.data.questions.scene_grammar import parse_scene_question, solve_scene_question
from visattn.data.questions.scene_questions import scene_question, scene_sample
from visattn.data.scenes.world import World

Erased = Literal["referent", "distractor"]


class Erasure(NamedTuple):
    """A scene without one object, and the question about it that this is a control of."""

    question: int
    """Index of the question among those of the original sample."""
    sample: QuestionSample
    """The scene without the object, with this question and its answer there."""


def erase_objects(sample: QuestionSample, erased: Erased) -> list[Erasure]:
    """Return scenes without one object, for each question of a sample that they fit.

    Without a `referent` the answer must change: an object that the question is about is left out,
    the question still has an answer, and it is another one. Without a `distractor` it must not: the
    object is none of those, and the answer stays.

    Args:
        sample: A sample of `SceneQuestions`.
        erased: Which object is left out.

    Raises:
        TypeError: If the sample is not a scene.

    Example:
        >>> from visattn.data.questions.scene_questions import SceneQuestions
        >>> sample = SceneQuestions(3)[0]
        >>> erasures = erase_objects(sample, "referent")
        >>> first = erasures[0]
        >>> sample.questions[first.question].answer != first.sample.questions[0].answer
        True
    """
    world = sample.world
    if not isinstance(world, World):
        raise TypeError(f"objects can be erased from rendered scenes only, got {sample.id}")
    erasures: list[Erasure] = []
    for number, question in enumerate(sample.questions):
        query = parse_scene_question(question.text)
        about = {index for step in question.referents for index in step}
        others = set(range(len(world.objects))) - about
        for index in sorted(about if erased == "referent" else others):
            objects = world.objects[:index] + world.objects[index + 1 :]
            smaller = replace(world, objects=objects)
            answer = query and solve_scene_question(query, smaller)
            if query and answer and (answer != question.answer) == (erased == "referent"):
                questions = (scene_question(query, smaller),)
                name = f"{sample.id}-without-{index}"
                erasures.append(
                    Erasure(number, scene_sample(name, smaller, questions, sample.image.shape[1]))
                )
                break
    return erasures
