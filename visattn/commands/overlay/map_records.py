"""Files of maps: numbers and how they came about, so that a run can go on where it was."""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.folders import prepare_folder, spare_images, write_whole

if TYPE_CHECKING:  # torch and Pillow are loaded when the command runs, not for its help
    from visattn.recording.attention_map import AttentionMap

IMAGES = {"overlay": ".png", "rgba": ".rgba.png", "16bit": ".16bit.png"}
_PAGES = (".methods.png", ".heads.png", ".html")
_KEPT = (".safetensors", ".bin", ".json")  # of a folder of Hugging Face
_DIGEST = 16  # letters of a hash that tell two files apart


class MapFolder:
    """A folder in which each map has an array, a record, and images.

    A map that is there and whose record says that it was made from the same image in the same
    way is not made again.

    Args:
        folder: Is made if it is not there.
        names: Of the files of each image, without suffix.
        keys: Of the maps of each image.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If a file would take an image's place.
    """

    def __init__(self, folder: Path, names: Mapping[Path, str], keys: Sequence[str]) -> None:
        endings = [f".{key}{end}" for key in keys for end in (*IMAGES.values(), ".npy", ".json")]
        written = (f"{name}{end}" for name in names.values() for end in (*endings, *_PAGES))
        spare_images(folder, written, names)
        prepare_folder(folder)
        self.folder = folder

    def record(self, name: str, key: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what is known of a map that was made as it is asked for now, if it is there.

        Args:
            name: Of the image's files.
            key: Of the map.
            asked: How it is to be made, and from what.
        """
        from visattn.io.safe_text import bounded_bytes, parsed_json, plain_text

        path = self.folder / f"{name}.{key}.json"
        try:
            told = parsed_json(plain_text(bounded_bytes(path)))
            same = all(told[part] == _plain(value) for part, value in asked.items())
        except (OSError, ValueError, KeyError, TypeError):  # not there, cut short, or another's
            return None
        return told if same and path.with_suffix(".npy").is_file() else None

    def load(self, name: str, key: str, told: Mapping[str, Any]) -> "AttentionMap":
        """Return a map from its files.

        Args:
            name: Of the image's files.
            key: Of the map.
            told: Its record.
        """
        import numpy as np
        import torch

        from visattn.geometry.affine import Geometry
        from visattn.recording.attention_map import AttentionMap

        values = np.load(self.folder / f"{name}.{key}.npy", allow_pickle=False)
        geometry = Geometry.from_dict(told["geometry"])
        return AttentionMap(
            torch.from_numpy(values), told["site"], told["kind"], geometry, told["made"]
        )

    def save(self, name: str, key: str, one: "AttentionMap", told: Mapping[str, Any]) -> None:
        """Write array and record of a map.

        Args:
            name: Of the image's files.
            key: Of the map.
            one: The map.
            told: More for the record; plain values.

        Raises:
            OSError: If a file cannot be written.
        """
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, one.values.numpy())
        self.write(f"{name}.{key}.npy", buffer.getvalue())
        record = {
            **told,
            "kind": one.kind,
            "site": one.site,
            "grid": list(one.values.shape),
            "geometry": None if one.geometry is None else one.geometry.to_dict(),
            "made": _plain(one.made),
            "values": _summary(one),
        }
        content = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
        self.write(f"{name}.{key}.json", content.encode() + b"\n")

    def has(self, names: Sequence[str]) -> bool:
        """Whether all of these files are there."""
        return all((self.folder / name).is_file() for name in names)

    def write(self, name: str, content: bytes) -> None:
        """Write a file at once.

        Raises:
            OSError: If it cannot be written.
        """
        write_whole(self.folder / name, content)


def digest(path: Path) -> str:
    """Return what tells the content of a file from that of others.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a"
        >>> file.write_bytes(b"abc")
        3
        >>> digest(file)
        'ba7816bf8f01cfea'
    """
    from visattn.io.regular_files import open_regular

    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST]


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON; what JSON has not becomes a text."""
    return json.loads(json.dumps(_finite(value), default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _summary(one: "AttentionMap") -> dict[str, Any]:
    """Return the range of a map, and where on the image its highest value lies."""
    import torch

    values = one.values
    if not bool(torch.isfinite(values).all()) or one.geometry is None:
        return {}
    row, column = divmod(int(values.argmax()), values.shape[-1])
    height, width = one.geometry.input_size
    cell = torch.tensor([[column + 0.5, row + 0.5]], dtype=torch.float64)
    cell *= torch.tensor([width / values.shape[-1], height / values.shape[-2]])
    [[x, y]] = one.geometry.to_image(cell).tolist()
    ends = {"lowest": float(values.min()), "highest": float(values.max())}
    return {**ends, "mean": float(values.mean()), "peak": [round(x, 2), round(y, 2)]}


def origin_of(weights: str) -> str | dict[str, str]:
    """Return where the weights of a model are from, to be kept with what was made of them.

    Args:
        weights: As a `NamedModel` has them.

    Returns:
        `random` or `pretrained`; of a file or a folder its name and the digest of what it holds, as
        it may be written anew.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.safetensors"
        >>> file.write_bytes(b"abc")
        3
        >>> origin_of("random"), origin_of(str(file))
        ('random', {'file': 'a.safetensors', 'sha256': 'ba7816bf8f01cfea'})
    """
    path = Path(weights)
    if path.is_dir():
        kept = (file for file in sorted(path.iterdir()) if file.suffix in _KEPT and file.is_file())
        return {"folder": path.name, **{file.name: digest(file) for file in kept}}
    if weights in ("random", "pretrained") or not path.is_file():
        return path.name
    return {"file": path.name, "sha256": digest(path)}


def code_of(model: str) -> dict[str, str]:
    """Return a digest of the code that a model is named by, as it may be changed; else nothing.

    Args:
        model: As the command line names it, such as `my_net.py:Net`.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> file.write_text("abc")
        3
        >>> code_of(f"{file}:Net"), code_of("timm:resnet18")
        ({'code': 'ba7816bf8f01cfea'}, {})
    """
    from visattn.models.backbones.user_code import code_file

    file = code_file(model)
    return {} if file is None else {"code": digest(file)}
