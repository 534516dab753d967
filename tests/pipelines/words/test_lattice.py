"""Lattices of tokens whose positions are worked out by hand."""

import pytest
import torch

from visattn.pipelines.words.lattice import LatticeAxis, TokenMoments, find_lattices


@pytest.mark.parametrize(
    ("begin", "other"),
    [((0, 0), (34, 34)), ((34, 0), (0, 34)), ((0, 0), (34, 0)), ((0, 34), (0, 0))],
    ids=["falling diagonal", "rising diagonal", "side by side", "upwards"],
)
def test_quarters_that_share_no_grid_are_lattices_of_their_own(
    begin: tuple[int, int], other: tuple[int, int]
) -> None:
    """3 x 3 tokens of 10 pixels each; 34 pixels are no whole number of them."""
    y, x = torch.meshgrid(torch.arange(3.0), torch.arange(3.0), indexing="ij")
    centers = torch.stack([x, y], -1).flatten(0, 1).double() * 10 + 5
    mean = torch.cat([centers + torch.tensor(each) for each in (begin, other)])
    extent = torch.full((18, 2), 10.0).double()
    moments = TokenMoments(torch.arange(18), torch.ones(18), mean, extent)
    lattices = find_lattices(moments, (64, 64))
    members = [each.members.tolist() for each in lattices]
    assert members == [list(range(9)), list(range(9, 18))]
    for lattice, (left, top) in zip(lattices, (begin, other), strict=True):
        assert lattice.axes == (LatticeAxis(left, 10.0, 3), LatticeAxis(top, 10.0, 3))
