"""What stands out: maps by hand, and colors one by one."""

import pytest
import torch
from torch import Tensor

from visattn.functional.saliency.itti_koch import color_opponency, conspicuity_maps, normalize_peaks


def one(*rows: list[float]) -> Tensor:
    return torch.tensor([[list(rows)]])


def held_down(maps: Tensor) -> float:
    """Return what the largest value became."""
    return float(normalize_peaks(maps).max())


def test_rivals_hold_a_map_down_by_their_mean() -> None:
    row = [8.0, 0.0, 2.0, 1.0, 6.0, 0.0]
    assert held_down(one(row)) == pytest.approx((1 - (2 + 6) / 2 / 8) ** 2)
    assert normalize_peaks(one(row)).flatten().tolist() == pytest.approx(
        [0.25 * value / 8 for value in row]
    )


def test_low_rivals_do_not_count() -> None:
    assert held_down(one([8.0, 0.0, 0.8, 0.0, 4.0])) == pytest.approx(0.25)
    assert held_down(one([8.0, 0.0, 0.8, 0.0, 0.7])) == 1


@pytest.mark.parametrize(
    "flat",
    [
        [[1, 1]],
        [[1], [1], [1]],
        [[1, 1], [1, 1]],
        [[1, 1, 1], [1, 1, 1], [1, 1, 1]],
        [[1, 0], [0, 1]],
        [[0, 1, 0], [1, 1, 1], [0, 1, 0]],
    ],
)
def test_a_flat_top_counts_once(flat: list[list[int]]) -> None:
    top = torch.zeros(1, 1, 9, 11)
    rows = torch.tensor(flat)
    top[0, 0, 2 : 2 + len(rows), 3 : 3 + rows.shape[1]] = 4.0 * rows
    assert held_down(top) == 1
    top[0, 0, 7, 9] = 2.0
    assert held_down(top) == pytest.approx(0.25)
    top[0, 0, 7, 9] = 4.0
    assert held_down(top) == 0


def test_a_ridge_from_edge_to_edge_is_one_thing() -> None:
    ridge = torch.zeros(1, 1, 7, 11)
    ridge[..., 4] = 3.0
    assert torch.equal(normalize_peaks(ridge), ridge / 3)


def test_rounding_errors_are_not_blown_up_and_hide_no_plateau() -> None:
    noise = torch.rand(1, 1, 13, 17, generator=torch.Generator().manual_seed(0))
    assert torch.equal(normalize_peaks(9e-5 * noise), torch.zeros_like(noise))
    flat = torch.zeros(1, 1, 13, 17)
    flat[..., 3:9, 4:11] = 2.0
    assert torch.equal(normalize_peaks(flat + 1e-6 * noise) > 0.9, flat > 0)


def test_maps_do_not_know_each_other() -> None:
    maps = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(0))
    for b in range(2):
        for c in range(3):
            alone = normalize_peaks(maps[b : b + 1, c : c + 1])
            assert torch.equal(normalize_peaks(maps)[b : b + 1, c : c + 1], alone)


@pytest.mark.parametrize(
    ("color", "wanted"),
    [
        ((1.0, 0.0, 0.0), (1 / 3, 3.0, 0.0)),  # red: r / I = 3
        ((0.0, 0.5, 0.0), (1 / 6, -3.0, 0.0)),  # green
        ((0.0, 0.0, 0.9), (0.3, 0.0, 3.0)),  # blue
        ((0.6, 0.6, 0.0), (0.4, 0.0, -1.5)),  # yellow is as red as it is green
        ((0.5, 0.5, 0.5), (0.5, 0.0, 0.0)),  # gray
        ((0.9, 0.6, 0.3), (0.6, 0.75, -0.5)),  # 1.5, 1 and 0.5: 0.75 - 0 and 0 - 0.5
    ],
)
def test_colors_are_told_from_their_opposites(
    color: tuple[float, float, float], wanted: tuple[float, float, float]
) -> None:
    pixel = torch.tensor(color, dtype=torch.float64).view(1, 3, 1, 1)
    got = color_opponency(pixel).flatten().tolist()
    assert got == pytest.approx(list(wanted), abs=1e-12)


def test_the_dark_has_no_hue() -> None:
    pixels = torch.zeros(1, 3, 1, 3)
    pixels[0, :, 0, 0] = 1.0
    pixels[0, 0, 0, 1] = 0.29  # its brightness is less than a tenth of the white one's
    pixels[0, 0, 0, 2] = 0.31
    assert color_opponency(pixels)[0, 1, 0].tolist() == pytest.approx([0, 0, 3])


@pytest.mark.parametrize(
    ("size", "grid"),
    [((512, 530), (32, 34)), ((256, 300), (16, 19)), ((255, 257), (32, 33)), ((127, 130), (32, 33)),
     ((28, 60), (7, 15)), ((3, 5), (1, 2)), ((1, 1), (1, 1))],
)  # fmt: skip
def test_small_images_are_seen_on_finer_levels(
    size: tuple[int, int], grid: tuple[int, int]
) -> None:
    assert tuple(conspicuity_maps(torch.zeros(1, 3, *size)).shape) == (1, 3, *grid)


@pytest.mark.parametrize("channel", range(3))
def test_each_map_sees_its_own_feature(channel: int) -> None:
    """Equal bars in five rows of five; one is brighter, or of another hue, or lies across."""
    image = torch.full((1, 3, 160, 160), 0.2)
    for y in range(16, 160, 32):
        for x in range(16, 160, 32):
            odd = (y // 32, x // 32) == (2, 1)
            tall, wide = (4, 12) if odd and channel == 2 else (12, 4)
            color = [0.5, 0.3, 0.4] if odd and channel == 1 else [0.3, 0.5, 0.4]
            bar = torch.tensor(color)[:, None, None] * (2.0 if odd and channel == 0 else 1.0)
            image[0, :, y - tall : y + tall, x - wide : x + wide] = bar
    found = conspicuity_maps(image)[0, channel]
    strongest = divmod(int(found.argmax()), found.shape[1])
    assert [int((place + 0.5) / len(found) * 5) for place in strongest] == [2, 1]
