"""Blocks by the names that the field uses."""

import re
from collections import Counter

import pytest

from visattn.blocks.registry import BLOCKS, block_info, block_name, create_block, list_blocks

CALLED = {
    "se": ("SE", "squeeze_excite", "SqueezeExcite", "Squeeze-and-Excitation"),
    "ese": ("eSE", "effective_se"),
    "eca": ("ECA", "ECA-Net"),
    "gc": ("GC", "GCNet", "global_context"),
    "sse": ("sSE",),
    "stn": ("STN", "spatial transformer"),
    "cbam": ("CBAM",),
    "bam": ("BAM",),
    "scse": ("scSE",),
    "coordinate": ("CoordAtt", "coordinate attention"),
    "simam": ("SimAM",),
    "sk": ("SKNet",),
    "nonlocal": ("non-local", "NonLocal", "nl"),
    "danet": ("DANet", "dual_attention"),
    "crisscross": ("CCNet", "criss-cross"),
    "a2": ("A2-Net",),
    "botnet": ("BoTNet",),
}


def plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower())


def test_blocks_go_by_the_names_of_the_field() -> None:
    for name, others in CALLED.items():
        for other in (name, *others):
            assert block_info(other).name == name, other
            assert block_name(create_block(other, 16)) == name


def test_a_name_means_one_block() -> None:
    called = [plain(word) for name in list_blocks() for word in (name, *block_info(name).aliases)]
    assert [word for word, count in Counter(called).items() if count > 1] == []
    classes = {plain(block.__name__): name for name, block in BLOCKS.items()}
    said = {
        plain(word): name for name in list_blocks() for word in (name, *block_info(name).aliases)
    }
    assert {word for word in classes if said.get(word, classes[word]) != classes[word]} == set()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CBMA", "there is no block 'CBMA'; did you mean cbam"),
        ("squeeze-excit", "did you mean se"),
        (
            "qqqq",
            r"choose from se, ese, .*botnet \(a block of your own: "
            r"call va.register_block\(MyBlock\)",
        ),
    ],
)
def test_an_unknown_name_gets_close_ones(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        create_block(name, 16)
