"""A run of a command over images: checks before it, a loop with progress and index, a report."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from visattn.commands.options.dry_run import describe_images, describe_model, print_dry_run
from visattn.commands.options.folders import check_no_overwrite, unique_names
from visattn.commands.options.image_index import INDEX, ImageIndex, read_index_entries
from visattn.commands.options.images import (
    batched,
    count_on_interrupt,
    find_input_images,
    read_images,
    report_failures,
)
from visattn.commands.options.output_streams import progress_bar

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from torch import nn

    from visattn.data.images.reader import LoadedImage

Process = Callable[[list[tuple[str, "LoadedImage"]], ImageIndex | None], Iterable[list[str]]]
"""From the names and images of a batch, and the index, to the reasons of missing files of each."""


class ImageRun:
    """The images of a command line, and the files that are written for each.

    Args:
        args: Options of the command, with `images`, `out` and `strict`.
        files: Files of an image, with `{}` for its name.
        title: Heading of the index, which is written for several images.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image.

    Example:
        >>> from PIL import Image
        >>> file = getfixture("tmp_path") / "dog.png"
        >>> Image.new("RGB", (4, 3)).save(file)
        >>> args = argparse.Namespace(images=[file], out=None, strict=False)
        >>> run = ImageRun(args, ["{}.json"], "Dogs")
        >>> run.files, run.process(lambda batch, index: [[] for name, image in batch])
        (['dog.json'], 0)
    """

    def __init__(self, args: argparse.Namespace, files: Sequence[str], title: str) -> None:
        self.args, self.title = args, title
        self.skipped: list[str] = []
        self.names = unique_names(find_input_images(args.images, args.out, self.skipped))
        self.files = [file.format(name) for name in self.names.values() for file in files]
        several = len(self.names) > 1
        self.files += [INDEX] if several else []
        self.has_index = several and args.out is not None
        if args.out is not None:
            check_no_overwrite(args.out, self.files, self.names)
            if several:
                read_index_entries(args.out / INDEX)

    def dry_run(self, model: "nn.Module", source: str) -> int:
        """Print what would be read and written; return 0.

        Args:
            model: The model.
            source: Its file.
        """
        reads = [describe_images([*self.names]), describe_model(model, source)]
        return print_dry_run(reads, self.args.out, self.files)

    def process(self, process: Process, *, batch_size: int = 1) -> int:
        """Read all images and process them in batches; return the exit code.

        Args:
            process: Called with each batch; it yields for each image why files are missing.
            batch_size: Images per batch.

        Raises:
            ImageError: If an image cannot be read with `--strict`.
        """
        index = ImageIndex(self.args.out, self.title) if self.has_index else None
        not_written: list[str] = []
        done: list[str] = []
        with (
            count_on_interrupt(done, len(self.names)),
            index or nullcontext(),
            progress_bar(len(self.names)) as progress,
        ):
            paths = progress.track(self.names) if progress else self.names
            images = read_images(paths, self.skipped, strict=self.args.strict)
            for batch in batched(images, batch_size):
                named = [(self.names[path], image) for path, image in batch]
                for (name, _), reasons in zip(named, process(named, index), strict=True):
                    not_written += reasons
                    done.append(name)
        return report_failures(self.skipped, not_written, len(self.names))
