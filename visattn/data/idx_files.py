"""Digits and their classes in IDX files, looked at before anything is made of them."""

from math import prod
from pathlib import Path

from visattn.data.regular_files import open_regular

_BYTES, _LARGEST = 8, 2**30  # the kind of number; the longest file


def idx_shape(path: Path, axes: int) -> tuple[int, ...]:
    """Return the shape of what an IDX file holds, once its length agrees with it.

    Args:
        path: Of the file, unpacked.
        axes: How many it must have: 1 for classes, 3 for pictures.

    Raises:
        ValueError: If it is of another kind, cut off, or longer than it says.
        FileNotFoundError: If there is no such file.

    Example:
        >>> file = getfixture("tmp_path") / "labels-idx1-ubyte"
        >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> idx_shape(file, 1)
        (3,)

    Source:
        LeCun, Cortes, Burges: the MNIST database of handwritten digits, "file formats".
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise FileNotFoundError(f"{path} is no file")
    length = path.stat().st_size
    with open_regular(path) as file:
        head = file.read(4 + 4 * axes)
    if head[:4] != bytes([0, 0, _BYTES, axes]):
        raise ValueError(
            f"{path} is no IDX file of bytes with {axes} axes: it begins with {head[:4].hex(' ')}, "
            f"not 00 00 08 {axes:02}; is it packed, or a page of a web server? Fetch it anew"
        )
    shape = tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, 4 + 4 * axes, 4))
    expected = 4 + 4 * axes + prod(shape)
    if len(head) < 4 + 4 * axes or length != expected or length > _LARGEST:
        raise ValueError(
            f"{path} has {length:,} bytes; of {' x '.join(map(str, shape))} it must have "
            f"{expected:,}: it is cut off or damaged, fetch it anew"
        )
    if not all(shape):
        raise ValueError(f"{path} holds nothing: {' x '.join(map(str, shape))}")
    return shape


def check_digits(folder: Path, *, train: bool, classes: int) -> None:
    """Refuse files of digits that are damaged or do not belong together; missing ones pass.

    Args:
        folder: In which torchvision keeps them: `ROOT/MNIST/raw`.
        train: Whether those for training are looked at, or those for the test.
        classes: How many there are.

    Raises:
        ValueError: If a file is damaged, there are other classes, or not one for each picture.

    Example:
        >>> check_digits(getfixture("tmp_path"), train=True, classes=10)
    """
    part = "train" if train else "t10k"
    pictures, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    if not (pictures.is_file() and labels.is_file()):
        return
    (count, *_), (told,) = idx_shape(pictures, 3), idx_shape(labels, 1)
    if count != told:
        raise ValueError(
            f"{pictures} holds {count:,} pictures and {labels.name} {told:,} classes; "
            "each picture needs one: fetch both anew"
        )
    highest = max(labels.read_bytes()[8:])
    if highest >= classes:
        raise ValueError(f"{labels} names class {highest}; there are {classes}, from 0 on")
