"""Arrays of strangers: read without pickle, in bounded memory, or refused."""

import io
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as shapes
from traps import Trap

from visattn.results import records
from visattn.results.records import read_array

MAPS = np.random.default_rng(2).random((2, 3, 5))


def npy_bytes(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz_bytes(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def header(shape: str) -> bytes:
    buffer = io.BytesIO()
    fields: Any = {"descr": "<f4", "fortran_order": False, "shape": (3,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue().replace(b"(3,)", shape.encode())


REFUSED = [
    ("a.npy", b"", "not a NumPy array"),
    ("a.npy", header("(1000000000000,)"), "not a NumPy array"),
    ("a.npy", header("(2,3)") + bytes(9), "not a NumPy array"),
    ("a.npy", header("__import__('os').getcwd()"), "not a NumPy array"),
    ("a.npz", b"PK\x03\x04", "not a NumPy"),
    ("a.npz", npz_bytes(a=header("(1000000000000,)")), "not a NumPy array"),
    ("a.npz", npz_bytes(a=npy_bytes(MAPS), b=npy_bytes(MAPS)), r"array named maps, got \['a', 'b'"),
    ("a.txt", b"1", "not a NumPy array"),
]


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED)
def test_damaged_and_hostile_files_are_refused_in_little_memory(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        read_array(tmp_path / name)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(npz_bytes(a=npy_bytes(np.zeros(10**6))))
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(records, "MAX_BYTES", 10**6)
    with pytest.raises(ValueError, match="unpacks to 8,000,128 bytes, more than 1,000,000"):
        read_array(file)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    file, mark = tmp_path / "a.npz", tmp_path / "mark"
    trap = npy_bytes(np.array([Trap(mark)]))
    file.write_bytes(npz_bytes(maps=npy_bytes(np.arange(3)), other=trap))
    assert read_array(file).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_array(file, "other")
    file.write_bytes(trap)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_array(file)
    assert not mark.exists()
    np.load(file, allow_pickle=True)
    assert mark.exists()  # the trap works


DTYPES = st.sampled_from(["<f8", "<f4", "<f2", "<i4", ">i2", "|u1", "|b1"])
ARRAYS = DTYPES.flatmap(lambda dtype: shapes.arrays(dtype, shapes.array_shapes(min_side=0)))


@given(ARRAYS, st.data())
def test_arrays_are_read_as_numpy_wrote_them_and_damage_raises_only_value_error(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "a"
    array = np.asfortranarray(array) if data.draw(st.booleans()) else array
    content = bytearray(npy_bytes(array))
    content = bytearray(npz_bytes(x=bytes(content))) if data.draw(st.booleans()) else content
    file.write_bytes(content)
    loaded = read_array(file)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(loaded, array)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[place] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        read_array(file)
    except ValueError as error:
        assert "not a NumPy array" in str(error)  # noqa: PT017 (others propagate)
