"""Output folder of captioned photos: the files of each photo, and an index of all photos."""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.folders import create_folder, encode_png
from visattn.commands.options.image_index import INDEX, ImageIndex
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.data.images.reader import LoadedImage
    from visattn.data.phrases.phrases import Phrase
    from visattn.pipelines.captioning import Caption

SUFFIXES = (".png", ".html", ".json", ".npz", ".gif", ".alignment.png")


class Gallery(AbstractContextManager["Gallery"]):
    """Writer for the files of captioned photos, each atomically, and for their index.

    When the context is left for any reason, the index shows all photos that have a page, those of
    earlier runs included.

    Args:
        folder: Output folder; created if it does not exist.
        gif: Also write an animation of each caption.
        alignment: Also write the alignment matrix of each caption.
        phrase_boxes: Phrases with boxes by the file name of the photo.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If the folder has an index.html that visattn did not write.

    Example:
        >>> with Gallery(getfixture("tmp_path") / "new") as gallery:
        ...     [path.name for path in gallery.folder.iterdir()]
        []
    """

    def __init__(
        self,
        folder: Path,
        *,
        gif: bool = False,
        alignment: bool = False,
        phrase_boxes: "Mapping[str, Sequence[Phrase]] | None" = None,
    ) -> None:
        self.folder, self.gif, self.alignment = folder, gif, alignment
        self.phrase_boxes = phrase_boxes
        create_folder(folder)
        self._index = ImageIndex(folder)

    def __exit__(self, *_exception: object) -> None:
        """Write the index."""
        self._index.write()

    def add(self, name: str, image: "LoadedImage", caption: "Caption") -> None:
        """Write the files of a photo, its HTML page last.

        Args:
            name: Name of the files without suffix.
            image: The photo; its `name` is the path of its file.
            caption: The caption with its alternatives.

        Raises:
            OSError: If a file cannot be written.
            ValueError: If the caption cannot be drawn.
        """
        from visattn.pipelines.draw_captions import alignment_figure, caption_figure
        from visattn.pipelines.draw_pages import caption_gif, caption_html

        phrases = (self.phrase_boxes or {}).get(Path(image.name).name, ())
        self._write(f"{name}.png", encode_png(caption_figure(image, caption)))
        self._write(f"{name}.json", _json_record(image, caption, phrases))
        self._write(f"{name}.npz", _npz_arrays(caption))
        if self.gif:
            self._write(f"{name}.gif", caption_gif(image, caption))
        if self.alignment:
            figure = encode_png(alignment_figure(image, caption))
            self._write(f"{name}.alignment.png", figure)
        html = caption_html(image, caption, phrase_boxes=phrases, name=name, index=INDEX)
        self._write(f"{name}.html", html.encode())
        self._index.add(name, f"{name}.html", caption.text, [_mean_overlay(image, caption)])

    def _write(self, name: str, content: bytes) -> None:
        atomic_write(self.folder / name, content)


def _mean_overlay(image: "LoadedImage", caption: "Caption") -> "np.ndarray":
    """Return the photo with the mean map of all words."""
    import numpy as np

    from visattn.pipelines.draw_captions import overlay

    maps = caption.maps
    if not len(maps):
        return image.pixels
    mean = replace(maps, values=maps.values.mean(0), labels=())
    return np.array(overlay(image, mean, opacity=0.6))


def _json_record(image: "LoadedImage", caption: "Caption", phrases: "Sequence[Phrase]") -> bytes:
    geometry = caption.maps.geometry
    best, *others = (_caption_record(each, phrases) for each in (caption, *caption.alternatives))
    record = {
        "image": image.name,
        **best,
        "geometry": None if geometry is None else geometry.to_dict(),
        "alternatives": others,
    }
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _caption_record(caption: "Caption", phrases: "Sequence[Phrase]") -> dict[str, Any]:
    """Return a caption as plain values; each map is a grid of weights that sum to one."""
    from visattn.pipelines.draw_pages import ground_phrases

    made = {name: value for name, value in caption.maps.metadata.items() if name != "image"}
    return {
        "caption": caption.text,
        "words": list(caption.words),
        "log_probs": list(caption.log_probs),
        "gates": list(caption.gates),
        "finished": caption.finished,
        "score": caption.score,
        **({"notes": caption.notes, "made": made} if caption.notes else {}),
        "maps": caption.maps.values.tolist(),
        "phrases": [
            {
                "text": " ".join(caption.words[phrase.first : phrase.first + phrase.words]),
                **phrase._asdict(),
            }
            for phrase in ground_phrases(caption, phrases)
        ],
    }


def _npz_arrays(caption: "Caption") -> bytes:
    """Return captions as NumPy arrays without pickle; the keys of the second caption end in _2."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for number, each in enumerate((caption, *caption.alternatives), start=1):
        suffix = "" if number == 1 else f"_{number}"
        arrays |= {
            f"maps{suffix}": each.maps.values.numpy(),
            f"words{suffix}": np.array(each.words, dtype=np.str_),
            f"gates{suffix}": np.array(each.gates),
            f"log_probs{suffix}": np.array(each.log_probs),
            f"score{suffix}": np.array(each.score),
        }
    if caption.maps.geometry is not None:
        arrays["geometry"] = np.array(json.dumps(caption.maps.geometry.to_dict()))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
