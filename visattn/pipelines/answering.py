"""Answers to questions about photos, with the map of each hop placed on the original."""

import warnings
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import nn

from visattn.data.captions.batch import Vocabulary, split_words
from visattn.data.questions.batch import encode_questions
from visattn.images.reader import ImageLike
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.io.messages import did_you_mean, format_names
from visattn.models.loaded import loaded_with
from visattn.models.vqa.model import VQAModel
from visattn.recording.frozen import eval_mode
from visattn.recording.places import CellStrides
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.info import MapInfo
from visattn.results.values import Answer

_STRANGE = 1 / 3  # share of unknown words above which an answer is reported as a guess


@torch.no_grad()
def ask(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    questions: Sequence[str] | str,
    *,
    num_answers: int = 5,
    resize_mode: ResizeMode | None = None,
) -> list[Answer]:
    """Ask questions about images; return answers with the attention map of each hop.

    The training mode of the model is restored. Vision-language models that generate text answer by
    `visattn.caption(model, images, prompt=QUESTION, processor=...)`.

    Args:
        model: A trained model that answers questions, as `load` returns it.
        images: One image or several, or folders, as for `visattn.caption`.
        questions: One question or several; each goes with each image.
        num_answers: Maximum number of answers per question.
        resize_mode: How images get the shape of the input: `pad` keeps all of the image, `squash`
            ignores the aspect ratio, `crop` takes the center; by default as in the training of the
            model, or `squash`, as `QuestionData` resizes, if that is unknown.

    Returns:
        The answers to all questions about the first image, then about the second, and so on.

    Raises:
        TypeError: If the model does not answer questions.
        ImageError: If an image cannot be read.
        ValueError: If a question has no words, or none that the model knows, or the model outputs
            NaN.

    Warns:
        UserWarning: For a question with words that the model does not know.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SmallEncoder, CrossAttentionVQA
        >>> from visattn.models.captioning.captioner import SPECIAL_TOKENS
        >>> words, encoder = (*SPECIAL_TOKENS, "what", "color"), SmallEncoder((16, 24), channels=8)
        >>> model = CrossAttentionVQA(words, ("red", "blue"), encoder, dim=8)
        >>> [answer] = ask(model, np.zeros((60, 80, 3), np.uint8), "What color?")
        >>> answer.words, answer.maps.labels, answer.maps.values.shape
        (('what', 'color'), ('layer 1', 'layer 2', 'layer 3'), torch.Size([3, 2, 3]))
    """
    texts = [questions] if isinstance(questions, str) else list(questions)
    if not isinstance(model, VQAModel):
        raise TypeError(
            "the model must answer questions, such as CrossAttentionVQA, or, if it generates text, "
            f"be asked by visattn.caption(model, images, prompt=...); got {type(model).__name__}"
        )
    vocabulary = Vocabulary(model.words)
    notes = [check_question(question, vocabulary, model.question_beginnings) for question in texts]
    for question_notes in filter(None, notes):
        warnings.warn("; ".join(question_notes), stacklevel=2)
    resize_mode = resize_mode or loaded_with(model).resize_mode or "squash"
    spec = ResizeSpec(model.img_size, mode=resize_mode)
    tokens = encode_questions(texts, vocabulary).to(next(model.parameters()).device)
    answers: list[Answer] = []
    with eval_mode(model):
        for image in read_images(images):
            pixels, geometry = resize_to_input(image, spec)
            with CellStrides().watching(model.encoder) as strides:
                output = model(pixels[None].to(tokens.device), tokens, tokens.new_zeros(len(texts)))
            if not output.logits.isfinite().all():
                raise ValueError("the model outputs NaN or infinity: its weights are damaged")
            margin = strides.margin(model.grid_size, model.img_size)
            more = {"resize_mode": resize_mode}
            info = MapInfo(model=type(model).__name__, image=image.name, more=more)
            place = geometry.inset(margin), info, model.hop_names, margin
            for row, question in enumerate(texts):
                probabilities = output.logits[row].float().softmax(-1)
                best = probabilities.topk(min(num_answers, len(probabilities)))
                names = [str(model.answers[index]) for index in best.indices.tolist()]
                words = tuple(split_words(question))
                maps = None
                if output.attention is not None:
                    values = output.attention[row].float().unflatten(-1, model.grid_size).cpu()
                    site = f"{type(model).__name__} hops"
                    maps = AttentionMap(values, site, "tokens", *place)
                weights = None
                if output.words is not None:
                    weights = output.words[row, :, : len(words)].float().cpu()
                unknown = tuple(word for word in dict.fromkeys(words) if word not in model.words)
                shares = tuple(zip(names, best.values.tolist(), strict=True))
                answers.append(
                    Answer(question, words, shares, maps, weights, unknown, image.name, notes[row])
                )
    return answers


def check_question(
    question: str, vocabulary: Vocabulary, beginnings: Collection[str] = ()
) -> tuple[str, ...]:
    """Check that a model can read a question; return notes on words that its training lacked.

    `beginnings` are the first two words of its training questions; empty if unknown.

    Raises:
        ValueError: If it has no words, or only unknown ones.

    Example:
        >>> vocabulary = Vocabulary.from_captions(["what color is the ring"])
        >>> check_question("What colr is the ring?", vocabulary)
        ("the model does not know the word 'colr': did you mean color?",)
        >>> check_question("Wo ist er?", vocabulary)
        Traceback (most recent call last):
        ValueError: the model knows none of the words of 'Wo ist er?'; its words are color, is, ...
    """
    words = split_words(question)
    shown = truncate_text(question, 80)
    if not words:
        raise ValueError(f"a question must have at least one word, got {shown!r}")
    # Without the special tokens, such as <pad>.
    known = sorted(vocabulary.words[4:])
    unknown = [word for word in dict.fromkeys(words) if word not in known]
    if len(unknown) == len(set(words)):
        raise ValueError(
            f"the model knows none of the words of {shown!r}; its words are "
            f"{format_names(known, 12)}: ask in the language of its training"
        )
    notes = [
        f"the model does not know the word {word!r}: "
        + did_you_mean(word, known, otherwise="it reads it as an unknown word")
        for word in unknown[:8]
    ]
    if len(unknown) >= _STRANGE * len(set(words)):
        notes.append(
            f"the model knows only {len(set(words)) - len(unknown)} of the {len(set(words))} "
            "words: it was not trained on such questions, so its answer is a guess"
        )
    elif beginnings and (beginning := " ".join(words[:2])) not in beginnings:
        notes.append(
            f"no training question begins with {beginning!r}, so the answer is a guess: "
            f"they begin with {format_names(sorted(beginnings), 12)}"
        )
    return tuple(notes)
