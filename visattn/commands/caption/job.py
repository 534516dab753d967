"""Runs of `visattn caption` over images: search, maps of words, and the files of each image."""

import argparse
import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.boxes import box_settings, boxes_of
from visattn.commands.index import Row, card_image
from visattn.commands.model_job import ModelJob
from visattn.commands.model_option import file_digest
from visattn.commands.records import Part, Record
from visattn.io.sources import Source
from visattn.results.cards import Card

if TYPE_CHECKING:
    import numpy as np

    from visattn.geometry.affine import Box
    from visattn.images.reader import LoadedImage
    from visattn.results.captions import Caption, Phrase
    from visattn.results.map_boxes import MapBoxes

OPTIONS = ("method", "length_penalty", "seed")
"""Options of both kinds of captioners."""


class CaptionJob(ModelJob["Caption"]):
    """Captions of images, each with a page, a panel and arrays."""

    command = "caption"
    work = "captioning"
    index_of_one = True
    noun = "a captioner"
    kind = "visattn.models.captioning.captioner:Captioner"

    def __init__(self, args: argparse.Namespace) -> None:
        more = ["{}.alignment.png"] if args.alignment else []
        self.kinds = ("{}.png", "{}.html", "{}.npz", *more)
        super().__init__(args)
        if args.alignment:
            _check_figure_names(self.all_names)
        self.phrase_boxes = _read_phrase_boxes(args.phrase_boxes, self.all_names)

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        boxes = self.args.phrase_boxes
        digest = boxes and file_digest(boxes)
        return {**super().settings(), "phrase_boxes": digest, **box_settings(self.args)}

    def parts(self, name: str, image: "LoadedImage", result: "Caption") -> Iterable[Part]:
        """Return the record of an image, and its page, panel and arrays."""
        outlined = boxes_of(result.maps, self.args)
        entries = {} if outlined is None else {"boxes": outlined.to_dict()}
        record = {
            "caption": result.text,
            **self._grounded(image, result).to_dict(),
            "image": image.name,
            **entries,
        }
        if self.out is None:
            return [Part(name, record)]
        files = {f"{name}{end}": each for end, each in self._draw(name, image, result, outlined)}
        thumbnail = card_image(*_mean_overlay(image, result))
        return [Part(name, record, files, Card(name, f"{name}.html", result.text, thumbnail))]

    def _draw(
        self, name: str, image: "LoadedImage", result: "Caption", outlined: "MapBoxes | None"
    ) -> Iterator[tuple[str, bytes]]:
        """Yield endings and contents of the files of an image."""
        from visattn.viz.captions import alignment_figure, caption_figure
        from visattn.viz.figures import png
        from visattn.viz.html.caption_page import caption_html

        width, crop = self.args.width, self.args.cropped
        yield ".png", png(caption_figure(image, result, boxes=outlined, crop=crop, width=width))
        import numpy as np

        arrays = io.BytesIO()
        np.savez_compressed(arrays, **result.to_arrays())
        yield ".npz", arrays.getvalue()
        if self.args.alignment:
            yield ".alignment.png", png(alignment_figure(image, result, width=width))
        grounded = self._grounded(image, result)
        index = self.index_link(name)
        html = caption_html(
            image,
            grounded,
            boxes=outlined,
            name=name,
            index=index,
            panel=f"{name}.png",
        )
        yield ".html", html.encode()

    def rows(self, record: Record) -> Iterable[tuple[str]]:
        """Return the caption."""
        return [(record["caption"],)]

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Return the caption with its scores."""
        best = {name: record[name] for name in ("caption", "score", "finished")}
        return [{**best, "words": len(record["words"]), "log_prob": sum(record["log_probs"])}]

    def _phrases(self, image: "LoadedImage") -> "Sequence[Phrase]":
        return self.phrase_boxes.get(Path(image.name).name, ())

    def _grounded(self, image: "LoadedImage", result: "Caption") -> "Caption":
        from visattn.pipelines.captioning import ground_phrases

        phrases = self._phrases(image)
        return ground_phrases(result, phrases) if phrases else result


class BeamSearchJob(CaptionJob):
    """Images that a captioner of visattn describes by beam search."""

    options = (
        "beam_size", "num_captions", "places", "maps", "resize_mode", "autocast", *OPTIONS,
    )  # fmt: skip

    @classmethod
    def check_model(cls, model: Any, weights: str, args: argparse.Namespace) -> None:
        """Set the maps of a transformer captioner.

        Raises:
            ValueError: If `--places`, `--seed` or `--maps` does not apply to the captioner.
        """
        if args.places is not None and model.places is None:
            raise ValueError(
                f"--places needs a captioner with hard attention; that of {weights} does not "
                "select places: leave out the option"
            )
        if args.seed and (args.places or model.places) != "sample":
            raise ValueError(
                f"--seed needs sampled places, which {weights} does not read: leave it out"
            )
        if args.maps is None:
            return
        if model.maps is None:
            raise ValueError(
                f"--maps needs a transformer captioner; that of {weights} has one map per word: "
                "leave out the option"
            )
        layer, _, head = args.maps.partition(",")
        model.maps = (int(layer), int(head)) if head else args.maps

    def infer(self, images: "Sequence[LoadedImage]") -> "list[Caption]":
        """Return the best captions of images, with the maps of `--method`."""
        from visattn.pipelines.captioning import caption

        args = self.args
        captions = caption(
            self.model,
            images,
            beam_size=args.beam_size,
            num_captions=1 if self.out is None else args.num_captions,
            length_penalty=args.length_penalty,
            resize_mode=args.resize_mode,
            places=args.places,
            seed=args.seed,
            batch_size=len(images),
        )
        if self.out is None or args.method == "attention":  # maps are only needed in files
            return captions
        from visattn.pipelines.caption_words import explain_captions

        options = {"resize_mode": args.resize_mode}
        return explain_captions(self.model, images, captions, args.method, **options)


def _check_figure_names(names: dict[Source, str]) -> None:
    """Refuse an alignment that would have the name of the panel of another image."""
    for path, name in names.items():
        if name.endswith(".alignment") and name.removesuffix(".alignment") in names.values():
            raise ValueError(
                f"the panel of {path} and a figure of another image would both be {name}; "
                f"rename {path.name}, or leave out --alignment"
            )


def _read_phrase_boxes(
    file: Path | None, paths: Iterable[Source]
) -> "dict[str, tuple[Phrase, ...]]":
    """Return the phrases of the input images by file name, of all their captions."""
    if file is None:
        return {}
    from visattn.data.phrases import read_phrases

    phrases = read_phrases(file)
    matches = {name: phrases[name] for name in {path.name for path in paths} & phrases.keys()}
    if not matches:
        raise ValueError(
            f"{file} has phrases for none of the images; its file names begin with "
            f"{', '.join(itertools.islice(phrases, 3))} ..."
        )
    return {name: tuple(chain.from_iterable(each.values())) for name, each in matches.items()}


def _mean_overlay(image: "LoadedImage", caption: "Caption") -> "tuple[np.ndarray, Box | None]":
    """Return a photo with the mean map of all words, and the region that the network saw of it."""
    import numpy as np

    from visattn.viz.maps import overlay

    maps = caption.maps
    if not len(maps):
        return image.pixels, None
    mean = replace(maps, values=maps.values.mean(0), labels=())
    region = None if maps.geometry is None else maps.geometry.region
    return np.array(overlay(image, mean, opacity=0.6)), region
