"""Captions of images with one attention map per word, placed on the originals."""

import itertools
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import UInt8
from torch import nn

from visattn.attribution.words import check_method
from visattn.data.phrases import match_phrases, normalize_maps, phrases_to_input, score_phrases
from visattn.functional.beams import BeamSearchOutput
from visattn.geometry.affine import Geometry, Margin
from visattn.images.reader import ImageLike, LoadedImage, make_thumbnail
from visattn.images.resize import ResizeMode, ResizeSpec, resize_to_input
from visattn.images.sources import read_images
from visattn.metrics.ptb_tokenizer import word_spaces
from visattn.models.captioning.captioner import AttentionStep, Captioner, Places
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.loaded import loaded_with
from visattn.models.saving import load
from visattn.pipelines.caption_words import explain_captions
from visattn.pipelines.inputs import note_photo
from visattn.recording.frozen import eval_mode
from visattn.recording.places import CellStrides
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption, GroundedPhrase, Phrase
from visattn.results.info import MapInfo
from visattn.results.kinds import WordMethod


@torch.no_grad()
def caption(
    model: Any,
    images: Iterable[ImageLike] | ImageLike | None = None,
    *,
    beam_size: int = 5,
    num_captions: int = 1,
    max_length: int | None = None,
    min_length: int = 1,
    length_penalty: float | None = None,
    resize_mode: ResizeMode | None = None,
    batch_size: int | None = None,
    places: Places | None = None,
    seed: int = 0,
    method: WordMethod = "attention",
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    window_cells: int | None = None,
    processor: Any = None,
    prompt: Any = None,
    **generate_kwargs: Any,
) -> list[Caption]:
    """Caption images by beam search, with the attention map of each word.

    Vision-language models of transformers use their own `generate`, as described in
    `caption_with_transformers`.

    The training mode of the model and the random state are restored.

    Args:
        model: A trained captioner, or the name of one for `load`; or a model of transformers or a
            `pipeline` of it that generates text from images.
        images: One image or several: files, bytes, PIL images or RGB arrays, of any size; or
            folders, searched as `visattn caption` does. With a folder, files that cannot be read
            are skipped with a warning.
        beam_size: Number of beams.
        num_captions: Captions per image; those after the first are its `alternatives`.
        max_length: Maximum number of words, by default 30; for models of transformers the option of
            `generate`, which includes the prompt.
        min_length: Minimum number of words.
        length_penalty: Exponent of the length penalty, by default 0.7; 0 compares
            log-probabilities. For models of transformers the option of `generate`.
        resize_mode: How images get the shape of the input: central `crop`, `squash` or `pad`; by
            default as in the training of the model, which its file records.
        batch_size: Images per batch; by default 16; models of transformers caption one at a time.
        places: How hard attention selects the position of each word: the most probable one
            (`argmax`), a sampled one (`sample`) or the expectation over all (`expectation`); by
            default as the model is configured. Only for models with hard attention.
        seed: Seed of sampled positions (32 bits), which do not depend on the batch of the image.
        method: How the maps of words are computed: `attention`; `gradient_attention`, attention
            times the gradient of the word's log-probability; `occlusion`; and, for captioners of
            visattn, `relevance`, the second through all layers of the decoder;
            `gradient_embedding`, the product of features and gradient; `gradcam`.
        layers: For the first two: index or indices of layers that attend to the image, whose mean
            is taken.
        heads: For the first two: index or indices of heads.
        window_cells: For occlusion by a captioner of visattn: side of the window in cells of the
            feature grid; by default 2.
        processor: For models of transformers: the processor, or a pair of image processor and
            tokenizer; by default the one that the model was loaded with.
        prompt: For models of transformers: an instruction, the beginning of the caption, or chat
            messages; or a list of them, one per photo.
        generate_kwargs: For models of transformers: options of `generate` (`max_new_tokens`,
            `num_beams`, ...) and arguments of `caption_with_transformers` (`relative`,
            `per_token`).

    Returns:
        One caption per image that could be read, in their order; `image` names the file.

    Raises:
        TypeError: If the model is not a captioner, has no processor, or an argument is for the
            other kind of model.
        FileNotFoundError: If a folder does not exist or contains no image.
        ImageError: If an image that is not in a folder cannot be read.
        ValueError: If the arguments contradict each other, the model has no hard attention to which
            `places` could apply, or the model outputs NaN.

    Warns:
        UserWarning: For each skipped file, with the reason.

    Example:
        >>> from visattn.results.kinds import SPECIAL_TOKENS
        >>> from visattn.models.base import SmallEncoder
        >>> from visattn.models.captioning.show_attend_tell import ShowAttendTell
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> model = ShowAttendTell((*SPECIAL_TOKENS, "red"), encoder, hidden_size=8)
        >>> [result] = caption(model, np.zeros((60, 80, 3), np.uint8), max_length=2)
        >>> result.maps.values.shape[1:], result.maps.geometry.image_size
        (torch.Size([3, 3]), (60, 80))

    Source:
        Vinyals et al. 2015, arXiv:1411.4555, section 3.1, for the beam search.
    """
    if isinstance(model, str):
        model = load(model)
    if not isinstance(model, nn.Module) and hasattr(model, "model"):  # a pipeline
        pair = (model.image_processor, model.tokenizer)
        processor, model = processor or model.processor or pair, model.model
    processor = loaded_with(model).processor if processor is None else processor
    of_transformers = {"processor": processor, "prompt": prompt, **generate_kwargs}
    if not isinstance(model, Captioner):
        own = {"beam_size": beam_size != 5, "num_captions": num_captions != 1,
               "min_length": min_length != 1,
               "resize_mode": resize_mode, "places": places, "seed": seed,
               "window_cells": window_cells}  # fmt: skip
        _check_transformers(model, processor, [name for name, value in own.items() if value])
        shared = {"length_penalty": length_penalty, "max_length": max_length}
        given = {name: value for name, value in shared.items() if value is not None}
        options = given | of_transformers
        options |= {"method": method, "layers": layers, "heads": heads}
        from visattn.pipelines.words.captions import caption_with_transformers

        return caption_with_transformers(model, images, **options)
    if names := [name for name, value in of_transformers.items() if value is not None]:
        raise TypeError(
            f"{', '.join(names)} is for models of transformers, not for {type(model).__name__}"
        )
    check_method(method, layers, heads)
    is_explained = method != "attention" or (layers, heads) != (None, None)
    photos: list[LoadedImage] = []
    batch_size = batch_size or 16
    resize_mode = resize_mode or loaded_with(model).resize_mode or "crop"
    spec = ResizeSpec(size=model.encoder.img_size, mode=resize_mode)
    loaded = read_images([] if images is None else images)

    def prepare(img: LoadedImage) -> tuple[Any, ...]:
        note_photo(model, img)
        photos.extend([img] * is_explained)
        return img.name, make_thumbnail(img), *resize_to_input(img, spec)

    inputs = map(prepare, loaded)
    device = next(model.parameters()).device
    random_state = torch.random.fork_rng([device] if device.type == "cuda" else [])
    captions: list[Caption] = []
    strides = CellStrides().watching(model.encoder)
    with eval_mode(model), _selected_places(model, places) as used, random_state, strides as seen:
        more = {"beam_size": beam_size, "resize_mode": resize_mode}
        info = MapInfo(model=type(model).__name__, places=used, more=more)
        # Sampled positions depend on the random state, so it is seeded for each image.
        batch_size = 1 if used == "sample" else batch_size
        while batch := list(itertools.islice(inputs, batch_size)):
            if used == "sample":
                torch.manual_seed(zlib.crc32(batch[0][2].numpy().tobytes(), seed))
            output = model.search(
                model.encoder(torch.stack([pixels for *_, pixels, _ in batch]).to(device)),
                beam_size=beam_size,
                num_captions=num_captions,
                max_length=max_length or 30,
                min_length=min_length,
                length_penalty=0.7 if length_penalty is None else length_penalty,
            )
            margin = seen.margin(model.encoder.grid_size, model.encoder.img_size)
            captions += [
                _captions(
                    model, output, index, geometry, margin, replace(info, image=name), thumbnail
                )
                for index, (name, thumbnail, _, geometry) in enumerate(batch)
            ]
    if is_explained:
        chosen = {"layers": layers, "heads": heads, "window_cells": window_cells}
        with torch.enable_grad(), _selected_places(model, places):
            captions = explain_captions(
                model, photos, captions, method, resize_mode=resize_mode, **chosen
            )
    return captions


def _check_transformers(model: nn.Module, processor: Any, arguments: list[str]) -> None:
    """Check that a model generates text, and that no argument is for captioners of visattn."""
    name = type(model).__name__
    if not callable(getattr(model, "generate", None)):
        raise TypeError(
            f"the model must be a Captioner, or a model of transformers that generates text, got "
            f"{name}, which has no generate"
        )
    if processor is None:
        raise TypeError(
            f"{name} needs its processor: pass processor=AutoProcessor.from_pretrained(DIRECTORY), "
            "or a pair of image processor and tokenizer"
        )
    if arguments:
        raise TypeError(
            f"{', '.join(arguments)} is for captioners of visattn, not for {name}: pass the "
            "options of its generate, such as num_beams, num_return_sequences, max_new_tokens"
        )


@contextmanager
def _selected_places(model: Captioner, places: Places | None) -> Iterator[Places | Literal[""]]:
    """Set how hard attention selects positions, and yield that; "" for soft attention."""
    if model.places is None:
        if places is not None:
            raise ValueError(
                f"places={places!r} needs a model with hard attention, which this "
                f"{type(model).__name__} does not have; leave out the option"
            )
        yield ""
        return
    configured = model.places
    model.places = configured if places is None else places
    try:
        yield model.places
    finally:
        model.places = configured


def _captions(
    model: Captioner,
    output: BeamSearchOutput[AttentionStep],
    image: int,
    geometry: Geometry,
    margin: Margin,
    info: MapInfo,
    thumbnail: UInt8[np.ndarray, "y x 3"],
) -> Caption:
    """Return the best caption of one image, with the others as its alternatives."""
    captions: list[Caption] = []
    placed = geometry.inset(margin)
    for rank in range(output.tokens.shape[1]):
        if output.scores[image, rank] == -torch.inf:
            break  # fewer captions of these lengths than beams
        at = (image, rank, slice(int(output.lengths[image, rank])))
        words = tuple(model.words[token] for token in output.tokens[at].tolist())
        weights = output.attention_steps.weights[at].float()  # bfloat16 under autocast
        values = weights.unflatten(-1, model.encoder.grid_size).cpu()
        log_probs, gates = output.log_probs[at], output.attention_steps.gate[at]
        captions.append(
            Caption(
                words=words,
                log_probs=tuple(log_probs.tolist()),
                gates=tuple(gates.tolist()),
                maps=AttentionMap(
                    values, model.attention_site, "words", placed, info, words, margin
                ),
                score=float(output.scores[image, rank]),
                finished=bool(output.finished[image, rank]),
                image=info.image,
                gate_symbol="1-β" if isinstance(model, KnowingWhenToLook) else "β",
                spaces=word_spaces(words),
            )
        )
    if not captions:
        raise ValueError("no caption of these lengths is possible with the allowed words")
    best, *others = captions
    return replace(best, alternatives=tuple(others), thumbnail=thumbnail)


def ground_phrases(caption: Caption, annotated: Sequence[Phrase]) -> Caption:
    """Return a caption with the annotated phrases that occur in it, and their grounding scores.

    Boxes are relative to the image. The alternatives get their phrases, too.

    Example:
        >>> maps = AttentionMap(torch.tensor([[[0.9, 0.1]]]), "look", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 40)))
        >>> result = Caption(("dog",), (-0.1,), (0.9,), maps, -0.1, True)
        >>> phrase = Phrase(0, 1, ((0.0, 0.0, 0.5, 1.0),), ("animals",), "dog")
        >>> [grounded] = ground_phrases(result, [phrase]).phrases
        >>> round(grounded.correctness[0], 3), grounded.baseline, grounded.pointed
        (0.9, 0.5, True)
    """
    return replace(
        caption,
        phrases=tuple(_score(caption, p) for p in match_phrases(caption.words, annotated)),
        alternatives=tuple(ground_phrases(other, annotated) for other in caption.alternatives),
    )


def _score(caption: Caption, phrase: Phrase) -> GroundedPhrase:
    """Return a phrase with its boxes and, if the network saw any of them, its grounding scores."""
    grounded = GroundedPhrase(phrase.start, phrase.num_words, phrase.boxes)
    geometry = caption.maps.geometry
    on_input = () if geometry is None else phrases_to_input([phrase], geometry)
    for result in score_phrases(normalize_maps(caption.maps.values), on_input):
        return replace(
            grounded,
            correctness=result.word_correctness,
            baseline=result.baseline,
            pointed=result.pointing_hit,
        )
    return grounded
