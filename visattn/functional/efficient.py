"""Attention below quadratic cost: neighborhoods, rows and columns, Linformer, Reformer.

Each function takes queries, keys and values of n tokens, and returns the output and, on request,
the full matrix of weights, zero where a token does not attend. Full attention takes n² (d + e)
multiplications.
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import normalize, pad

from visattn.functional.attention import dot_product_attention
from visattn.functional.numerics import at_least_float32, without_autocast

Output = tuple[Tensor, Tensor | None]


def neighborhood_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b n d"],
    values: Float[Tensor, "*b n e"],
    grid: tuple[int, int],
    *,
    kernel_size: int,
    need_weights: bool = False,
) -> Output:
    """Return attention of each cell of a grid to the square neighborhood around it.

    All neighborhoods have the same size k × k; near a border they shift inwards. This takes
    n k² (d + e) multiplications. With a neighborhood as large as the grid this is full attention.

    Example:
        >>> x = torch.tensor([[0.0], [3.0], [6.0], [9.0]])
        >>> neighborhood_attention(0 * x, 0 * x, x, (1, 4), kernel_size=3)[0].flatten()
        tensor([3., 3., 6., 6.])

    Source:
        Hassani et al. 2023, arXiv:2204.07143, equations 1 to 3. Deviation: no relative position
        bias.
    """
    rows, columns = (_nearest(size, kernel_size, queries.device) for size in grid)
    cells = rows[:, None, :, None] * grid[1] + columns[None, :, None, :]  # y x, k k
    cells = cells.flatten(2).flatten(0, 1)  # n k²: the keys of each query
    near = (
        torch.unflatten(part.index_select(-2, cells.flatten()), -2, cells.shape)
        for part in (keys, values)
    )
    output, weights = dot_product_attention(queries.unsqueeze(-2), *near, need_weights=need_weights)
    if weights is None:
        return output.squeeze(-2), None
    dense = weights.new_zeros(*queries.shape[:-1], len(cells))
    cells = cells.expand(*dense.shape[:-1], -1)
    return output.squeeze(-2), dense.scatter(-1, cells, weights.squeeze(-2))


def _nearest(size: int, kernel: int, device: torch.device) -> Int[Tensor, "size k"]:
    """Return the k nearest positions of each position of an axis."""
    first = torch.arange(size, device=device) - kernel // 2
    first = first.clamp(0, max(size - kernel, 0))
    return first[:, None] + torch.arange(min(kernel, size), device=device)


def strided_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b n d"],
    values: Float[Tensor, "*b n e"],
    grid: tuple[int, int],
    *,
    need_weights: bool = False,
) -> Output:
    """Return attention of each cell of a grid to its row and its column.

    On a grid of y × x cells this takes n (y + x) (d + e) multiplications. Two layers connect all
    cells.

    Example:
        >>> x = torch.tensor([[0.0], [3.0], [6.0], [9.0]])
        >>> strided_attention(0 * x, 0 * x, x, (2, 2))[0].flatten()
        tensor([3., 4., 5., 6.])

    Source:
        Child et al. 2019, arXiv:1904.10509, section 4.3, with the width of the image as stride.
        Deviations: one softmax over both parts, and no causal mask.
    """
    q, k, v = (torch.unflatten(part, -2, grid) for part in (queries, keys, values))  # *b y x d
    down_q, down_k, down_v = (part.transpose(-3, -2) for part in (q, k, v))  # *b x y d
    itself = torch.eye(grid[0], dtype=torch.bool, device=q.device)  # already part of the row
    columns = (down_q @ down_k.mT).masked_fill(itself, -torch.inf).transpose(-3, -2)
    weights = (torch.cat((q @ k.mT, columns), -1) * q.shape[-1] ** -0.5).softmax(-1)
    rows, columns = weights[..., : grid[1]], weights[..., grid[1] :]  # *b y x, x and *b y x, y
    output = rows @ v + (columns.transpose(-3, -2) @ down_v).transpose(-3, -2)
    if not need_weights:
        return output.flatten(-3, -2), None
    dense = rows.new_zeros(*rows.shape[:-1], *grid)  # *b y x, y x
    dense.diagonal(0, -4, -2).copy_(rows.movedim(-3, -1))
    dense.diagonal(0, -3, -1).add_(columns.movedim(-2, -1))
    return output.flatten(-3, -2), dense.flatten(-4, -3).flatten(-2)


def linformer_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    projection: Float[Tensor, "*#b r m"],
    *,
    need_weights: bool = False,
) -> Output:
    """Return attention to r linear combinations of all keys.

    This takes (n + m) r (d + e) multiplications. The weights `[n, r]` are over these combinations,
    not over tokens. With the identity as projection this is full attention.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> linformer_attention(x, x, x, torch.full((1, 2), 0.5))[0]
        tensor([[2.], [2.]])

    Source:
        Wang et al. 2020, arXiv:2006.04768, equation 7, with one projection for keys and values
        ("key-value sharing").
    """
    return dot_product_attention(
        queries, projection @ keys, projection @ values, need_weights=need_weights
    )


_ITSELF = -1e5  # score of a token for itself: its weight is 0 unless it is alone


def lsh_attention(
    queries: Float[Tensor, "*b n d"],
    values: Float[Tensor, "*b n e"],
    buckets: Int[Tensor, "*b r n"],
    *,
    chunk_size: int,
    need_weights: bool = False,
) -> Output:
    """Return attention of each token to the tokens of its hash bucket.

    Keys are the queries, normalized to length 1. In each of r rounds, tokens are sorted by bucket
    and split into chunks of c; a token attends to the tokens of its bucket in its chunk and in the
    previous one. The softmax runs over the union of all rounds. A token attends to itself only if
    there is no other. This takes 2 r n c (d + e) multiplications, and r n log n steps of sorting.

    Args:
        queries: Shared queries and keys.
        values: Values.
        buckets: Bucket of each token in each round, from `lsh_buckets`; more rounds miss fewer
            pairs.
        chunk_size: Tokens per chunk; the paper takes 2 n / number of buckets.
        need_weights: Whether to return the weights; the output is then computed from them.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> values = torch.tensor([[0.0], [2.0], [4.0]])
        >>> lsh_attention(x, values, torch.zeros(1, 3, dtype=torch.long), chunk_size=3)[0][1]
        tensor([2.])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, equations 2 to 6 and appendix A.
    """
    if queries.ndim != 3:  # flatten all batch axes into one
        output, weights = lsh_attention(
            *(part.reshape(-1, *part.shape[-2:]) for part in (queries, values, buckets)),
            chunk_size=chunk_size,
            need_weights=need_weights,
        )
        rows = None if weights is None else weights.reshape(*queries.shape[:-1], -1)
        return output.reshape(values.shape), rows
    keys = normalize(queries, dim=-1)
    # After sorting, tokens of one bucket are adjacent. Buckets differ in size, chunks do not: a
    # bucket may continue in the next chunk, so that each chunk also attends to the previous one.
    #
    #     token     0 1 2 3 4 5      order    1 4 | 0 3 | 2 5        chunks of 2
    #     bucket    1 0 2 1 0 2      keys   - - 1 4 | 1 4 0 3 | 0 3 2 5
    order = buckets.argsort(stable=True, dim=-1)
    slots = order.argsort(-1)
    places = torch.stack((buckets, slots // chunk_size), -1).transpose(1, 2)
    if need_weights:
        seen = _meet(places[:, :, None], places[:, None]).any(-1)
        itself = _ITSELF * torch.eye(len(seen[0]), device=seen.device)
        return dot_product_attention(
            queries, keys, values, mask=seen, bias=itself, need_weights=True
        )
    padded = pad(order, (0, -order.shape[-1] % chunk_size), value=-1)
    rows = torch.unflatten(padded, -1, (-1, chunk_size))
    columns = torch.cat((pad(rows[:, :, :-1], (0, 0, 1, 0), value=-1), rows), -1)
    pairs = rows[..., None] == columns[..., None, :]
    # [b r chunks queries keys rounds]: whether they meet in each round, to count rounds below
    meets = _meet(
        _take(places, rows)[..., :, None, :, :], _take(places, columns)[..., None, :, :, :]
    )
    seen = meets.diagonal(dim1=1, dim2=-1).movedim(-1, 1) & (columns >= 0)[..., None, :]
    seen = seen | (rows < 0)[..., None]  # padding attends to anything, to avoid NaN
    with without_autocast(values.device):
        shared, wide = at_least_float32(queries), at_least_float32(values)
        scores = _take(shared, rows) @ _take(normalize(shared, dim=-1), columns).mT
        # A pair that meets in several rounds counts once in total.
        scores = scores * queries.shape[-1] ** -0.5 - meets.sum(-1).clamp(min=1).to(scores).log()
        scores = scores.masked_fill(pairs, _ITSELF).masked_fill(~seen, -torch.inf)
        outputs = scores.softmax(-1) @ _take(wide, columns)
        outputs, sums = (
            part.flatten(2, 3).gather(2, slots[..., None].expand(-1, -1, -1, part.shape[-1]))
            for part in (outputs, scores.logsumexp(-1, keepdim=True))
        )
        return (sums.softmax(1) * outputs).sum(1).to(values.dtype), None


def _meet(rows: Int[Tensor, "*#b r 2"], columns: Int[Tensor, "*#b r 2"]) -> Bool[Tensor, "*b r"]:
    """Return in which rounds tokens at some (bucket, chunk) attend to others."""
    bucket, chunk = (rows - columns).unbind(-1)
    return (bucket == 0) & (chunk >= 0) & (chunk <= 1)


def _take(
    tokens: Shaped[Tensor, "b n *c"], index: Int[Tensor, "b r k l"]
) -> Shaped[Tensor, "b r k l *c"]:
    """Return the tokens at indices; for padding (-1), an arbitrary one."""
    first = torch.arange(len(index), device=index.device) * tokens.shape[1]
    flat = (index.clamp(min=0).flatten(1) + first[:, None]).flatten()
    return torch.unflatten(tokens.flatten(0, 1).index_select(0, flat), 0, index.shape)


def lsh_buckets(
    vectors: Float[Tensor, "*b n d"], rotations: Float[Tensor, "r d h"]
) -> Int[Tensor, "*b r n"]:
    """Return the bucket of each vector in each round: the nearest signed axis after a rotation.

    There are 2 h buckets; the length of a vector does not matter.

    Args:
        vectors: Vectors.
        rotations: Normally distributed random numbers, for h directions in each round.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]])
        >>> lsh_buckets(x, torch.ones(1, 2, 1))  # two in the same direction, one opposite
        tensor([[0, 0, 1]])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, section 2; Andoni et al. 2015, arXiv:1509.02897.
    """
    with without_autocast(vectors.device):
        wide = at_least_float32(vectors.detach()).unsqueeze(-3)
        rotated = wide @ rotations.to(wide)
    return torch.cat((rotated, -rotated), -1).argmax(-1)
