"""GridPlacement of cells: centers, boxes, other input sizes, and geometries that take it in."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.geometry.affine import Geometry
from visattn.geometry.placement import GridPlacement

HALF_CELL = GridPlacement.from_centers((0.5, 0.5), (8.0, 8.0), (5, 7), (40, 56))


def test_centers_and_extent_of_a_network_that_moves_by_half_a_cell() -> None:
    assert HALF_CELL.extent == (-3.5, -3.5, 52.5, 36.5)
    rows, columns = HALF_CELL.centers((5, 7))
    torch.testing.assert_close(rows, torch.arange(5).double() * 8 + 0.5)
    torch.testing.assert_close(columns, torch.arange(7).double() * 8 + 0.5)
    assert HALF_CELL.shift((5, 7)) == (-3.5 / 8, -3.5 / 8)
    # the last 3.5 pixels lie less than half a cell beyond the cells
    assert HALF_CELL.covered is None


def test_a_map_covers_half_a_cell_around_its_cells_and_nothing_that_they_do_not_see() -> None:
    crop = GridPlacement.from_centers(
        (14.0, 18.0), (4.0, 4.0), (4, 4), (40, 40), visible=(16, 12, 32, 28)
    )
    assert crop.extent == crop.covered == (16, 12, 32, 28)
    unpadded = GridPlacement.from_centers((10.0, 10.0), (4.0, 4.0), (5, 5), (36, 36))
    assert (unpadded.extent, unpadded.covered) == ((8, 8, 28, 28), (6, 6, 30, 30))
    geometry = Geometry.identity((36, 36)).with_placement(unpadded)
    assert geometry.region == (6, 6, 30, 30)


@given(
    st.tuples(st.floats(-20, 20), st.floats(-20, 20)),
    st.tuples(st.floats(0.5, 16), st.floats(0.5, 16)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_a_geometry_carries_the_center_of_each_cell_to_its_receptive_field(
    start: tuple[float, float], step: tuple[float, float], grid: tuple[int, int]
) -> None:
    network = Geometry.identity((90, 130)).resized((60, 70)).cropped(4, 6, (53, 59)).flipped()
    placement = GridPlacement.from_centers(start, step, grid, (53, 59))
    cells = network.with_placement(placement)
    rows, columns = placement.centers(grid)
    stretched = torch.tensor(
        [(59 * (grid[1] - 0.5)) / grid[1], (53 * 0.5) / grid[0]], dtype=torch.float64
    )
    center = torch.stack((columns[-1], rows[0]))
    torch.testing.assert_close(cells.to_image(stretched[None]), network.to_image(center[None]))
    torch.testing.assert_close(
        torch.tensor(cells.from_edges().matrix), torch.tensor(network.matrix), atol=1e-4, rtol=1e-4
    )


def test_cells_from_edge_to_edge_change_no_bit() -> None:
    network = Geometry.identity((91, 133)).resized((61, 71)).cropped(3, 5, (56, 64))
    cells = network.with_placement(GridPlacement.edges((56, 64)))
    assert (cells.matrix, cells.region) == (network.matrix, network.region)


def test_geometries_of_maps_take_no_further_steps() -> None:
    cells = Geometry.identity((40, 56)).with_placement(HALF_CELL)
    steps: list[Any] = [
        lambda: cells.flipped(),
        lambda: cells.resized((20, 28)),
        lambda: cells.with_placement(HALF_CELL),
        lambda: cells.then(Geometry.identity((40, 56))),
    ]
    for step in steps:
        with pytest.raises(ValueError, match="place the cells last"):
            step()


def test_placements_follow_the_size_of_the_input_and_survive_json() -> None:
    double = Geometry.identity((80, 112)).with_placement(HALF_CELL)
    single = Geometry.identity((40, 56)).with_placement(HALF_CELL)
    torch.testing.assert_close(
        double.to_image(torch.tensor([[16.0, 32.0]])),
        2 * single.to_image(torch.tensor([[8.0, 16.0]])),
    )
    crop = GridPlacement.from_centers((14.0, 18.0), (4.0, 4.0), (4, 4), (40, 40), spread=(1.0, 0.5))
    geometry = Geometry.identity((40, 40)).with_placement(crop)
    assert Geometry.from_dict(geometry.to_dict()) == geometry
    assert "placement" not in Geometry.identity((3, 5)).to_dict()
    with pytest.raises(ValueError, match="not a placement"):
        GridPlacement.from_dict({"extent": [0, 0, 1], "input_size": [3, 5]})
    with pytest.raises(ValueError, match="must cover"):
        GridPlacement((1.0, 2.0, 1.0, 3.0), (3, 5))


def test_boxes_are_measured_in_cells() -> None:
    # in cells: (pixel + 3.5) / 8 of 7 columns and 5 rows
    boxes = torch.tensor([[4.5, 12.5, 20.5, 28.5], [53.0, 37.5, 55.0, 39.5], [0.0, 0.0, 0.0, 0.0]])
    shares = boxes / torch.tensor([56.0, 40.0, 56.0, 40.0])
    expected = torch.tensor(
        [
            [1 / 7, 2 / 5, 3 / 7, 4 / 5],
            [1 - 2 / 56, 1 - 2 / 40, 1.0, 1.0],  # beyond the last cells: they count for these
            [0.0, 0.0, 0.0, 0.0],
        ]
    )
    torch.testing.assert_close(HALF_CELL.boxes_to_cells(shares), expected)


def test_a_measured_center_stays_between_the_branches() -> None:
    branches = GridPlacement.from_centers(
        (6.0, 6.0), (16.0, 16.0), (4, 4), (64, 64), spread=(8.0, 8.0), visible=(0, 0, 60, 60)
    )
    moved = branches.moved_to((2, 2), (4, 4), (41.0, 99.0))
    assert moved.centers((4, 4))[0][2] == 41
    assert moved.centers((4, 4))[1][2] == 38 + 8
    assert moved.evidence == "gradient"


def test_what_cells_see_moves_with_them_and_stays_on_the_input() -> None:
    cut = GridPlacement((8.0, 8.0, 40.0, 24.0), (40, 56), (8.0, 1.0, 55.0, 24.0), spread=(3.0, 3.0))
    moved = cut.moved_to((0, 0), (4, 8), (8.0, 12.0))  # measured 2 pixels up and 2 to the right
    assert moved.extent == (10, 6, 42, 22)
    assert moved.covered == (10, 0, 56, 22)
