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
    Models,
    Photos,
    ResizeModeOrNone,
    Values,
    Word,
)
from visattn.commands.files import file_digest
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

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    import numpy as np
    from torch import nn

    from visattn.images.reader import LoadedImage
    from visattn.results.captions import Caption, Phrase


def caption(
    photos: Photos,
    *,
    model: Models = (),
    device: str = "cpu",
    method: WordMethod = "attention",
    beam_size: int = 5,
    num_captions: int = 1,
    length_penalty: Annotated[float | None, EMPTY, arg(metavar="FLOAT")] = None,
    places: Annotated[Places | None, EMPTY, arg(metavar="{argmax,sample,expectation}")] = None,
    seed: int = 0,
    layers: Integers = (),
    heads: Integers = (),
    relative: Flag = False,
    prompt: Word = "",
    generate: Values = (),
    resize_mode: ResizeModeOrNone = None,
    phrase_boxes: File = None,
    boxes: Flag = False,
    figures: FiguresOrNone = None,
    batch_size: Annotated[int | None, EMPTY, arg(metavar="INT")] = None,
    loop: LoopOptions = LoopOptions(Path("visattn-out/caption")),  # noqa: B008 (frozen)
) -> int:
    """Caption photos, and show where the model attends for each word.

    Prints the caption of each photo. Writes NAME.html, a page that shows the attention of the word
    under the mouse; NAME.json with words, log-probabilities, gates, maps and their geometry; and
    NAME.npz, the maps as NumPy arrays. caption.csv has a row per caption. With several models, as
    in --model runs/soft --model runs/hard, a page shows the captions of all.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs
        model: a file of visattn export, a run of visattn fit, a name of visattn models,
            hf://USER/NAME[@REVISION], or hf:DIRECTORY of transformers; repeat it to compare models
        device: torch device: cpu, cuda, cuda:1, mps
        method: how the maps of words are computed
        beam_size: width of the beam search
        num_captions: captions per photo on its page
        length_penalty: exponent of the length penalty; above 0 prefers longer captions (default:
            0.7, for models of transformers as configured)
        places: for hard attention: read the most probable position before each word, a sampled
            one, or the expectation over all (default: as configured)
        seed: seed of sampled positions and words
        layers: average over these layers, from 0; -1 is the last (default: as the method does)
        heads: average over these heads (default: all)
        relative: for transformers: divide the attention of each word by that of a neutral prompt
        prompt: for transformers: instruction for chat models, beginning of the caption for others
        generate: for transformers: options of generate, such as max_new_tokens=40 num_beams=3
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: as in the training of the model; squash for photo-captioner)
        phrase_boxes: phrases with boxes (JSON, optionally gzipped): pages compare the attention of
            a phrase with its boxes
        boxes: also write boxes around the peaks of the maps, in NAME.json
        figures: also write a figure of the photo with a map per word
        batch_size: photos per batch (default: 16; 1 for models of transformers)
    """
    from visattn.models.captioning.captioner import Captioner

    networks: dict[str, nn.Module] = {}
    made: list[dict[str, Any]] = []
    for name in dict.fromkeys(model or ("",)):
        network, identity = ModelOptions(name, None, device).load_captioner()
        networks[name or str(identity["model"])] = network
        made.append(identity)
    of_ours = {"beam_size": beam_size, "num_captions": num_captions, "places": places}
    of_theirs: dict[str, Any] = {"relative": relative, "prompt": prompt or None}
    own = {isinstance(each, Captioner) for each in networks.values()}
    defaults = {"beam_size": 5, "num_captions": 1}
    unused = {**of_theirs, "generate": generate} if own == {True} else {
        name: value for name, value in of_ours.items() if value != defaults.get(name)
    } if own == {False} else {}  # fmt: skip
    if given := [name for name, value in unused.items() if value]:
        kind = "models of transformers, hf:DIRECTORY" if own == {True} else "captioners of visattn"
        raise ValueError(f"--{given[0].replace('_', '-')} is for {kind}; leave it out")
    shared: dict[str, Any] = {"length_penalty": length_penalty, "method": method}
    shared |= {"layers": layers or None, "heads": heads or None}
    of_ours |= {**shared, "seed": seed, "resize_mode": resize_mode}
    of_theirs |= {**shared, **dict(map(parse_value, generate))}
    phrases = {} if phrase_boxes is None else _phrases(phrase_boxes)
    drawing = _Pages(phrases, boxes=boxes, figures=figures)

    worked: set[str] = set()
    kept: dict[Any, Any] = {}  # positions of image tokens by photo size

    def infer(images: "Sequence[LoadedImage]") -> "Sequence[dict[str, Caption] | Exception]":
        rows: list[dict[str, Caption] | Exception] = [{} for _ in images]
        for name, network in networks.items():
            options = of_ours if isinstance(network, Captioner) else of_theirs
            places = kept.setdefault(name, {})
            captions = _captions(network, images, options, seed, places)
            for index, each in enumerate(captions):
                row = rows[index]
                if isinstance(each, Exception):
                    if loop.strict or name not in worked:
                        raise each  # an error on the first photo is usually one of the model
                    rows[index] = each
                elif not isinstance(row, Exception):  # not skipped by an earlier model
                    row[name] = each
                worked.add(name)
        return rows

    settings = {**made[0], "others": made[1:], **of_ours, **of_theirs, "boxes": boxes}
    settings |= {"phrase_boxes": phrase_boxes and file_digest(phrase_boxes), "figures": figures}
    numbers = ["", *(f".{number}" for number in range(2, len(networks) + 1))]
    drawn = [f"{{}}{number}.{figures}" for number in numbers if figures]
    endings = ["{}.html", "{}.npz", *drawn]
    command = Command("caption", "Captions", settings, infer, drawing.draw, endings)
    return run(command, photos, loop, batch_size=batch_size or (16 if own == {True} else 1))


def _captions(
    model: "nn.Module",
    images: "Sequence[LoadedImage]",
    options: Mapping[str, Any],
    seed: int,
    kept: dict[Any, Any],
) -> "Sequence[Caption | Exception]":
    """Return the captions of photos; models of transformers skip a photo on which they fail."""
    import torch

    from visattn.models.captioning.captioner import Captioner
    from visattn.pipelines.captioning import caption as caption_images

    if isinstance(model, Captioner):
        return caption_images(model, list(images), batch_size=len(images), **options)
    try:
        if options.get("do_sample"):
            torch.manual_seed(seed)
        return caption_images(model, list(images), kept=kept, **options)
    # The code of the model may raise any of these.
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        reason = str(error)
        if not isinstance(error, ValueError):
            reason = f"{type(model).__name__} fails on this photo: {error}"
        return [ValueError(f"{image.name}: {reason}") for image in images]


def _phrases(file: Path) -> "dict[str, tuple[Phrase, ...]]":
    """Return the phrases of all captions of each photo, by file name."""
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

    def draw(
        self, image: "LoadedImage", result: "Mapping[str, Caption]", files: Sequence[str]
    ) -> Made:
        """Return record, page and arrays of a photo."""
        import numpy as np

        from visattn.pipelines.captioning import ground_phrases
        from visattn.viz.captions import caption_figure
        from visattn.viz.html.caption_page import caption_html
        from visattn.viz.html.index_page import thumbnail

        if phrases := self.phrases.get(Path(image.name).name):
            result = {name: ground_phrases(each, phrases) for name, each in result.items()}
        best = next(iter(result.values()))
        smooth = best.maps.info.places not in ("argmax", "sample")  # as the maps are drawn
        outlined = best.maps.boxes(smooth=smooth) if self.boxes and best.words else None
        content: dict[str, Any] = {}
        records: list[dict[str, Any]] = []
        table: list[dict[str, Any]] = []
        for number, (name, each) in enumerate(result.items(), start=1):
            of_model = {} if len(result) == 1 else {"model": name}
            before = f"model{number}." if number > 1 else ""
            content |= {f"{before}{key}": value for key, value in each.to_arrays().items()}
            records.append({**of_model, "caption": each.text, **each.to_dict()})
            counts = {"words": len(each.words), "log_prob": sum(each.log_probs)}
            scores = {"score": each.score, "finished": each.finished}
            table.append({**of_model, "caption": each.text, **scores, **counts})
        arrays = io.BytesIO()
        np.savez_compressed(arrays, **content)
        page = caption_html(image, result, boxes=outlined, index=index_link(files[0]))
        contents = {files[0]: page.encode(), files[1]: arrays.getvalue()}
        for file, each in zip(files[2:], result.values(), strict=False):
            figure = caption_figure(image, each, boxes=outlined if each is best else None)
            contents[file] = encode_figure(figure, file)
        record = {**records[0], "image": image.name}
        if records[1:]:
            record["others"] = records[1:]
        if outlined is not None:
            record["boxes"] = outlined.to_dict()
        texts = [each.text for each in result.values()]
        return Made(
            record,
            contents,
            rows=[(text,) for text in texts],
            table=table,
            caption=" \N{MIDDLE DOT} ".join(texts),
            thumbnail=thumbnail(_mean_overlay(image, best)),
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
