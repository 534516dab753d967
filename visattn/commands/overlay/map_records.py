"""Output files of maps: arrays and metadata, by which an interrupted run is resumed."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.folders import check_no_overwrite, create_folder, file_digest
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.recording.attention_map import AttentionMap

IMAGES = {"overlay": ".png", "rgba": ".rgba.png", "16bit": ".16bit.png"}
_PAGES = (".methods.png", ".heads.png", ".html")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json")  # files of a Hugging Face directory


class MapFolder:
    """Output folder with an array, a metadata record and images for each map.

    A map is not computed again if its record shows that it was made from the same image in the
    same way.

    Args:
        folder: Output folder; created if it does not exist.
        names: File names of the images without suffix.
        keys: Keys of the maps of each image.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If a file would overwrite an input image.
    """

    def __init__(self, folder: Path, names: Mapping[Path, str], keys: Sequence[str]) -> None:
        suffixes = [f".{key}{end}" for key in keys for end in (*IMAGES.values(), ".npy", ".json")]
        files = (f"{name}{suffix}" for name in names.values() for suffix in (*suffixes, *_PAGES))
        check_no_overwrite(folder, files, names)
        create_folder(folder)
        self.folder = folder

    def read_record(
        self, name: str, key: str, expected: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the record of a map if it exists and has the expected entries, else None.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            expected: Entries that identify model, method and image.
        """
        from visattn.io.safe_text import decode_utf8, parse_json, read_bytes_bounded

        path = self.folder / f"{name}.{key}.json"
        try:
            record = parse_json(decode_utf8(read_bytes_bounded(path)))
            same = all(record[part] == _plain(value) for part, value in expected.items())
        except (OSError, ValueError, KeyError, TypeError):  # missing, truncated or another format
            return None
        return record if same and path.with_suffix(".npy").is_file() else None

    def load(self, name: str, key: str, record: Mapping[str, Any]) -> "AttentionMap":
        """Return a map from its files.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            record: Record of the map.
        """
        import numpy as np
        import torch

        from visattn.geometry.affine import Geometry
        from visattn.recording.attention_map import AttentionMap

        values = np.load(self.folder / f"{name}.{key}.npy", allow_pickle=False)
        return AttentionMap(
            torch.from_numpy(values),
            record["site"],
            record["kind"],
            Geometry.from_dict(record["geometry"]),
            record["metadata"],
        )

    def save(
        self, name: str, key: str, attention_map: "AttentionMap", entries: Mapping[str, Any]
    ) -> None:
        """Write the array and the record of a map.

        Args:
            name: File name of the image without suffix.
            key: Key of the map.
            attention_map: The map.
            entries: More entries of the record, as plain values.

        Raises:
            OSError: If a file cannot be written.
        """
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, attention_map.values.numpy())
        self.write(f"{name}.{key}.npy", buffer.getvalue())
        geometry = attention_map.geometry
        record = {
            **entries,
            "kind": attention_map.kind,
            "site": attention_map.site,
            "map_shape": list(attention_map.values.shape),
            "geometry": None if geometry is None else geometry.to_dict(),
            "metadata": _plain(attention_map.metadata),
            "values": _summary(attention_map),
        }
        content = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
        self.write(f"{name}.{key}.json", content.encode() + b"\n")

    def has(self, names: Sequence[str]) -> bool:
        """Whether all these files exist."""
        return all((self.folder / name).is_file() for name in names)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically.

        Raises:
            OSError: If it cannot be written.
        """
        atomic_write(self.folder / name, content)


def _plain(value: Any) -> Any:
    """Return a value as it is read back from JSON; unknown types become strings."""
    return json.loads(json.dumps(_finite(value), default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value


def _summary(attention_map: "AttentionMap") -> dict[str, Any]:
    """Return minimum, maximum and mean of a map, and the image coordinates of its maximum."""
    import torch

    values, geometry = attention_map.values, attention_map.geometry
    if not bool(torch.isfinite(values).all()) or geometry is None:
        return {}
    row, column = divmod(int(values.argmax()), values.shape[-1])
    height, width = geometry.input_size
    cell = torch.tensor([[column + 0.5, row + 0.5]], dtype=torch.float64)
    cell *= torch.tensor([width / values.shape[-1], height / values.shape[-2]])
    [[x, y]] = geometry.to_image(cell).tolist()
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "argmax": [round(x, 2), round(y, 2)],
    }


def weights_origin(weights: str) -> str | dict[str, str]:
    """Return the origin of the weights of a model, for records of results.

    Args:
        weights: As `LoadedModel.weights` names them.

    Returns:
        `random` or `pretrained`; for a file or folder its name and digests of its content.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.safetensors"
        >>> file.write_bytes(b"abc")
        3
        >>> weights_origin("random"), weights_origin(str(file))
        ('random', {'file': 'a.safetensors', 'sha256': 'ba7816bf8f01cfea'})
    """
    path = Path(weights)
    if path.is_dir():
        files = (
            file
            for file in sorted(path.iterdir())
            if file.suffix in _WEIGHT_SUFFIXES and file.is_file()
        )
        return {"folder": path.name, **{file.name: file_digest(file) for file in files}}
    if weights in ("random", "pretrained") or not path.is_file():
        return path.name
    return {"file": path.name, "sha256": file_digest(path)}


def user_code_digest(model: str) -> dict[str, str]:
    """Return a digest of the user code that builds a model; empty for library models.

    Args:
        model: Value of `--model`, such as `my_net.py:Net`.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> file.write_text("abc")
        3
        >>> user_code_digest(f"{file}:Net"), user_code_digest("timm:resnet18")
        ({'code': 'ba7816bf8f01cfea'}, {})
    """
    from visattn.models.backbones.user_code import user_code_file

    file = user_code_file(model)
    return {} if file is None else {"code": file_digest(file)}
