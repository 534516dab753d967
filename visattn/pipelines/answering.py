"""Answers to questions about photos, with the map of each hop placed on the original."""

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from visattn.data.captions.batch import Vocabulary, split_words
from visattn.data.questions.batch import encode_questions
from visattn.geometry.affine import Geometry
from visattn.geometry.placement import align_of
from visattn.images.reader import ImageLike, LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.io.argument_checks import checked_arguments
from visattn.io.messages import did_you_mean, format_names
from visattn.models.backbones.pretrained import LoadedModel
from visattn.models.vqa.model import VQAModel
from visattn.pipelines.captioning import caption, check_processor
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.recording.frozen import eval_mode
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.info import MapInfo
from visattn.results.values import Answer

MAX_WORDS = 100
"""Longest question, in words; questions of data sets have up to 30."""
_STRANGE = 1 / 3  # share of unknown words from which on a question is of another kind


@checked_arguments(num_answers=(1, 1_000_000))
@torch.no_grad()
def ask(
    model: nn.Module | LoadedModel,
    images: Iterable[ImageLike] | ImageLike,
    questions: Sequence[str] | str,
    *,
    num_answers: int = 5,
    resize_mode: ResizeMode = "pad",
    processor: Any = None,
    **generate_kwargs: Any,
) -> list[Answer]:
    """Ask questions about images; return answers with the attention map of each hop.

    Models of transformers that answer questions (ViLT, BLIP) or generate text are run by
    `ask_with_transformers`. The training mode of the model is restored.

    Args:
        model: A trained model that answers questions, as `load` or `load_model` returns it; or a
            model of transformers with its `processor`.
        images: One image or several, or folders, as for `visattn.caption`.
        questions: One question or several; each goes with each image.
        num_answers: Largest number of answers that are returned for a question.
        resize_mode: How images get the shape of the input: `pad` keeps all of the image, `squash`
            ignores the aspect ratio, `crop` takes the center.
        processor: For models of transformers: the processor, or a pair of image processor and
            tokenizer.
        generate_kwargs: For models of transformers that generate text: options of `generate`, and
            arguments of `caption_with_transformers`.

    Returns:
        The answers to all questions about the first image, then about the second, and so on.

    Raises:
        TypeError: If the model does not answer questions, has no processor, or an argument is for
            the other kind of model.
        ImageError: If an image cannot be read.
        ValueError: If there is no question, a question has no words, none that the model knows, or
            more than 100, or the model outputs NaN.

    Warns:
        UserWarning: For a question with words that the model does not know.

    Example:
        >>> import numpy as np
        >>> from visattn.models import SPECIAL_TOKENS, SmallEncoder, CrossAttentionVQA
        >>> words, encoder = (*SPECIAL_TOKENS, "what", "color"), SmallEncoder((16, 24), channels=8)
        >>> model = CrossAttentionVQA(words, ("red", "blue"), encoder, dim=8)
        >>> [answer] = ask(model, np.zeros((60, 80, 3), np.uint8), "What color?")
        >>> answer.words, answer.maps.labels, answer.maps.values.shape
        (('what', 'color'), ('hop 1', 'hop 2'), torch.Size([2, 2, 3]))
    """
    model = model.model if isinstance(model, LoadedModel) else model
    texts = [questions] if isinstance(questions, str) else list(questions)
    if not texts:
        raise ValueError("there must be at least one question, got none")
    if not isinstance(model, VQAModel):
        if resize_mode != "pad":
            raise TypeError(
                f"resize_mode is for models of visattn: the processor of {type(model).__name__} "
                "resizes images"
            )
        for question in texts:
            if not 1 <= (count := len(question.split())) <= MAX_WORDS:
                raise ValueError(
                    f"a question must have 1 to {MAX_WORDS} words, got {count}: "
                    f"{truncate_text(question, 80)!r}"
                )
        options = {"num_answers": num_answers, "processor": processor, **generate_kwargs}
        with torch.enable_grad():  # places of image tokens are found by gradients
            return ask_with_transformers(model, images, texts, **options)
    if processor is not None or generate_kwargs:
        names = ", ".join(["processor"] * (processor is not None) + list(generate_kwargs))
        raise TypeError(f"{names} is for models of transformers, not for {type(model).__name__}")
    vocabulary = Vocabulary(model.words)
    notes = [check_question(question, vocabulary, model.question_beginnings) for question in texts]
    for question_notes in filter(None, notes):
        warnings.warn("; ".join(question_notes), stacklevel=2)
    spec = ResizeSpec(model.img_size, mode=resize_mode)
    with eval_mode(model):
        return [
            answer
            for image in read_images(images)
            for answer in _ask_about_image(
                model, image, texts, vocabulary, notes, spec, num_answers
            )
        ]


def check_question(
    question: str, vocabulary: Vocabulary, beginnings: Collection[str] = ()
) -> tuple[str, ...]:
    """Check that a model can read a question; return notes on what its training did not have.

    `beginnings` are the first two words of the questions of its training; empty if unknown.

    Raises:
        ValueError: If it has no words, none that are known, or more than `MAX_WORDS`.

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
    if len(words) > MAX_WORDS:
        raise ValueError(
            f"a question may have at most {MAX_WORDS} words, got {len(words)}: {shown!r}"
        )
    # Behind the special tokens, such as <pad>.
    known = sorted(vocabulary.words[4:])
    unknown = [word for word in dict.fromkeys(words) if word not in known]
    if len(unknown) == len(set(words)):
        raise ValueError(
            f"the model knows none of the words of {shown!r}; its words are "
            f"{format_names(known, 12)}: ask in the words and the language of its training"
        )
    notes = [
        f"the model does not know the word {word!r}: "
        + did_you_mean(word, known, otherwise="it reads it as an unknown word")
        for word in unknown[:8]
    ]
    if len(unknown) >= _STRANGE * len(set(words)):
        notes.append(
            f"the model knows only {len(set(words)) - len(unknown)} of the {len(set(words))} "
            "words: it was not trained on such questions, and its answer is a guess"
        )
    elif beginnings and (beginning := " ".join(words[:2])) not in beginnings:
        notes.append(
            f"no question of the training begins with {beginning!r}, and the answer is a guess: "
            f"they begin with {format_names(sorted(beginnings), 12)}"
        )
    return tuple(notes)


def _ask_about_image(
    model: VQAModel,
    image: LoadedImage,
    questions: Sequence[str],
    vocabulary: Vocabulary,
    notes: Sequence[tuple[str, ...]],
    spec: ResizeSpec,
    num_answers: int,
) -> list[Answer]:
    pixels, geometry = resize_to_input(image, spec)
    device = next(model.parameters()).device
    tokens = encode_questions(questions, vocabulary).to(device)
    output = model(pixels[None].to(device), tokens, torch.zeros(len(tokens), dtype=torch.long))
    if not output.logits.isfinite().all():
        raise ValueError("the model outputs NaN or infinity: its weights are damaged")
    placement = model.encoder.placement
    info = MapInfo(
        model=type(model).__name__,
        image=image.name,
        align=align_of(placement),
        more={"resize_mode": spec.mode},
    )
    answers: list[Answer] = []
    for row, question in enumerate(questions):
        probabilities = output.logits[row].float().softmax(-1)
        words = tuple(split_words(question))
        maps = None
        if output.attention is not None:
            values = output.attention[row].float().unflatten(-1, model.grid_size).cpu()
            site = f"{type(model).__name__} hops"
            maps = AttentionMap(values, site, "tokens", geometry, info, model.hop_names, placement)
        answers.append(
            Answer(
                question,
                words,
                _best_answers(probabilities, model.answers, num_answers),
                maps,
                None if output.words is None else output.words[row, :, : len(words)].float().cpu(),
                tuple(word for word in dict.fromkeys(words) if word not in model.words),
                image.name,
                notes[row],
            )
        )
    return answers


def _best_answers(
    probabilities: Float[Tensor, " k"], names: Mapping[int, str] | Sequence[str], count: int
) -> tuple[tuple[str, float], ...]:
    best = probabilities.topk(min(count, len(probabilities)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple((str(names[index]), value) for index, value in pairs)


_RAMP_ERROR = 0.05  # of the range of a ramp: rounding and the resampling filter


def ask_with_transformers(
    model: nn.Module,
    images: Iterable[ImageLike] | ImageLike,
    questions: Sequence[str],
    *,
    processor: Any,
    num_answers: int = 5,
    **generate_kwargs: Any,
) -> list[Answer]:
    """Ask a model of transformers questions about images; arguments as for `ask`.

    - ViLT chooses among its answers. There is a map per layer: the attention of the first token,
      from which the answer is predicted, to the patches of the image; mean over the heads.
    - BLIP for question answering writes the answer from the encoded question, which attends to the
      image. There is a map per layer of the question encoder: the mean over words and heads.
    - Other models that generate text are run by `caption_with_transformers`, with the question as
      their prompt; there is a map per word of the answer.

    Raises:
        TypeError: If the model answers no questions, or has no processor.
        ValueError: If the maps cannot be placed on the photo.

    Source:
        Kim et al. 2021, arXiv:2102.03334 (ViLT); Li et al. 2022, arXiv:2201.12086 (BLIP).
    """
    name = type(model).__name__
    if name not in _ASK and not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"the model must answer questions: a model of visattn such as CrossAttentionVQA, "
            f"or of transformers, {', '.join(_ASK)} or one that generates text; got {name}"
        )
    check_processor(model, processor)
    ask_one = _ASK.get(name, _ask_generator)
    with eval_mode(model):
        return [
            ask_one(model, processor, image, question, num_answers, generate_kwargs)
            for image in read_images(images)
            for question in questions
        ]


def _ask_vilt(
    model: Any,
    processor: Any,
    image: LoadedImage,
    question: str,
    num_answers: int,
    generate_kwargs: dict[str, Any],
) -> Answer:
    """Ask ViLT: the answer is a class, and each answer has its own sigmoid."""
    if generate_kwargs:
        raise TypeError(f"{', '.join(generate_kwargs)} is for models that generate text, not ViLT")
    inputs, geometry = _prepare(model, processor, image, question)
    num_words = inputs["input_ids"].shape[1]
    with torch.no_grad(), _patch_places(model.vilt.embeddings) as places:
        output = model(**inputs, output_attentions=True)
    [(cells, grid)] = places
    if sorted(map(tuple, cells.tolist())) != [
        (y, x) for y in range(grid[0]) for x in range(grid[1])
    ]:
        raise ValueError(
            f"the {len(cells)} image tokens of ViLT are not the {grid[0]} x {grid[1]} patches of "
            "the photo, so that its maps cannot be placed: set max_image_length=-1 in its config"
        )
    # Text, a token for the image as a whole, and the patches, in random order.
    rows = torch.stack([layer[0].mean(0)[0] for layer in output.attentions]).float().cpu()
    maps = torch.zeros(len(rows), *grid)
    maps[:, cells[:, 0], cells[:, 1]] = rows[:, num_words + 1 :]
    probabilities = output.logits[0].float().sigmoid()
    answers = _best_answers(probabilities, model.config.id2label, num_answers)
    note = (
        "each map is the attention of the first token in one layer, mean over the heads; the rest "
        "of its attention lies on the words. Each answer has its own probability."
    )
    return _answer(model, image, question, answers, maps, geometry, note)


def _ask_blip(
    model: Any,
    processor: Any,
    image: LoadedImage,
    question: str,
    num_answers: int,  # noqa: ARG001 (it writes one answer)
    generate_kwargs: dict[str, Any],
) -> Answer:
    """Ask BLIP: the encoded question has attended to the image; the answer is written from it."""
    if beams := sorted({"num_beams", "num_return_sequences"} & set(generate_kwargs)):
        raise TypeError(f"{', '.join(beams)} is not supported for BLIP, which writes one answer")
    inputs, geometry = _prepare(model, processor, image, question)
    options = {"max_new_tokens": 20, **generate_kwargs}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        output = model.generate(**inputs, **options)
        pixels = model.vision_model(inputs["pixel_values"])[0]
        encoded = model.text_encoder(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            encoder_hidden_states=pixels,
            encoder_attention_mask=torch.ones(pixels.shape[:2], dtype=torch.long).to(pixels.device),
            output_attentions=True,
            return_dict=True,
        )
    patch = model.config.vision_config.patch_size
    grid = tuple(side // patch for side in inputs["pixel_values"].shape[-2:])
    rows = torch.stack([layer[0].mean((0, 1)) for layer in encoded.cross_attentions]).float().cpu()
    if rows.shape[1] != 1 + math.prod(grid):
        raise ValueError(
            f"the {rows.shape[1]} image tokens of BLIP are not a class token and {grid[0]} x "
            f"{grid[1]} patches, so that its maps cannot be placed on the photo"
        )
    tokens = output.sequences[0][len(output.sequences[0]) - len(output.logits) :]
    scores = torch.stack(output.logits)[:, 0].log_softmax(-1).gather(1, tokens[:, None])
    text = PhotoProcessor(model, processor).tokenizer.decode(tokens, skip_special_tokens=True)
    probability = float(scores.sum().exp())
    note = (
        "each map is the attention of the question's words to the patches in one layer of the "
        "question encoder, mean over words and heads; the answer is written from these words."
    )
    answers = ((text.strip() or "(no answer)", probability),)
    return _answer(model, image, question, answers, rows[:, 1:].unflatten(1, grid), geometry, note)


def _ask_generator(
    model: nn.Module,
    processor: Any,
    image: LoadedImage,
    question: str,
    num_answers: int,  # noqa: ARG001 (it writes one answer)
    generate_kwargs: dict[str, Any],
) -> Answer:
    """Ask a model that continues a prompt; each word of the answer has a map."""
    [written] = caption(model, image, processor=processor, prompt=question, **generate_kwargs)
    probability = math.exp(sum(written.log_probs))
    note = "each map is the attention of one word of the answer. " + written.notes
    return Answer(
        question,
        tuple(question.split()),
        ((written.text or "(no answer)", probability),),
        written.maps,
        None,
        (),
        image.name,
        (note.strip(),),
    )


_ASK = {"ViltForQuestionAnswering": _ask_vilt, "BlipForQuestionAnswering": _ask_blip}


def _answer(
    model: nn.Module,
    image: LoadedImage,
    question: str,
    answers: tuple[tuple[str, float], ...],
    maps: Float[Tensor, "l y x"],
    geometry: Geometry,
    note: str,
) -> Answer:
    info = MapInfo(model=type(model).__name__, image=image.name, more={"heads": "mean"})
    labels = tuple(f"layer {index}" for index in range(1, len(maps) + 1))
    placed = AttentionMap(maps, type(model).__name__, "tokens", geometry, info, labels)
    words = tuple(question.split())
    return Answer(question, words, answers, placed, None, (), image.name, (note,))


def _prepare(
    model: nn.Module, processor: Any, image: LoadedImage, question: str
) -> tuple[dict[str, Any], Geometry]:
    """Return the inputs of a model for one photo, and its geometry.

    Raises:
        ValueError: If the processor does more than resizing the whole photo.
    """
    prepare = PhotoProcessor(model, processor, question)
    inputs = prepare([Image.fromarray(image.pixels)])
    size = tuple(inputs["pixel_values"].shape[-2:])
    _check_resized_only(prepare, image.size, size)
    return inputs, Geometry.identity(image.size).resized(size)


def _check_resized_only(
    prepare: PhotoProcessor, image_size: tuple[int, int], size: tuple[int, int]
) -> None:
    """Check with ramps that the whole photo covers the whole input, without crop and padding."""
    for axis in (0, 1):
        ramp = torch.linspace(0, 255, image_size[axis]).round().to(torch.uint8)
        ramp = ramp[:, None] if axis == 0 else ramp[None]
        pixels = ramp.expand(image_size)[..., None].expand(-1, -1, 3).contiguous().numpy()
        pixels_out = prepare([Image.fromarray(pixels)])["pixel_values"][0].float().mean(0).cpu()
        # What black and white become undoes the normalization.
        ends = [
            prepare([Image.fromarray((0 * pixels + value).astype("uint8"))])["pixel_values"].mean()
            for value in (0, 255)
        ]
        line = (pixels_out.mean(1 - axis) - ends[0].float().cpu()) / float(ends[1] - ends[0])
        # Pixel centers lie at half integers, the ramp is 0 and 1 at the outermost centers.
        centers = (torch.arange(size[axis]) + 0.5) * image_size[axis] / size[axis] - 0.5
        expected = (centers / max(1, image_size[axis] - 1)).clamp(0, 1)
        if (line - expected).abs().max() > _RAMP_ERROR:
            raise ValueError(
                "the image processor does not just resize the whole photo (it crops or pads it), "
                "so that the maps cannot be placed: set do_center_crop=False and do_pad=False"
            )


@contextmanager
def _patch_places(
    embeddings: Any,
) -> Iterator[list[tuple[Int[Tensor, "n 2"], tuple[int, int]]]]:
    """Collect row and column of each patch token of ViLT, which shuffles them at every call."""
    places: list[tuple[Tensor, tuple[int, int]]] = []
    original = embeddings.visual_embed

    def visual_embed(*args: Any, **kwargs: Any) -> Any:
        embedded, mask, (index, grid) = original(*args, **kwargs)
        places.append((index[0].cpu(), (int(grid[0]), int(grid[1]))))
        return embedded, mask, (index, grid)

    embeddings.visual_embed = visual_embed
    try:
        yield places
    finally:
        # Set on the instance, it hid the method of the class.
        del embeddings.visual_embed
