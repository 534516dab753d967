"""Attention below quadratic cost: Linformer's projections, Reformer's hashes."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from visattn.functional.attention import dot_product_attention
from visattn.functional.masks import key_mask
from visattn.functional.numerics import at_least_float32, without_autocast


def linformer_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    key_projection: Float[Tensor, "r longest"],
    value_projection: Float[Tensor, "_ _"] | None = None,
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n r"] | None]:
    """Return attention to r linear combinations of the keys, optionally with its weights.

    This takes (n + m) r (d + e) multiplications and n r weights instead of n m (d + e) and n m;
    without weights a fused kernel is used. With identity matrices as projections (r = m) it is full
    attention. `weights @ value_projection[:, :m]` is the contribution of each token, which may be
    negative.

    Args:
        queries: Queries.
        keys: Keys.
        values: Values.
        key_projection: Projection of the keys along the sequence, for the maximum sequence length.
        value_projection: Projection of the values; that of the keys if None.
        mask: True = may attend; one row for all queries: `[..., 1, m]`. Padding is zeroed before
            the projection, and a combination of padding only is masked.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return the weights.

    Raises:
        ValueError: If the mask has one row per query (a causal mask would leak, since each
            combination contains keys of all steps), if there are more keys than columns of the
            projection, or if the projections differ in shape.

    Example:
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> linformer_attention(x, x, x, torch.full((1, 2), 0.5))[0]
        tensor([[2.], [2.]])

    Source:
        Wang et al. 2020, arXiv:2006.04768, equation 7. Deviation: a combination of padding only
        is masked.
    """
    count = keys.shape[-2]
    value_projection = key_projection if value_projection is None else value_projection
    _check_projections(count, key_projection, value_projection)
    key_weights = key_projection[:, :count]
    value_weights = value_projection[:, :count]
    valid = None
    if mask is not None:
        allowed = key_mask(mask, "linformer_attention").unsqueeze(-1)
        keys, values = keys.masked_fill(~allowed, 0.0), values.masked_fill(~allowed, 0.0)
        valid = ((key_weights != 0) & allowed.mT).any(-1).unsqueeze(-2)
    projected_keys = key_weights @ keys
    projected_values = value_weights @ values
    return dot_product_attention(
        queries,
        projected_keys,
        projected_values,
        mask=valid,
        scale=scale,
        need_weights=need_weights,
    )


def _check_projections(
    count: int, key_projection: Float[Tensor, "r longest"], value_projection: Float[Tensor, "_ _"]
) -> None:
    if key_projection.shape != value_projection.shape:
        raise ValueError(
            "key_projection and value_projection must have the same shape, "
            f"got {list(key_projection.shape)} and {list(value_projection.shape)}"
        )
    if count > key_projection.shape[1]:
        raise ValueError(
            f"there must be at most {key_projection.shape[1]} keys, one per column of "
            f"key_projection, got {count}; "
            "create the projections for the maximum sequence length"
        )


def lsh_attention(
    queries: Float[Tensor, "*b n d"],
    values: Float[Tensor, "*b n e"],
    buckets: Int[Tensor, "*b r n"],
    *,
    chunk_size: int,
    causal: bool = False,
    mask: Bool[Tensor, "*#b #n #n"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n n"] | None]:
    """Return attention of each token to the tokens of its hash bucket.

    Keys are the queries, normalized to length 1. In each round tokens are sorted by bucket and
    order and split into chunks; a token attends to the tokens of its bucket in its chunk and the
    chunk before. The softmax runs over the union of all rounds. A token attends to itself only if
    there is no other token. With c tokens per chunk and r rounds this takes 2 r n c (d + e)
    multiplications, r n log n to sort, and 2 r n (c + d + e) numbers, instead of n² (d + e) and n².
    One bucket is full attention of the shared vectors, without the diagonal.

    Args:
        queries: Shared queries and keys.
        values: Values.
        buckets: Bucket of each token in each round, from `lsh_buckets`; more rounds miss fewer
            pairs.
        chunk_size: Tokens per chunk; the paper takes 2 n / number of buckets.
        causal: Whether to mask later tokens.
        mask: True = may attend; one row for all queries: `[..., 1, n]`.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return the dense weights, n² numbers. The values are then computed
            from the weights instead of in chunks.

    Raises:
        ValueError: If the chunk size is below 1, or the mask has one row per query.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> values = torch.tensor([[0.0], [2.0], [4.0]])
        >>> lsh_attention(x, values, lsh_buckets(x, 1), chunk_size=3)[0][1]
        tensor([2.])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, equations 2 to 6 and appendix A.
    """
    count = queries.shape[-2]
    flat = at_least_float32(queries).reshape(-1, *queries.shape[-2:])
    factor: float = queries.shape[-1] ** -0.5 if scale is None else scale
    chunks = _split_into_chunks(buckets.reshape(-1, *buckets.shape[-2:]), min(count, chunk_size))
    allowed = torch.ones(queries.shape[:-1], dtype=torch.bool, device=queries.device)
    if mask is not None:
        allowed = allowed & key_mask(mask, "lsh_attention")
    allowed = allowed.reshape(-1, count)
    if need_weights:
        visible = _visible_pairs(chunks, allowed, causal=causal).reshape(*queries.shape[:-1], count)
        return dot_product_attention(
            queries,
            normalize(queries, dim=-1),
            values,
            mask=visible,
            scale=factor,
            need_weights=True,
        )
    float_values = at_least_float32(values).reshape(-1, *values.shape[-2:])
    with without_autocast(values.device):
        output = _chunked_attention(
            flat, float_values, chunks, allowed, causal=causal, scale=factor
        )
    return output.reshape(values.shape).to(values.dtype), None


def lsh_buckets(
    vectors: Float[Tensor, "*b n d"], num_buckets: int, *, num_rounds: int = 1, seed: int = 0
) -> Int[Tensor, "*b {num_rounds} n"]:
    """Return the bucket of each vector in each round: the nearest signed axis after a rotation.

    The length of a vector does not matter.

    Args:
        num_buckets: Number of buckets: 1 or an even number.

    Raises:
        ValueError: If the number of buckets is neither 1 nor even, or there is no round.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]])
        >>> lsh_buckets(x, 2)  # two of the same direction, one opposite
        tensor([[0, 0, 1]])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, section 2; Andoni et al. 2015, arXiv:1509.02897.
    """
    if num_buckets < 1 or (num_buckets > 1 and num_buckets % 2) or num_rounds < 1:
        raise ValueError(
            "num_buckets must be 1 or an even number, and num_rounds at least 1, "
            f"got num_buckets={num_buckets}, num_rounds={num_rounds}"
        )
    if num_buckets == 1:
        zeros = torch.zeros_like(vectors[..., 0], dtype=torch.long)
        return zeros.unsqueeze(-2).expand(*zeros.shape[:-1], num_rounds, -1)
    random = torch.Generator().manual_seed(seed)
    rotations = torch.randn(num_rounds, vectors.shape[-1], num_buckets // 2, generator=random)
    rotated = at_least_float32(vectors.detach()).unsqueeze(-3)
    with without_autocast(vectors.device):
        rotated = rotated @ rotations.to(rotated)
    return torch.cat((rotated, -rotated), -1).argmax(-1)


@dataclass(frozen=True)
class LSHChunks:
    """Tokens sorted by bucket and split into chunks.

    Args:
        buckets: Bucket of each token in each round.
        slots: Rank of each token in the sorted order.
        chunk: Tokens per chunk.
        queries: Tokens of each chunk; -1 is padding.
        keys: Tokens of the chunk before and of the chunk.
    """

    buckets: Int[Tensor, "b r n"]
    slots: Int[Tensor, "b r n"]
    chunk: int
    queries: Int[Tensor, "b r k l"]
    keys: Int[Tensor, "b r k m"]


def _split_into_chunks(buckets: Int[Tensor, "b r n"], chunk: int) -> LSHChunks:
    if chunk < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk}")
    # Tokens of one bucket stand together after sorting, and are cut into chunks of one size, since
    # buckets are not. A bucket may go on in the next chunk: each chunk sees the one before as well.
    #
    #     token     0 1 2 3 4 5      order    1 4 | 0 3 | 2 5        chunks of 2
    #     bucket    1 0 2 1 0 2      keys   - - 1 4 | 1 4 0 3 | 0 3 2 5
    count = buckets.shape[-1]
    order = buckets.argsort(stable=True, dim=-1)
    padding = order.new_full((*order.shape[:-1], -count % chunk), -1)
    queries = torch.cat((order, padding), -1)
    queries = queries.reshape(*order.shape[:2], -1, chunk)
    previous = torch.cat((torch.full_like(queries[:, :, :1], -1), queries[:, :, :-1]), 2)
    keys = torch.cat((previous, queries), -1)
    # The argsort of an order is its inverse: the slot of each token.
    return LSHChunks(buckets, order.argsort(-1), chunk, queries, keys)


def _visible_pairs(
    chunks: LSHChunks, allowed: Bool[Tensor, "b n"], *, causal: bool
) -> Bool[Tensor, "b n n"]:
    """Return the pairs of tokens that attend in any round; the diagonal only as a fallback."""
    chunk = chunks.slots // chunks.chunk
    distance = chunk.unsqueeze(-1) - chunk.unsqueeze(-2)
    visible = (chunks.buckets.unsqueeze(-1) == chunks.buckets.unsqueeze(-2)) & (distance >= 0)
    visible = (visible & (distance <= 1)).any(1) & allowed.unsqueeze(-2)
    visible = visible.tril() if causal else visible
    diagonal = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    others = visible & ~diagonal
    return others | (diagonal & visible & ~others.any(-1, keepdim=True))


def _chunked_attention(
    shared: Float[Tensor, "b n d"],
    values: Float[Tensor, "b n e"],
    chunks: LSHChunks,
    allowed: Bool[Tensor, "b n"],
    *,
    causal: bool,
    scale: float,
) -> Float[Tensor, "b n e"]:
    visible, num_rounds = _visible_in_chunks(chunks, allowed, causal=causal)
    queries = _gather_vectors(shared, chunks.queries)
    keys = _gather_vectors(normalize(shared, dim=-1), chunks.keys)
    scores = (queries @ keys.mT * scale).masked_fill(~visible, -torch.inf)
    # With the same maximum in all rounds the sums of the rounds can be added.
    maximum = _by_token(scores.detach().amax(-1, keepdim=True), chunks).amax(1)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0.0)
    # A pair that shares a chunk in two rounds stands in both: each gives half of its weight.
    weights = (scores - _gather_vectors(maximum, chunks.queries)).exp() / num_rounds
    total = _by_token(weights.sum(-1, keepdim=True), chunks).sum(1)
    weighted = _by_token(weights @ _gather_vectors(values, chunks.keys), chunks).sum(1)
    alone = total == 0
    own = values.masked_fill(~allowed.unsqueeze(-1), 0.0)
    return torch.where(alone, own, weighted / total.masked_fill(alone, 1.0))


def _visible_in_chunks(
    chunks: LSHChunks, allowed: Bool[Tensor, "b n"], *, causal: bool
) -> tuple[Bool[Tensor, "b r k l m"], Int[Tensor, "b r k l m"]]:
    """Return the visible pairs of each round, and the number of rounds in which each is visible."""
    query = chunks.queries.unsqueeze(-1)
    key = chunks.keys.unsqueeze(-2)
    count = torch.zeros_like(query * key)
    visible = torch.ones_like(count, dtype=torch.bool)
    for hash_round in range(chunks.buckets.shape[1]):
        # Tokens that stand together in one round may do so in others: each round looks at the pairs
        # of all, so that a pair that would count twice is known.
        bucket = chunks.buckets[:, hash_round]
        chunk = chunks.slots[:, hash_round] // chunks.chunk
        distance = _pair_differences(chunk, chunks)
        pairs = (_pair_differences(bucket, chunks) == 0) & (distance >= 0) & (distance <= 1)
        count = count + pairs
        visible[:, hash_round] = pairs[:, hash_round]
    visible = visible & (key >= 0) & (query >= 0) & (query != key)
    visible = visible & _gather_numbers(allowed, chunks.keys).unsqueeze(-2)
    return (visible & (key <= query) if causal else visible), count.clamp(min=1)


def _pair_differences(numbers: Int[Tensor, "b n"], chunks: LSHChunks) -> Int[Tensor, "b r k l m"]:
    """Return the number of each query minus that of each key of its chunk."""
    queries = _gather_numbers(numbers, chunks.queries).unsqueeze(-1)
    return queries - _gather_numbers(numbers, chunks.keys).unsqueeze(-2)


def _gather_numbers(numbers: Tensor, tokens: Int[Tensor, "b r k l"]) -> Tensor:
    """Return the number of each token; arbitrary for padding."""
    return numbers.gather(1, tokens.flatten(1).clamp(min=0)).view_as(tokens)


def _gather_vectors(
    vectors: Float[Tensor, "b n d"], tokens: Int[Tensor, "b r k l"]
) -> Float[Tensor, "b r k l d"]:
    """Return the vector of each token; arbitrary for padding."""
    flat = tokens.flatten(1).clamp(min=0).unsqueeze(-1).expand(-1, -1, vectors.shape[-1])
    return vectors.gather(1, flat).reshape(*tokens.shape, vectors.shape[-1])


def _by_token(vectors: Float[Tensor, "b r k l d"], chunks: LSHChunks) -> Float[Tensor, "b r n d"]:
    """Return vectors of chunks in the order of the tokens."""
    slots = chunks.slots.unsqueeze(-1).expand(-1, -1, -1, vectors.shape[-1])
    return vectors.flatten(2, 3).gather(2, slots)
