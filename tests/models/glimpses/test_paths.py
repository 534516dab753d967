"""Random and raster scanpaths."""

import pytest
import torch

from visattn.models.glimpses.retina import random_scanpaths, raster_scanpaths


def test_random_locations_are_uniform() -> None:
    paths = random_scanpaths(2000, 5, torch.Generator().manual_seed(0))
    assert paths.min() >= -1
    assert paths.max() <= 1
    counts = torch.histc(paths[..., 0], 10, -1, 1), torch.histc(paths[..., 1], 10, -1, 1)
    for histogram in counts:
        assert float(((histogram - 1000) ** 2 / 1000).sum()) < 27.9  # chi-square of 9, p = 0.001
    flat = paths.flatten(0, 1)
    assert abs(float(flat.prod(-1).mean())) < 4 * (1 / 3) / 100  # x and y are independent
    assert abs(float((paths[:, 0] * paths[:, 1]).mean())) < 4 * (1 / 3) / 2000**0.5


def test_random_scanpaths_depend_on_the_generator_only() -> None:
    state = torch.get_rng_state()
    first, second = (random_scanpaths(3, 4, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("glimpses", range(1, 14))
def test_raster_scans_row_by_row(glimpses: int) -> None:
    path = raster_scanpaths(3, glimpses)
    assert path.shape == (3, glimpses, 2)
    assert torch.equal(path[0], path[2])
    assert path.abs().max() < 1
    places = [tuple(place) for place in path[0].tolist()]
    assert places == sorted(places, key=lambda place: (place[1], place[0]))
    assert len(set(places)) == glimpses
    rows = [[x for x, y in places if y == row] for row in sorted({y for _, y in places})]
    lengths = [len(row) for row in rows]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1
    assert abs(len(rows) - lengths[0]) <= 1  # about as many of both
    for row in rows:  # each is spread over the whole width
        assert row == pytest.approx([(2 * i + 1) / len(row) - 1 for i in range(len(row))])


def test_six_locations_form_two_rows_of_three() -> None:
    rows = raster_scanpaths(1, 6)[0].view(2, 3, 2)
    assert rows[..., 1].tolist() == [[-0.5] * 3, [0.5] * 3]
