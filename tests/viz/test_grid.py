"""Grids of tiles of any aspect ratio and number."""

from hypothesis import given, strategies as st

from visattn.viz.tiles import GAP, MARGIN, compute_tile_grid

SIZES = st.tuples(st.integers(1, 9000), st.integers(1, 9000)).filter(
    lambda size: max(size) <= 100 * min(size)
)


@given(size=SIZES, count=st.integers(2, 41), width=st.integers(480, 3000))
def test_tiles_fit_and_keep_their_aspect_ratio(
    size: tuple[int, int], count: int, width: int
) -> None:
    grid = compute_tile_grid(size, count, width)
    tall, wide = grid.tile_size
    assert grid.columns * grid.rows >= count > grid.columns * (grid.rows - 1)
    assert 2 * MARGIN + grid.columns * grid.cell_width + (grid.columns - 1) * GAP <= width
    assert 1 <= wide <= grid.cell_width
    assert 1 <= tall <= 420
    slack = 0.51 + 0.51 * max(tall / size[0], wide / size[1]) / min(tall / size[0], wide / size[1])
    assert abs(wide - tall * size[1] / size[0]) <= max(slack * size[1] / size[0], slack)


def test_tile_size_decreases_with_the_number_of_tiles() -> None:
    heights = [compute_tile_grid((3, 4), count, 1200).tile_size[0] for count in (2, 7, 13, 25, 41)]
    assert heights == sorted(heights, reverse=True)
    assert 300 < heights[0] < 360
    assert heights[-1] > 100
