"""`visattn caption`: caption photos, with the attention of each word."""

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from visattn.commands.arguments import (
    EMPTY,
    FiguresOrNone,
    File,
    Flag,
    Integers,
    Photos,
    ResizeMode,
    Values,
    Word,
)
from visattn.commands.digests import file_digest
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    encode_figure,
    index_link,
    run,
)
from visattn.commands.model import ModelOptions, parse_value
from visattn.results.kinds import Places, WordMethod

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.results.captions import Caption, Phrase


def caption(
    photos: Photos,
    *,
    model: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    method: WordMethod = "attention",
    beam_size: int = 5,
    num_captions: int = 1,
    length_penalty: float = 0.0,
    places: Annotated[Places | None, EMPTY, arg(metavar="{argmax,sample,expectation}")] = None,
    seed: int = 0,
    layers: Integers = (),
    heads: Integers = (),
    relative: Flag = False,
    prompt: Word = "",
    generate: Values = (),
    resize_mode: ResizeMode = "crop",
    phrase_boxes: File = None,
    boxes: Flag = False,
    figures: FiguresOrNone = None,
    batch_size: Annotated[int | None, EMPTY, arg(metavar="INT")] = None,
    loop: LoopOptions = LoopOptions(),  # noqa: B008
) -> int:
    """Caption photos, and show where the model attends for each word.

    Prints the caption of each photo. The folder gets NAME.html, a page for the browser: choose a
    word, see its attention on the photo; NAME.json, words, log-probabilities, gates, maps and their
    place on the photo; and NAME.npz, the same as NumPy arrays. caption.csv has a row per photo.

    Args:
        photos: files, folders, patterns in quotes, zip and tar archives, URLs
        method: what the maps of words show
        beam_size: width of the beam search
        num_captions: captions per photo on its page
        length_penalty: exponent of the length penalty; above 0 prefers longer captions
        places: of hard attention: read the most probable place before each word, a sampled one, or
            the expectation over all (default: as configured)
        seed: seed of sampled places and words
        layers: mean over these layers, from 0; -1 is the last (default: as the method does)
        heads: mean over these heads (default: all)
        relative: of transformers: divide the attention of each word by that of a neutral prompt
        prompt: of transformers: instruction of a chat model, beginning of the caption for others
        generate: of transformers: options of generate, such as max_new_tokens=40 num_beams=3
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
        phrase_boxes: phrases with boxes (JSON, also gzip): pages compare the attention of a phrase
            with its boxes
        boxes: also write boxes around the high parts of the maps, in NAME.json
        figures: also write a figure of the photo with a map per word
        batch_size: photos per batch (default: 16; 1 for models of transformers)
    """
    from visattn.models.captioning.captioner import Captioner

    network, made = model.load_captioner()
    own = isinstance(network, Captioner)
    options: dict[str, Any] = {"length_penalty": length_penalty}
    if own:
        options |= {"beam_size": beam_size, "num_captions": num_captions, "places": places}
        options |= {"seed": seed, "resize_mode": resize_mode}
    else:
        options |= dict(map(parse_value, generate))
        options |= {"prompt": prompt or None, "method": method, "relative": relative}
        options |= {"layers": layers or None, "heads": heads or None}
    unused = {"relative": relative, "prompt": prompt, "generate": generate} if own else {
        "beam_size": beam_size != 5, "num_captions": num_captions != 1, "places": places,
    }  # fmt: skip
    if given := [name for name, value in unused.items() if value]:
        kind = "models of transformers, hf:DIRECTORY" if own else "captioners of visattn"
        raise ValueError(f"--{given[0].replace('_', '-')} is for {kind}; leave it out")
    chosen = {"layers": layers or None, "heads": heads or None}
    maps = None if not own or (method == "attention" and not any(chosen.values())) else chosen
    phrases = {} if phrase_boxes is None else _phrases(phrase_boxes)
    drawing = _Pages(phrases, boxes=boxes, figures=figures)

    worked: list[bool] = []
    kept: dict[Any, Any] = {}  # positions of image tokens, of all photos of a size

    def infer(images: "Sequence[LoadedImage]") -> "Sequence[Caption | Exception]":
        captions = _captions(network, images, options, method, maps, seed, kept)
        for each in captions:
            if isinstance(each, Exception) and (loop.strict or not worked):
                raise each  # on the first photo it is mostly one of the model
            worked.append(True)
        return captions

    settings = {**made, **options, "method": method, **chosen, "seed": seed, "boxes": boxes}
    settings |= {"phrase_boxes": phrase_boxes and file_digest(phrase_boxes), "figures": figures}
    endings = ["{}.html", "{}.npz", *([f"{{}}.{figures}"] if figures else [])]
    command = Command("caption", "Captions", settings, infer, drawing.draw, endings)
    return run(command, photos, loop, batch_size=batch_size or (16 if own else 1))


def _captions(
    model: "nn.Module",
    images: "Sequence[LoadedImage]",
    options: Mapping[str, Any],
    method: WordMethod,
    maps: Mapping[str, Any] | None,
    seed: int,
    kept: dict[Any, Any],
) -> "Sequence[Caption | Exception]":
    """Return the caption of each photo; of a model of transformers, errors skip photos."""
    import torch

    from visattn.models.captioning.captioner import Captioner
    from visattn.pipelines.caption_words import explain_captions
    from visattn.pipelines.captioning import caption as caption_images

    if isinstance(model, Captioner):
        captions = caption_images(model, list(images), batch_size=len(images), **options)
        if maps is None:
            return captions
        resized = options["resize_mode"]
        return explain_captions(model, images, captions, method, resize_mode=resized, **maps)
    try:
        if options.get("do_sample"):
            torch.manual_seed(seed)
        return caption_images(model, list(images), kept=kept, **options)
    # Of the model's own code, too.
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"{type(model).__name__} fails on this photo: {error}"
        return [ValueError(f"{image.name}: {reason}") for image in images]


def _phrases(file: Path) -> "dict[str, tuple[Phrase, ...]]":
    """Return the phrases of photos by file name, of all their captions."""
    from visattn.data.phrases import read_phrases

    return {
        name: tuple(itertools.chain.from_iterable(each.values()))
        for name, each in read_phrases(file).items()
    }


@dataclass(frozen=True)
class _Pages:
    """Pages, arrays and figures of captions."""

    phrases: "Mapping[str, tuple[Phrase, ...]]"
    boxes: bool
    figures: str | None

    def draw(self, image: "LoadedImage", result: "Caption", files: Sequence[str]) -> Made:
        """Return record, page and arrays of a photo."""
        import numpy as np

        from visattn.pipelines.captioning import ground_phrases
        from visattn.viz.captions import caption_figure
        from visattn.viz.html.caption_page import caption_html
        from visattn.viz.html.index_page import thumbnail

        if phrases := self.phrases.get(Path(image.name).name):
            result = ground_phrases(result, phrases)
        smooth = result.maps.info.places not in ("argmax", "sample")  # as the maps are drawn
        outlined = result.maps.boxes(smooth=smooth) if self.boxes and result.words else None
        arrays = io.BytesIO()
        np.savez_compressed(arrays, **result.to_arrays())
        page = caption_html(image, result, boxes=outlined, index=index_link(files[0]))
        contents = {files[0]: page.encode(), files[1]: arrays.getvalue()}
        if self.figures:
            figure = caption_figure(image, result, boxes=outlined)
            contents[files[2]] = encode_figure(figure, files[2])
        record = {"caption": result.text, **result.to_dict(), "image": image.name}
        if outlined is not None:
            record["boxes"] = outlined.to_dict()
        best = {name: record[name] for name in ("caption", "score", "finished")}
        counts = {"words": len(result.words), "log_prob": sum(result.log_probs)}
        return Made(
            record,
            contents,
            rows=[(result.text,)],
            table=[{**best, **counts}],
            caption=result.text,
            thumbnail=thumbnail(_mean_overlay(image, result)),
        )


def _mean_overlay(image: "LoadedImage", result: "Caption") -> "np.ndarray":
    """Return a photo with the mean map of all words."""
    import numpy as np

    from visattn.viz.maps import overlay

    maps = result.maps
    if not len(maps):
        return image.pixels
    mean = replace(maps, values=maps.values.mean(0), labels=())
    return np.array(overlay(image, mean, opacity=0.6))
