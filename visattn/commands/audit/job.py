"""Job of `visattn audit`: the evidence of each photo is a record; the report is made of them all.

The record of a photo, photos/NAME.json, is what a run is resumed from. When the photos of a command
are done, those of all commands that share the folder are read, and tested together.
"""

import argparse
import csv
import io
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.model_option import (
    file_digest,
    input_settings,
    load_explained_model,
    model_settings,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import Job
from visattn.commands.streams import RowPrinter, print_where
from visattn.io.locations import Source
from visattn.io.safe_text import decode_utf8, print_message, read_bytes_bounded

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np
    from torch import nn

    from visattn.data.regions.annotations import AnnotatedImage
    from visattn.images.reader import LoadedImage
    from visattn.pipelines.audit.evidence import PhotoEvidence
    from visattn.pipelines.audit.report import AuditReport

_FILES = ("report.html", "findings.json", "rows.csv", "maps.npy", "patches.npz")
_MOST_BYTES = 2**28


class AuditJob(Job["PhotoEvidence"]):
    """Evidence of a classifier on photos, and the report of all of them."""

    command = "audit"
    writes_shared = False
    work = "examining"

    def __init__(self, args: argparse.Namespace) -> None:
        self.columns_of_photos = _read_groups(args.groups)
        if args.unit is not None and args.unit not in self.columns_of_photos:
            known = ", ".join(self.columns_of_photos) or "none"
            raise ValueError(f"--unit {args.unit} is no column of {args.groups}; it has {known}")
        self._evidence: dict[str, PhotoEvidence] = {}
        self._objects: dict[str, AnnotatedImage] = {}
        super().__init__(args)
        self._sources = {name: path for path, name in self.all_names.items()}
        self.labels: dict[str, int | None] = {}
        self.controls: set[str] = set()

    def load(self) -> "tuple[nn.Module, str]":
        """Load the model, and find out the true class of each photo."""
        from visattn.pipelines.audit.audit import control_photos
        from visattn.pipelines.audit.evidence import Examiner
        from visattn.pipelines.explainer import Explainer

        args = self.args
        loaded, explained = load_explained_model(args)
        self.weights = loaded.weights
        if loaded.weights == "random" and not args.dry_run:
            print_message("the weights are random: the audit has no meaning")
        own = None if args.resize_mode else loaded.transform
        explainer = Explainer(
            explained, transform=own, align=args.align, resize_mode=args.resize_mode
        )
        self.examiner = Examiner(explainer, args.method, layer=args.layer, seed=args.seed)
        explainer.check(args.method, lambda output: output)
        names = explained.class_names
        self.labels = {name: self._label(name, names) for name in self.all_names.values()}
        self._limit()
        self._read_objects()
        self.controls = control_photos(self.labels)
        return explained.model, args.model

    def _label(self, name: str, class_names: Sequence[str]) -> int | None:
        """Return the true class of a photo: the column label, or the folder that it is in."""
        from visattn.data.regions.readers import matching_classes

        column = self.columns_of_photos.get("label")
        source = self._sources[name]
        if column is not None:
            label = _of_photo(column, source, name)
        else:
            label = Path(str(source)).parent.name
        classes = matching_classes(label, class_names, len(class_names)) if label else ()
        if column is not None and label and not classes:
            raise ValueError(
                f"the label {label!r} of {name} is no class of the model; it has "
                f"{', '.join(class_names[:8]) or 'no names: pass --classes FILE'}"
            )
        return classes[0] if classes else None

    def _limit(self) -> None:
        """Keep the photos of each true class up to the limit, by an order that names decide."""
        by_class: dict[int, list[tuple[int, str]]] = {}
        for name, label in self.labels.items():
            if label is not None:
                by_class.setdefault(label, []).append((zlib.crc32(name.encode()), name))
        left_out = {
            name for photos in by_class.values()
            for _, name in sorted(photos)[self.args.limit_per_class :]
        }  # fmt: skip
        if left_out:
            print_message(
                f"{len(left_out):,} photos are left out: --limit-per-class is "
                f"{self.args.limit_per_class}"
            )
        self.labels = {name: each for name, each in self.labels.items() if name not in left_out}
        for names in (self.names, self.all_names):
            for path, name in list(names.items()):
                if name in left_out:
                    del names[path]

    def _read_objects(self) -> None:
        """Read boxes or masks, by the paths or the file names of the photos."""
        args = self.args
        if args.boxes is None and args.masks is None:
            return
        from visattn.data.regions.readers import read_annotated_images

        out = args.out if isinstance(args.out, Path) else None
        roots = [path for path in args.images if isinstance(path, Path) and path.is_dir()]
        folder = roots[0] if len(roots) == 1 else None
        if args.boxes is not None:
            # Annotations of a whole data set may name more photos than those of the command.
            images = read_annotated_images(args.boxes, images=folder, onerror=lambda _: None)
        elif folder is None:
            raise ValueError("--masks needs a folder of photos: name one alone")
        else:
            images = read_annotated_images(folder, masks=args.masks, omit=out)
        files = ((image.path, image) for image in images)
        paths = {path.resolve(): image for path, image in files if isinstance(path, Path)}
        for name, source in self._sources.items():
            if isinstance(source, Path) and (image := paths.get(source.resolve())) is not None:
                self._objects[name] = image
        if not self._objects:
            raise ValueError(
                f"{args.boxes or args.masks} has objects of {len(images):,} photos, and none of "
                f"them is among those of the command, such as {next(iter(self._sources.values()))}"
            )

    def stems(self, name: str) -> list[str]:
        """Return the stem of the record of a photo."""
        return [f"photos/{name}"]

    def shared_files(self) -> list[str]:
        """Return the files of the report."""
        return [*_FILES, *["rows.parquet"] * self.parquet]

    def settings(self) -> dict[str, Any]:
        """Return what changes the evidence of a photo."""
        args = self.args
        return {
            **model_settings(args, self.weights),
            **input_settings(args),
            "method": args.method,
            "layer": args.layer,
            "seed": args.seed,
            "visattn": version("visattn"),
        }

    def settings_of(self, name: str, stem: str) -> dict[str, Any]:
        """Return the true class of a photo, and whether it has controls."""
        del stem
        return {"label": self.labels.get(name), "control": name in self.controls}

    def digests(self, path: Source) -> dict[str, Any]:
        """Return digests of a photo and its objects."""
        known = self._objects.get(self.all_names[path])
        if known is None:
            return super().digests(path)
        parts = [(each.category, each.box, each.crowd) for each in known.objects]
        masks = [each.segmentation for each in known.objects]
        parts += [file_digest(mask) if isinstance(mask, Path) else repr(mask) for mask in masks]
        return {**super().digests(path), "objects": f"{zlib.crc32(repr(parts).encode()):08x}"}

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[PhotoEvidence]":
        """Return the evidence of photos."""
        by_source = {str(path): name for path, name in self.all_names.items()}
        names = [by_source[image.name] for image in images]
        named = [replace(image, name=name) for image, name in zip(images, names, strict=True)]
        return self.examiner(
            named,
            [self.labels[name] for name in names],
            [self._mask(name, image) for name, image in zip(names, images, strict=True)],
            [name in self.controls for name in names],
        )

    def _mask(self, name: str, image: "LoadedImage") -> "np.ndarray | None":
        known = self._objects.get(name)
        if known is None or not known.objects:
            return None
        known.check_size(image.size, image.orientation)
        return known.region_masks()[0]

    def parts(self, name: str, image: "LoadedImage", result: "PhotoEvidence") -> Iterable[Part]:
        """Return the record of a photo."""
        del image
        [stem] = self.stems(name)
        return [Part(stem, {"evidence": result.to_dict(), "geometry": result.geometry.to_dict()})]

    def rows(self, record: Record) -> Iterable[Sequence[object]]:
        """Print nothing per photo."""
        del record
        return ()

    def finish(self, result: "PhotoEvidence | None", records: Sequence[Record]) -> None:
        """Keep the evidence of a photo, as its record has it: a resumed run is equal."""
        del result
        self._keep(records)

    def _keep(self, records: Sequence[Record]) -> None:
        from visattn.pipelines.audit.evidence import PhotoEvidence

        for record in records:
            evidence = PhotoEvidence.from_dict(record["evidence"])
            self._evidence[evidence.name] = evidence

    def run(self, *, batch_size: int = 1) -> int:
        """Examine all photos; test and report those that are finished, of other shards, too."""
        code = super().run(batch_size=batch_size)
        for path in self.all_names:
            if path not in self.names and (records := self.finished(path)):
                self._keep(records)
        if not self._evidence:
            raise ValueError("no photo could be read: there is nothing to report")
        report = self._report()
        for name, content in report.files(parquet=self.parquet).items():
            self.write_shared(name, content)
        failed = self._print(report)
        if self.out is not None:
            print_where(self.out.where(_FILES[0]))
        return max(code, int(failed))

    def _report(self) -> "AuditReport":
        from visattn.pipelines.audit.audit import AuditOptions, analyze_evidence
        from visattn.pipelines.audit.report import load_audit
        from visattn.pipelines.audit.stamps import default_stamps, stamp_of_file

        args = self.args
        columns = {
            column: {name: _of_photo(values, self._sources[name], name) for name in self.labels}
            for column, values in self.columns_of_photos.items()
            if column != "label"
        }
        settings = {
            "model": args.model, "method": args.method, "layer": args.layer, "seed": args.seed,
            "limit_per_class": args.limit_per_class,
            "weights": self._settings["weights"], "visattn": version("visattn"),
        }  # fmt: skip
        stamps = [*default_stamps(), *map(stamp_of_file, args.stamp)]
        options = AuditOptions(
            stamps, columns, args.unit, args.min_effect, args.budget, args.batch_size, args.seed,
            settings,
        )  # fmt: skip
        report = analyze_evidence(
            [*self._evidence.values()], self.examiner, self._read_named, options
        )
        if args.reference:
            report = report.with_references([load_audit(folder) for folder in args.reference])
        if args.against is None:
            return report
        seeds = [load_audit(folder) for folder in args.seeds]
        return report.with_comparison(report.compare(load_audit(args.against), seeds))

    def _read_named(self, name: str) -> "LoadedImage":
        return replace(self.read(self._sources[name]), name=name)

    def _print(self, report: "AuditReport") -> bool:
        """Print confirmed findings; return whether one of them is above `--fail-on`."""
        confirmed = [each for each in report.findings if each.status == "confirmed"]
        columns = ("class", "finding", "log-odds", "low", "high", "probability")
        printer = RowPrinter(columns, [each.class_name for each in confirmed])
        failed = False
        for each in confirmed:
            effect = each.effect
            if effect is None:
                continue
            numbers = (f"{value:+.2f}" for value in (effect.value, effect.low, effect.high))
            printer.print((each.class_name, each.name, *numbers, f"{effect.probability:+.3f}"))
            failed |= self.args.fail_on is not None and effect.low >= self.args.fail_on
        return failed


def _read_groups(file: Path | None) -> dict[str, dict[str, str]]:
    """Return the value of each photo, by the column and the name in the column image.

    Raises:
        ValueError: If the file has no column image, or a photo twice.
    """
    if file is None:
        return {}
    text = decode_utf8(read_bytes_bounded(file, _MOST_BYTES))
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ValueError(f"--groups {file} is no CSV file: {error}") from error
    if not rows or "image" not in rows[0]:
        raise ValueError(f"--groups {file} must have a column image that names the photos")
    columns: dict[str, dict[str, str]] = {}
    for row in rows:
        for column, value in row.items():
            if column and column != "image":
                known = columns.setdefault(column, {})
                if row["image"] in known:
                    raise ValueError(f"--groups {file} lists {row['image']} twice")
                known[row["image"]] = value or ""
    return columns


def _of_photo(column: Mapping[str, str], source: Source, name: str) -> str:
    """Return the value of a photo, which is named by its path, its end, or its file name."""
    path = Path(str(source))
    for key in (str(source), name, path.name, f"{path.parent.name}/{path.name}", path.stem):
        if key in column:
            return column[key]
    return ""
