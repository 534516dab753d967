"""Images with one class each: batches, class folders and torchvision datasets."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torchvision.datasets
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment import augment
from visattn.data.source import Source, held_out, read_photo, to_device
from visattn.images.formats import IMAGE_SUFFIXES
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.io.safe_paths import is_ignored, walk_files
from visattn.io.safe_text import reading
from visattn.results.kinds import Split


class LabeledBatch(NamedTuple):
    """Images of one size with their class indices."""

    images: UInt8[Tensor, "b c y x"]
    """Unnormalized, RGB or gray."""
    labels: Int[Tensor, " b"]

    to = to_device


@dataclass
class Labeled(Sequence[tuple[Any, int]]):
    """Images with class indices.

    Args:
        images: Photos, or a uint8 tensor `[n, c, y, x]`.
        labels: The class of each.
        centers: x and y, from -1 to 1, of the object in each image; None if unknown.
    """

    images: Sequence[Any] | UInt8[Tensor, "n c y x"]
    labels: Int[Tensor, " n"]
    centers: Float[Tensor, "n 2"] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.images[index], int(self.labels[index])


def labeled_input(
    sample: tuple[Any, int | str],
    seed: int,
    *,
    numbers: Mapping[str, int],
    resize: ResizeSpec | None,
    transforms: Sequence[v2.Transform] = (),
    value_range: tuple[float, float] | None = None,
) -> tuple[UInt8[Tensor, "c y x"], int]:
    """Return an image, transformed and resized to the network's input, and its class.

    Args:
        sample: A photo and its class, as index or name. A tensor is not resized.
        seed: Seed of the transforms.
        numbers: The index of each class name.
        resize: How photos are resized; None to keep their size.
        transforms: Random transforms, applied before resizing.
        value_range: See `read_photo`.
    """
    image, label = sample
    number = label if isinstance(label, int) else numbers[str(label)]
    if isinstance(image, Tensor):
        return augment(transforms, seed, image)[0], number
    pixels = read_photo(image, value_range).pixels
    resize = resize or ResizeSpec((pixels.shape[0], pixels.shape[1]))
    if transforms:
        moved = augment(transforms, seed, torch.from_numpy(pixels).permute(2, 0, 1))[0]
        if tuple(moved.shape[1:]) == resize.size:
            return moved.contiguous(), number
        pixels = moved.permute(1, 2, 0).contiguous().numpy()
    return resize_to_input(LoadedImage(pixels), resize)[0], number


def collate_labeled(samples: Sequence[tuple[Tensor, int]]) -> LabeledBatch:
    """Stack samples of one size into a batch."""
    images, labels = zip(*samples, strict=True)
    return LabeledBatch(torch.stack(images), torch.tensor(labels))


_VALIDATION_FOLDERS = ("val", "valid", "validation", "dev")


@dataclass
class ClassFolders(Source):
    """Photos in `root/SPLIT/CLASS/`, as torchvision's `ImageFolder` reads them.

    Without split folders, the photos in `root/CLASS/` are split at random.

    Args:
        root: Folder of the photos.
        train: Subfolder of the training photos; "." for `root` itself.
        val: Subfolder of the validation photos; `valid`, `validation` and `dev` are tried, too.
            null splits the training photos.
        test: Subfolder of the test photos; by default the validation photos.
        val_fraction: Fraction of each class for validation if `val` is null.
        split_seed: Seed of the random split.

    Raises:
        FileNotFoundError: If there are no class folders.
        ValueError: If a split has a class that the training photos lack.
    """

    root: str
    train: str = "train"
    val: str | None = "val"
    test: str | None = None
    val_fraction: float = 0.1
    split_seed: int = 0

    def __post_init__(self) -> None:
        root = Path(self.root)
        self._folders = {"train": root / self.train, "validation": self.val and root / self.val}
        if self.train == "train" and not (root / "train").is_dir() and _class_folders(root):
            self._folders = {"train": root, "validation": None}
            self.notes = (
                f"{root} has no folder train: {self.val_fraction:.0%} of the photos of each class "
                "are for validation (val_fraction)",
            )
        elif self.val == "val":
            folders = [root / name for name in _VALIDATION_FOLDERS]
            self._folders["validation"] = next(filter(Path.is_dir, folders), folders[0])
        self._folders["test"] = root / self.test if self.test else self._folders["validation"]
        self.class_names = tuple(sorted(_class_folders(self._folders["train"])))
        if not self.class_names:
            raise FileNotFoundError(
                f"{root} {'has no class folders' if root.is_dir() else 'is not a folder'}: photos "
                f"are expected as {self._folders['train']}/CLASS/PHOTO, or {root}/CLASS/PHOTO"
            )

    def __call__(self, split: Split) -> Labeled:
        """Return the photos of a split."""
        photos = self._listed(self._folders[split] or self._folders["train"])
        if self._folders["validation"] is not None or (split == "test" and self.test):
            return photos
        chosen = held_out(photos.labels, self.val_fraction, self.split_seed) ^ (split == "train")
        files = [file for file, keep in zip(photos.images, chosen.tolist(), strict=True) if keep]
        return Labeled(files, photos.labels[chosen])

    def _listed(self, folder: Path) -> Labeled:
        found = _class_folders(folder)
        if unknown := sorted(set(found) - set(self.class_names)):
            raise ValueError(
                f"{folder} has classes that the training split lacks: {', '.join(unknown[:5])}"
            )
        files: list[str] = []
        labels: list[int] = []
        for name, path in found.items():
            photos = [
                str(file) for file in walk_files(path) if file.suffix.lower() in IMAGE_SUFFIXES
            ]
            files += photos
            labels += [self.class_names.index(name)] * len(photos)
        if not files:
            raise FileNotFoundError(f"{folder} has no photos in its class folders")
        return Labeled(files, torch.tensor(labels))


def _class_folders(folder: Path) -> dict[str, Path]:
    """Return the class folders by NFC name: macOS stores é as two characters."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {
        unicodedata.normalize("NFC", path.name): path
        for path in paths
        if path.is_dir() and not is_ignored(path.name)
    }


@dataclass
class TorchvisionImages(Source):
    """A small torchvision dataset, held in memory.

    Args:
        dataset: Name of the class in `torchvision.datasets`.
        root: Folder in which torchvision looks for the files: `root/MNIST/raw`.
        val: Number of training images held out for validation.
        split_seed: Seed of the random split.
        download: Download missing files.

    Raises:
        FileNotFoundError: If the files are missing.
        ValueError: If they are damaged.
    """

    dataset: Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"]
    root: str
    val: int = 5000
    split_seed: int = 0
    download: bool = False
    num_workers = 0

    @cached_property
    def class_names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names of the classes; torchvision calls a digit "7 - seven"."""
        return tuple(name.split(" - ")[0] for name in self._files(train=True).classes)

    def __call__(self, split: Split) -> Labeled:
        """Return the images of a split."""
        data = self._files(train=split != "test")
        images = torch.as_tensor(data.data)
        images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        labels = torch.as_tensor(data.targets)
        if len(images) != len(labels) or int(labels.max()) >= len(self.class_names):
            raise ValueError(
                f"{self.dataset} in {self.root} has {len(images):,} images and {len(labels):,} "
                f"labels up to {int(labels.max())}: it is damaged, download it again"
            )
        if split == "test":
            return Labeled(images, labels)
        if not 1 <= self.val < len(images):
            raise ValueError(f"val must be 1 to {len(images) - 1:,}, got {self.val}")
        generator = torch.Generator().manual_seed(self.split_seed)
        order = torch.randperm(len(images), generator=generator)
        rows = order[self.val :] if split == "train" else order[: self.val]
        return Labeled(images[rows], labels[rows])

    def _files(self, *, train: bool) -> Any:
        reader = getattr(torchvision.datasets, self.dataset)
        try:
            with reading(f"{self.dataset} in {self.root}"):
                return reader(self.root, train=train, download=self.download)
        except RuntimeError as error:
            raise FileNotFoundError(
                f"{self.root} does not hold {self.dataset} as torchvision stores it: {error}; set "
                "another root, or download: true"
            ) from error
