"""Captions with a map per word, and the annotated phrases in them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.geometry.affine import Box
from visattn.results.attention_map import AttentionMap, read_place, tensor_of, truncate_text
from visattn.results.display import shown
from visattn.results.info import MapInfo
from visattn.results.saving import SavedAsJson
from visattn.results.word_statistics import HeadOverview, TextAttention


class Phrase(NamedTuple):
    """A noun phrase of a caption, with the boxes of what it refers to.

    Example:
        >>> Phrase(1, 2, ((0.0, 0.5, 1.0, 1.0),), ("scene",), "green grass").num_words
        2
    """

    start: int
    """Index of its first word in the words that `split_words` returns for the caption."""
    num_words: int
    """Number of words."""
    boxes: tuple[Box, ...]
    """Left, top, right, bottom, from 0 to 1 across the image or the network's input."""
    types: tuple[str, ...]
    """Such as `people`, `animals`, `scene`."""
    text: str
    """The words in lower case, joined by single spaces."""


class GroundedPhrase(NamedTuple):
    """A phrase of a caption, its ground-truth boxes, and the scores of its attention."""

    first: int
    """Index of its first word in the caption."""
    words: int
    boxes: tuple[Box, ...]
    """Left, top, right and bottom as fractions of the image size."""
    correctness: tuple[float, ...] = ()
    """Attention inside the boxes, for each word; empty if they are outside the model's input."""
    baseline: float = 0.0
    """Attention inside the boxes of a uniform map."""
    pointed: bool = False
    """Whether the peak of the sum of its maps is inside the boxes."""


_OF_VIDEO = ("frames", "seconds")
_GATE = "β"


NO_WORDS = "(no words)"
"""Text of a caption without words in figures."""


@dataclass(frozen=True, eq=False, repr=False)
class Caption(SavedAsJson):
    """A caption with log-probability, gate and attention map of each word."""

    words: tuple[str, ...]
    log_probs: tuple[float, ...]
    """Log-probability of each word, in nats."""
    gates: tuple[float, ...]
    """Share of the image in the context vector of each word, in [0, 1]: the attention gate, or 1
    minus the weight of a visual sentinel."""
    maps: AttentionMap
    """One attention map per word, placed on the original image."""
    score: float
    """Log-probability of the caption divided by its length penalty."""
    finished: bool
    """Whether the end token was generated; otherwise the caption was truncated."""
    alternatives: tuple["Caption", ...] = ()
    """The next best captions, if `num_captions` is above 1."""
    image: str = ""
    """Name of the image file; "" if unknown."""
    gate_symbol: str = _GATE
    """Symbol of the gates in figures; "on photo" for the share of a word's attention that lies on
    the photo, where words also attend text and padding."""
    notes: str = ""
    """How the maps were made: method, layers, heads, controls; "" for the model's own attention."""
    thumbnail: UInt8[np.ndarray, "y x 3"] | None = None
    """The photo at up to 640 pixels, for notebooks."""
    spaces: tuple[bool, ...] = ()
    """Whether white space stands before each word; () if it does before all."""
    pieces: tuple[str, ...] = ()
    """The pieces that the words were joined from, if the model writes pieces."""
    further_maps: tuple[AttentionMap, ...] = ()
    """Maps of the words on the second and later photos, if the prompt shows several."""
    text_attention: TextAttention | None = None
    """Attention of the words to the prompt and to earlier words, if requested."""
    head_overview: HeadOverview | None = None
    """Statistics of each layer and head that reads the photo, if requested."""
    phrases: tuple[GroundedPhrase, ...] = ()
    """Annotated phrases that occur in it, from `ground_phrases`."""

    def __repr__(self) -> str:
        """Return the caption in one line."""
        more = f", {len(self.alternatives)} more" if self.alternatives else ""
        name = f", {self.image}" if self.image else ""
        text = truncate_text(self.text, 100)
        return f"Caption({text!r}, score {self.score:.3g}, {len(self.words)} maps{more}{name})"

    def _repr_html_(self) -> str | None:
        """Return the photo and the words for notebooks; hovering a word shows its map."""
        return shown(self)

    @property
    def is_video(self) -> bool:
        """Whether the caption is one of a video, whose maps have an axis of frames."""
        return bool(self.maps.info.frames)

    @property
    def is_of_single_photo(self) -> bool:
        """Whether the prompt showed one photo, and no video."""
        return not self.is_video and not self.further_maps

    @property
    def photo_maps(self) -> tuple[AttentionMap, ...]:
        """The maps of the words on each photo of the prompt, or on its video."""
        return (self.maps, *self.further_maps)

    @property
    def image_maps(self) -> tuple[AttentionMap, ...]:
        """The maps of the words on each photo of the prompt, or on each frame of the video."""
        if not self.is_video:
            return self.photo_maps
        maps = self.maps
        return tuple(
            replace(maps, values=maps.values[:, number]) for number in range(len(maps.info.frames))
        )

    def display_range(self) -> tuple[float, float]:
        """Return the values (vmin, vmax) between which all maps of the caption should be drawn.

        That of `AttentionMap.display_range`; of several photos or frames, a word's peak is that of
        all of them, and uniform attention is spread over all of them.
        """
        images = self.image_maps
        if len(images) == 1:
            return self.maps.display_range()
        # As if the photos were side by side: the peak of a word is that on any of them.
        flat = torch.cat([maps.values.flatten(1).nan_to_num(0.0) for maps in images], 1)
        joined = AttentionMap(flat[:, None], self.maps.site, self.maps.kind)
        return joined.display_range()

    @property
    def smooth(self) -> bool:
        """Whether figures interpolate the maps; those of hard attention are single cells."""
        return self.maps.info.places not in ("argmax", "sample")

    @property
    def quantity(self) -> str:
        """What the values of the maps are, for legends."""
        return self.maps.info.quantity or "attention"

    @property
    def text(self) -> str:
        """The caption as one line."""
        if not self.spaces:
            return " ".join(self.words)
        spaced = zip(self.spaces, self.words, strict=True)
        return "".join(" " * space + word for space, word in spaced).strip()

    @property
    def has_gates(self) -> bool:
        """Whether a gate scaled the context vector of a word; otherwise all gates are 1."""
        return any(gate < 1 for gate in self.gates)

    def drawable(self) -> "Caption":
        """Return the caption as figures show it: one without a word says so on the bare photo."""
        if self.words:
            return self
        first, *further = (
            replace(maps, values=torch.zeros(1, *maps.values.shape[1:]), labels=())
            for maps in self.photo_maps
        )
        return replace(self, words=(NO_WORDS,), log_probs=(), gates=(), maps=first,
                       further_maps=tuple(further), spaces=())  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Return the record of the caption, its maps and alternatives as plain values for JSON.

        Of several photos, `maps` and `geometry` are lists with one entry for each.

        Example:
            >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words")
            >>> record = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True).to_dict()
            >>> record["caption"], record["maps"], record["geometry"]
            ('7', [[[1.0, 1.0]]], None)
        """
        places = [maps.place() for maps in self.photo_maps]
        several = {"images": [maps.info.image for maps in self.photo_maps]}
        return {
            "image": self.image,
            **_caption_record(self),
            **_video_entries(self),
            "geometry": places if self.further_maps else places[0],
            **(several if self.further_maps else {}),
            "alternatives": [_caption_record(caption) for caption in self.alternatives],
        }

    def to_arrays(self) -> dict[str, Any]:
        """Return the caption as NumPy arrays; the keys of the second caption end in `_2`.

        Maps on the second photo of a prompt are `photo2_maps`, with `photo2_geometry`.
        """
        arrays: dict[str, Any] = {}
        for number, caption in enumerate((self, *self.alternatives), start=1):
            suffix = "" if number == 1 else f"_{number}"
            arrays |= {
                f"maps{suffix}": caption.maps.values.numpy(),
                f"words{suffix}": np.array(caption.words, dtype=np.str_),
                f"gates{suffix}": np.array(caption.gates),
                f"log_probs{suffix}": np.array(caption.log_probs),
                f"score{suffix}": np.array(caption.score),
            }
            for photo, maps in enumerate(caption.further_maps, start=2):
                arrays[f"photo{photo}_maps{suffix}"] = maps.values.numpy()
        for photo, maps in enumerate(self.photo_maps, start=1):
            if maps.geometry is not None:
                prefix = "" if photo == 1 else f"photo{photo}_"
                arrays[f"{prefix}geometry"] = np.array(json.dumps(maps.geometry.to_dict()))
        return arrays | {key: np.array(entry) for key, entry in _video_entries(self).items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Caption":
        """Return the caption of a record, without its thumbnail.

        Args:
            record: What `to_dict` returned, or the JSON file of `visattn caption`, also of an older
                version.

        Example:
            >>> maps = AttentionMap(torch.ones(1, 1, 2), "attend", "words")
            >>> record = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True).to_dict()
            >>> Caption.from_dict(record).words
            ('7',)
        """
        alternatives = record.get("alternatives", ())
        others = tuple(_read_caption(record, entry, ()) for entry in alternatives)
        return _read_caption(record, record, others)


def _read_caption(
    record: Mapping[str, Any], entry: Mapping[str, Any], alternatives: tuple[Caption, ...]
) -> Caption:
    """Return a caption of a record: the best one, or an alternative."""
    name = record["image"]
    words = tuple(entry["words"])
    # A record of several photos has lists of geometries, maps and names, in the order of the
    # photos.
    several = isinstance(record["geometry"], list)
    names = record.get("images", name)
    places = record["geometry"] if several else [record["geometry"]]
    lists = entry["maps"] if several else [entry["maps"]]
    shapes = [{"shape": shape} for shape in entry.get("shapes", ())] or [{}] * len(lists)
    made = {**entry.get("made", {}), **{key: record[key] for key in _OF_VIDEO if key in record}}
    maps = [
        AttentionMap(
            tensor_of({"maps": values, **shape}), entry.get("site", "record"),
            entry.get("kind", "words"), read_place(place),
            MapInfo.from_dict({"image": names[number] if several else name, **made}), words,
        )
        for number, (values, shape, place) in enumerate(zip(lists, shapes, places, strict=True))
    ]  # fmt: skip
    text = entry.get("text_attention")
    heads = entry.get("head_overview")
    return Caption(
        words=words,
        log_probs=tuple(entry["log_probs"]),
        gates=tuple(entry["gates"]),
        maps=maps[0],
        score=entry["score"],
        finished=entry["finished"],
        alternatives=alternatives,
        image=", ".join(name) if isinstance(name, list) else name,
        gate_symbol=entry.get("gate_symbol", _GATE),
        notes=entry.get("notes", ""),
        spaces=tuple(entry.get("spaces", ())),
        pieces=tuple(entry.get("pieces", ())),
        further_maps=tuple(maps[1:]),
        phrases=tuple(map(_read_phrase, entry.get("phrases", ()))),
        text_attention=None if text is None else TextAttention.from_dict(text),
        head_overview=None if heads is None else HeadOverview.from_dict(heads),
    )


def _read_phrase(entry: Mapping[str, Any]) -> GroundedPhrase:
    boxes = tuple((left, top, right, bottom) for left, top, right, bottom in entry["boxes"])
    correctness = tuple(entry["correctness"])
    return GroundedPhrase(entry["first"], entry["words"], boxes, correctness, entry["baseline"],
                          entry["pointed"])  # fmt: skip


def _video_entries(caption: Caption) -> dict[str, Any]:
    info = caption.maps.info
    return {"frames": info.frames, "seconds": info.seconds} if caption.is_video else {}


def _caption_record(caption: Caption) -> dict[str, Any]:
    """Return what an alternative has as well as the caption itself."""
    info = caption.maps.info.to_dict()
    made = {name: value for name, value in info.items() if name not in ("image", *_OF_VIDEO)}
    # The name is written beside the caption already, unless the map is of another image.
    if not caption.further_maps and caption.maps.info.image != caption.image:
        made["image"] = caption.maps.info.image
    maps = [maps.values.tolist() for maps in caption.photo_maps]
    # Nested lists lose their shape without words.
    shapes = [list(maps.values.shape) for maps in caption.photo_maps]
    statistics = {"text_attention": caption.text_attention, "head_overview": caption.head_overview}
    return {
        "caption": caption.text,
        "words": list(caption.words),
        "log_probs": list(caption.log_probs),
        "gates": list(caption.gates),
        "finished": caption.finished,
        "score": caption.score,
        **({"gate_symbol": caption.gate_symbol} if caption.gate_symbol != _GATE else {}),
        **({"spaces": list(caption.spaces)} if caption.spaces else {}),
        **({"pieces": list(caption.pieces)} if caption.pieces else {}),
        **({"notes": caption.notes} if caption.notes else {}),
        **{name: value.to_dict() for name, value in statistics.items() if value is not None},
        "site": caption.maps.site,
        "kind": caption.maps.kind,
        "made": made,
        "maps": maps if caption.further_maps else maps[0],
        **({} if caption.words else {"shapes": shapes}),
        "phrases": [
            {
                "text": " ".join(caption.words[phrase.first : phrase.first + phrase.words]),
                **phrase._asdict(),
                "boxes": [list(box) for box in phrase.boxes],
                "correctness": list(phrase.correctness),
            }
            for phrase in caption.phrases
        ],
    }
