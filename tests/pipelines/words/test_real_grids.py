"""Tokens of the grids of published models lie in their cells, on photos of many sizes."""

import functools

import pytest
import real_grids
import torch
from real_grids import MODELS, Size, expected, grid_model, misplaced, tokens_of

SOME: dict[str, list[Size]] = {
    "siglip_224": [(1200, 600)], "siglip_384": [(40, 400)], "qwen2": [(53, 71)],
    "qwen2_5": [(375, 500)], "llava_next": [(97, 613)],
    "idefics3": [(97, 613)], "gemma3": [(641, 479)], "idefics2": [(180, 300)],
}  # fmt: skip
CASES = [("clip_336", size) for size in ((375, 500), (40, 400), (53, 71), (768, 1024))] + [
    (name, size) for name, chosen in SOME.items() for size in chosen
]
REST = [(name, size) for name in MODELS for size in real_grids.sizes() if (name, size) not in CASES]
CROSSED = [("llava_next", size) for size in [(200, 500), (97, 613), (40, 400)]]
"""Panoramas: tokens of tiles are narrower, those of the whole photo lower, and cells are both.

So each token covers several cells, and none holds most of it.
"""
TOLERANCE = 0.05  # tokens
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in REST]


model = functools.cache(grid_model)


@pytest.mark.parametrize(("name", "size"), [*CASES, *SLOW], ids=str)
def test_tokens_lie_in_the_cells_of_the_true_grid(name: str, size: Size) -> None:
    placement = tokens_of(*model(name), size).placement
    truth = expected(name, size)
    assert placement.boxes.shape == truth.shape
    assert misplaced(placement.boxes, truth) <= TOLERANCE
    # Each row of attention is drawn as much as it lies on the photo.
    count = len(placement.boxes)
    drawn = placement.rasterize(torch.eye(count)[:: max(1, count // 50)]).sum((1, 2))
    torch.testing.assert_close(drawn, placement.visible[:: max(1, count // 50)])
    if name in ("gemma3", "idefics2") or (name, size) in CROSSED:
        return
    assert placement.grid_size == real_grids.grid_of(truth)
    (width, _, _), (_, height, _), _ = placement.geometry.matrix
    side = placement.boxes[:, 2:] - placement.boxes[:, :2]
    finest = (side <= 1.1 * torch.tensor([width, height])).all(1)  # no token of a thumbnail
    share = placement.down.amax(1) * placement.across.amax(1)
    assert float(share[finest].min()) >= 0.98


def test_16_bit_models_have_the_same_grid() -> None:
    own = grid_model("clip_336")
    wide = tokens_of(*own, (375, 500)).placement
    half = tokens_of(*own, (375, 500), dtype=torch.bfloat16).placement
    assert own[0].dtype == torch.bfloat16
    assert half.columns.tolist() == wide.columns.tolist()
    # a token is 15.6 pixels wide
    torch.testing.assert_close(half.boxes, wide.boxes, atol=TOLERANCE * 15.6, rtol=0)


def test_a_photo_with_fewer_pixels_than_tokens_is_refused() -> None:
    placement = tokens_of(*model("clip_336"), (20, 30)).placement
    assert misplaced(placement.boxes, expected("clip_336", (20, 30))) <= TOLERANCE
    with pytest.raises(ValueError, match=r"photo is too small.* 40 x 12 pixels .*enlarge it"):
        tokens_of(*model("clip_336"), (12, 40))


@pytest.mark.parametrize(("name", "size", "most"), [
    ("qwen2", (480, 640), 4),  # of one noise: its lines are whole patches beyond doubt
    ("qwen2", (40, 400), 7),  # two rows of tokens leave doubt
])  # fmt: skip
def test_noise_ends_when_lines_are_certain(name: str, size: Size, most: int) -> None:
    own, runs = model(name), list[int]()
    hook = own[0].model.visual.register_forward_pre_hook(lambda *_: runs.append(1))
    tokens_of(*own, size)
    hook.remove()
    assert len(runs) == most
