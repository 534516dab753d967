"""Arrays of others: what a header promises is not believed."""

import io
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from visattn.io import safe_arrays as array_files
from visattn.io.safe_arrays import read_array


class Trap:
    """What a pickle of it does when it is loaded: make a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def saved(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def packed(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def header(shape: str, kind: str = "<f4") -> bytes:
    buffer = io.BytesIO()
    told: Any = {"descr": kind, "fortran_order": False, "shape": (3,)}
    np.lib.format.write_array_header_1_0(buffer, told)
    return buffer.getvalue().replace(b"(3,)", shape.encode())


NUMBERS = st.sampled_from(["<f8", "<f4", "<f2", "<i4", ">i2", "|u1", "|b1", "<c8", "<U3"])


@given(
    NUMBERS.flatmap(lambda kind: shapes.arrays(kind, shapes.array_shapes(min_side=0))), st.data()
)
def test_an_array_comes_back(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("arrays") / "a"
    array = np.asfortranarray(array) if data.draw(st.booleans()) else array
    file.write_bytes(saved(array) if data.draw(st.booleans()) else packed(x=saved(array)))
    again = read_array(file)
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)


def test_the_wanted_array_is_found_among_others(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    trap = packed(maps=saved(np.arange(3)), other=saved(np.array([Trap(tmp_path / "mark")])))
    file.write_bytes(trap)  # what is not asked for is not looked at
    assert read_array(file).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"or one called gates, got \['maps', 'other'\]"):
        read_array(file, "gates")
    with pytest.raises(ValueError, match="holds object; arrays must be of numbers or texts"):
        read_array(file, "other")
    file.write_bytes(saved(np.array([Trap(tmp_path / "mark")])))
    with pytest.raises(ValueError, match="need no pickle"):
        read_array(file)
    assert not (tmp_path / "mark").exists()
    np.load(file, allow_pickle=True)
    assert (tmp_path / "mark").exists()  # the trap works


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header("(1000000000000,)"), "takes 4,000,000,000,000 bytes, but .* are there"),
        (header("(1000000,1000000,1000000,10)"), "damaged: an array of"),
        (header("(-1,)") + bytes(4), "damaged: an array of|no array of NumPy's"),
        (header("(2,)") + bytes(9), "takes 8 bytes, but 9 are there"),
        (header("(1,)", "|O"), "holds object"),
        (header("(1,)", "<M8[s]") + bytes(8), "holds datetime64"),
        (header("(1,)", "|V8") + bytes(8), "must be of numbers or texts"),
        (header("__import__('os').getcwd()"), "no array of NumPy's"),
        (b"\x93NUMPY\x07\x00" + bytes(20), r"no array of NumPy's: .*\(7, 0\)"),
        (b"", "no array of NumPy's"),
        (b"PK\x03\x04", "damaged: "),
        (b"PK\x05\x06" + bytes(18), r"must hold one array, or one called maps, got \[\]"),
        (packed(a=header("(1000000000000,)")), "bytes, but .* are there"),
    ],
)
def test_a_hostile_file_is_refused_before_memory_is_taken(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    file = tmp_path / "hostile.npz"
    file.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=reason):
        read_array(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes


def test_what_unpacks_to_gigabytes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bomb.npz"
    file.write_bytes(packed(a=saved(np.zeros(10**6))))
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(array_files, "LARGEST", 10**6)
    with pytest.raises(ValueError, match="holds 8,000,128 bytes, more than 1,000,000"):
        read_array(file)


@given(st.data())
def test_no_damage_escapes_as_anything_but_a_word(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(data.draw(st.sampled_from([saved(np.eye(3)), packed(maps=saved(np.eye(3)))])))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=5)):
        whole[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "a.npz"
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert outcome(file)


def outcome(file: Path) -> str:
    """Return what is said of a file; anything but a ValueError escapes."""
    try:
        return str(read_array(file).shape)
    except ValueError as error:
        return str(error)
