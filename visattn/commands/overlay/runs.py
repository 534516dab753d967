"""Maps of a model on many images: made, kept, drawn."""

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.caption.gallery import INDEX, earlier_entries
from visattn.commands.options.dry_run import foresee, told_images, told_model
from visattn.commands.options.folders import file_names, png, spare_images
from visattn.commands.options.images import batched, input_images, readable, report, telling_how_far
from visattn.commands.options.output_streams import print_remark, print_row
from visattn.commands.options.progress import progress_bar
from visattn.commands.overlay.map_records import IMAGES, MapFolder, code_of, digest, origin_of
from visattn.commands.overlay.map_specs import MapRunner, MapSpec
from visattn.commands.overlay.pages import OverlayPages, has_index, page_files

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    import numpy as np

    from visattn.data.images.reader import LoadedImage
    from visattn.pipelines.scale import MapScale
    from visattn.recording.attention_map import AttentionMap


def draw_folder(asked: argparse.Namespace) -> int:
    """Make maps of a model on images and draw them; return the exit code.

    Args:
        asked: What the command line says.

    Raises:
        FileNotFoundError: If an image or a file of the model does not exist.
        ValueError: If what is asked cannot be done with this model, or a file would overwrite an
            image.
        OSError: If the folder cannot be written.
    """
    bad: list[str] = []
    names = file_names(input_images(asked.images, asked.out, bad))
    _check_drawing(asked)
    if asked.dry_run:
        return _rehearse(asked, names)
    looker = MapRunner(asked)
    if looker.named.weights == "random":
        print_remark("the weights are random, so these maps say nothing")
    folder = MapFolder(asked.out, names, [look.key for look in looker.looks])
    with OverlayPages(asked, looker, folder, len(names)) as pages:
        run = _Run(asked, looker, folder, pages, names)
        run.bad += bad
        with telling_how_far(run.done, len(names)), progress_bar(len(names)) as progress:
            run.go(progress.track(names) if progress else names)
    return report(run.bad, run.lost, len(names))


def _rehearse(asked: argparse.Namespace, names: dict[Path, str]) -> int:
    """Say what would be done, after all checks that precede it; return 0."""
    asked.pretrained = False  # to say what would be done, nothing is fetched
    looker = MapRunner(asked)
    keys = [look.key for look in looker.looks]
    endings = [*(IMAGES[kind] for kind in asked.kinds), ".npy", ".json"]
    files = [f"{name}.{key}{end}" for name in names.values() for key in keys for end in endings]
    for name in names.values():
        files += page_files(asked, name, several=len(keys) > 1)
    spare_images(asked.out, files, names)
    if has_index(asked, len(names)):
        earlier_entries(asked.out / INDEX)
        files.append(INDEX)
    reads = [told_images([*names]), told_model(looker.named.model, asked.model)]
    return foresee([*reads, f"by {', '.join(keys)}"], asked.out, files)


def _check_drawing(asked: argparse.Namespace) -> None:
    """Refuse colors and opacities that there are not, before the work begins."""
    from visattn.viz.maps.colormap import color_table

    color_table(asked.colors)
    if not 0 <= asked.opacity <= 1:
        raise ValueError(f"--opacity must lie between 0 and 1, got {asked.opacity}")


class _Run:
    """What a run knows: the images, what is to be done, and what went wrong."""

    def __init__(
        self,
        asked: argparse.Namespace,
        looker: MapRunner,
        folder: MapFolder,
        pages: OverlayPages,
        names: Mapping[Path, str],
    ) -> None:
        self.asked, self.looker, self.folder, self.pages = asked, looker, folder, pages
        self.names, self.digests = names, dict[Path, str]()
        self.bad: list[str] = []
        self.lost: list[str] = []
        self.done: list[str] = []
        self.model = {
            "model": asked.model,
            **code_of(asked.model),
            "weights": origin_of(looker.named.weights),
            "pretrained": asked.pretrained,
            "arguments": dict(asked.argument),
            "target": asked.target,
            "fit": asked.fit,
            "input_size": asked.input_size,
            "classes": asked.classes and digest(asked.classes),
        }
        self.drawing = {
            "rule": asked.scale,
            "style": asked.style,
            "colors": asked.colors,
            "opacity": asked.opacity,
            "smooth": not asked.cells,
        }

    def go(self, paths: Iterable[Path]) -> None:
        """Make what is missing and draw it; with one scale for all, draw when all are made."""
        later = self.asked.scale == "global"
        for batch in batched(self._unfinished(paths, later=later), self.asked.batch):
            made = self.looker.maps([image for _, image in batch])
            for (path, image), maps in zip(batch, made, strict=True):
                with self._kept_from_harm(image.name):
                    self._keep(path, maps)
                    if not later:
                        self._draw(path, image, maps, self._scales(maps))
        if later:
            self._draw_all()

    def _unfinished(
        self, paths: Iterable[Path], *, later: bool
    ) -> "Iterator[tuple[Path, LoadedImage]]":
        """Read the images whose files are not all there; of others say again what is known."""
        left = (
            path for path in paths if not (later and self._known(path)) and not self._done(path)
        )
        return readable(left, self.bad, strict=self.asked.strict)

    def _wanted(self, path: Path, look: MapSpec) -> dict[str, Any]:
        """Return what the record of a map must say, or the map is not the one that is asked for."""
        return {
            **self.model,
            "method": look.method,
            "options": dict(look.options),
            "image_sha256": self._digest(path),
        }

    def _digest(self, path: Path) -> str:
        """Return the hash of an image, which is read for it once; "" if it cannot be read."""
        if path not in self.digests:
            try:
                self.digests[path] = digest(path)
            except (OSError, ValueError):  # whoever reads it as an image says why
                return ""
        return self.digests[path]

    def _known(self, path: Path) -> list[dict[str, Any]] | None:
        """Return the records of all maps of an image, if they are there and may stay."""
        return None if self.asked.again else self._records(path)

    def _done(self, path: Path) -> bool:
        """Whether all files of an image are there; then its lines are printed again."""
        told = self._known(path) if path.is_file() else None
        if told is None or any(one.get("drawn") != self.drawing for one in told):
            return False
        name = self.names[path]
        shown = [one["key"] for one in told if not one["made"].get("empty")]
        files = [f"{name}.{key}{IMAGES[kind]}" for key in shown for kind in self.asked.kinds]
        there = self.folder.has([*files, *self.pages.files(name)])
        if not there or not self.pages.shows(name, shown):
            return False
        if self.asked.scale != "global":
            for one in told:
                self._tell(name, one["key"], one["made"], one["scale"])
        return True

    def _scales(self, maps: "Sequence[AttentionMap]") -> "list[MapScale]":
        from visattn.pipelines.scale import map_scale

        return [map_scale([one], self.asked.scale) for one in maps]

    def _keep(
        self,
        path: Path,
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale] | None" = None,
    ) -> None:
        """Write arrays and records; without scales, which are not known yet, records say so."""
        name = self.names[path]
        for at, (look, one) in enumerate(zip(self.looker.looks, maps, strict=True)):
            told = {
                **self._wanted(path, look),
                "key": look.key,
                "image": str(path),
                "scale": scales[at].to_dict() if scales else None,
                "drawn": self.drawing if scales else None,
                **_versions(),
            }
            self.folder.save(name, look.key, one, told)

    def _draw(
        self,
        path: Path,
        image: "LoadedImage",
        maps: "Sequence[AttentionMap]",
        scales: "Sequence[MapScale]",
    ) -> None:
        """Draw the maps of an image, say what they are, and write last that all is done."""
        from visattn.pipelines.draw_maps import drawn_map

        name = self.names[path]
        shapes = {key: self.drawing[key] for key in ("style", "colors", "opacity", "smooth")}
        shown: dict[str, np.ndarray] = {}
        for look, one, scale in zip(self.looker.looks, maps, scales, strict=True):
            if one.made.get("empty"):
                continue
            drawn = drawn_map(image, one, scale, **shapes)
            shown[look.key] = drawn.overlay
            forms = {"overlay": drawn.overlay, "rgba": drawn.alone, "16bit": drawn.gray}
            for kind in self.asked.kinds:
                self.folder.write(f"{name}.{look.key}{IMAGES[kind]}", png(forms[kind]))
        self.pages.add(name, image, maps, scales, shown)
        self._keep(path, maps, scales)
        self.done.append(name)
        for look, one, scale in zip(self.looker.looks, maps, scales, strict=True):
            self._tell(name, look.key, one.made, scale.to_dict())

    def _draw_all(self) -> None:
        """Draw all images on one scale for each method."""
        from visattn.pipelines.scale import map_scale

        known = {
            path: told for path in self.names if path.is_file() and (told := self._records(path))
        }
        loaded = {
            path: [self.folder.load(self.names[path], one["key"], one) for one in told]
            for path, told in known.items()
        }
        columns = [
            [one for one in column if not one.made.get("empty")] or list(column)
            for column in zip(*loaded.values(), strict=True)
        ]
        scales = [map_scale(column, "global") for column in columns]
        wanted = [scale.to_dict() for scale in scales]
        for path, told in known.items():
            same = [one["scale"] for one in told] == wanted
            if same and not self.asked.again and self._done(path):
                for one in told:
                    self._tell(self.names[path], one["key"], one["made"], one["scale"])
                continue
            for _, image in readable([path], self.bad, strict=self.asked.strict):
                with self._kept_from_harm(image.name):
                    self._draw(path, image, loaded[path], scales)

    def _records(self, path: Path) -> list[dict[str, Any]] | None:
        """Return the records of all maps of an image, if all are there."""
        records = [
            self.folder.record(self.names[path], look.key, self._wanted(path, look))
            for look in self.looker.looks
        ]
        found = [one for one in records if one is not None and not one["made"].get("failed")]
        return found if len(found) == len(records) else None

    def _tell(self, name: str, key: str, made: Mapping[str, Any], scale: Mapping[str, Any]) -> None:
        """Print the line of a map, or note why there is none."""
        if made.get("empty"):
            self.lost.append(f"{name}.{key}: {made['empty']}")
            return
        first = -scale["high"] if scale["signed"] else scale["low"]
        about = made.get("class") or made.get("target")
        about = "-" if about is None else about
        chance = "-" if made["probability"] is None else f"{made['probability']:.3f}"
        print_row(name, key, about, chance, f"{first:.3g} to {scale['high']:.3g}")

    @contextlib.contextmanager
    def _kept_from_harm(self, name: str) -> Iterator[None]:
        """Note that the files of one image could not be written; the others go on."""
        try:
            yield
        except BrokenPipeError:  # of what is printed: nobody reads on
            raise
        except OSError as error:
            self.lost.append(f"{name}: {error}")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"visattn": version("visattn"), "torch": version("torch")}
