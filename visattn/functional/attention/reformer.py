"""Attention inside buckets of places that are alike, found by hashing (Reformer)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from visattn.functional.attention.masks import mask_of_keys
from visattn.functional.attention.softmax import attention
from visattn.functional.numerics import at_least_float32, without_autocast


def hash_attention(
    shared: Float[Tensor, "*b n d"],
    values: Float[Tensor, "*b n e"],
    *,
    buckets: int,
    rounds: int = 1,
    chunk: int | None = None,
    seed: int = 0,
    causal: bool = False,
    mask: Bool[Tensor, "*#b #n #n"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n n"] | None]:
    """Return attention of each place to those that were hashed into its bucket.

    Queries and keys are the same vectors, keys of length one. In each round places are sorted by
    bucket, then by order, and cut into chunks; a place sees what shares its bucket in its own chunk
    and the one before. The softmax runs over what it saw in any round, each place once. It sees
    itself only if it sees nothing else. With c places a chunk and r rounds it takes 2 r n c (d + e)
    multiplications, r n log n to sort, and 2 r n (c + d + e) numbers, instead of n² (d + e) and n².
    One bucket is full attention of the shared vectors, without the diagonal.

    Args:
        shared: What is looked for, and compared with it.
        values: What is given.
        buckets: How many there are: 1, or an even number.
        rounds: How often everything is hashed; more rounds miss less.
        chunk: Places in a chunk; 2 n / buckets, rounded up, if None, and at most n.
        seed: Of the random rotations: the same seed gives the same buckets on every device.
        causal: Whether no place sees what comes after it.
        mask: Which keys may be attended to, one row for all queries: `[..., 1, n]`.
        scale: Factor of the products; 1 / sqrt(d) if None.
        need_weights: Whether to compute the weights, n² numbers that are zero where nothing was
            seen. There is no fused kernel for chunks; with weights the values come from them.

    Raises:
        ValueError: If buckets are odd, rounds or chunk below 1, or the mask has a row per query.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> hash_attention(x, torch.tensor([[0.0], [2.0], [4.0]]), buckets=1)[0][1]
        tensor([2.])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, equations 2 to 6 and appendix A.
    """
    count = shared.shape[-2]
    flat = at_least_float32(shared).reshape(-1, *shared.shape[-2:])
    found = hash_buckets(flat, buckets, rounds=rounds, seed=seed)
    length = min(count, -(-2 * count // buckets) if chunk is None else chunk)
    factor: float = shared.shape[-1] ** -0.5 if scale is None else scale
    hashed = _sorted(found, length)
    allowed = torch.ones(shared.shape[:-1], dtype=torch.bool, device=shared.device)
    if mask is not None:
        allowed = allowed & mask_of_keys(mask, "hash_attention")
    allowed = allowed.reshape(-1, count)
    if need_weights:
        visible = _visible(hashed, allowed, causal=causal).reshape(*shared.shape[:-1], count)
        return attention(
            shared, normalize(shared, dim=-1), values, mask=visible, scale=factor, need_weights=True
        )
    given = at_least_float32(values).reshape(-1, *values.shape[-2:])
    with without_autocast(values.device):
        seen = _seen_in_chunks(flat, given, hashed, allowed, causal=causal, scale=factor)
    return seen.reshape(values.shape).to(values.dtype), None


def hash_buckets(
    vectors: Float[Tensor, "*b n d"], buckets: int, *, rounds: int = 1, seed: int = 0
) -> Int[Tensor, "*b {rounds} n"]:
    """Return the bucket of each vector in each round: the axis that it is nearest to, once turned.

    The length of a vector does not matter.

    Args:
        vectors: What is hashed.
        buckets: How many there are: 1, or an even number, since each axis points both ways.
        rounds: How many random rotations there are.
        seed: Of these.

    Raises:
        ValueError: If buckets are neither 1 nor even, or there is no round.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]])
        >>> hash_buckets(x, 2)  # two alike, one opposite
        tensor([[0, 0, 1]])

    Source:
        Kitaev et al. 2020, arXiv:2001.04451, section 2; Andoni et al. 2015, arXiv:1509.02897.
    """
    if buckets < 1 or (buckets > 1 and buckets % 2) or rounds < 1:
        raise ValueError(
            "buckets must be 1 or an even number, and rounds at least 1, "
            f"got buckets={buckets}, rounds={rounds}"
        )
    if buckets == 1:
        none = torch.zeros_like(vectors[..., 0], dtype=torch.long)
        return none.unsqueeze(-2).expand(*none.shape[:-1], rounds, -1)
    random = torch.Generator().manual_seed(seed)
    turns = torch.randn(rounds, vectors.shape[-1], buckets // 2, generator=random)
    turned = at_least_float32(vectors.detach()).unsqueeze(-3)
    with without_autocast(vectors.device):
        turned = turned @ turns.to(turned)
    return torch.cat((turned, -turned), -1).argmax(-1)


@dataclass(frozen=True)
class HashedPlaces:
    """Which places meet in which chunks.

    Args:
        buckets: Of each place, in each round.
        slots: Where each place stands once they are sorted.
        chunk: Places in a chunk.
        queries: The places of each chunk; -1 fills the last one up.
        keys: Those of the chunk before, and the same again.
    """

    buckets: Int[Tensor, "b r n"]
    slots: Int[Tensor, "b r n"]
    chunk: int
    queries: Int[Tensor, "b r k l"]
    keys: Int[Tensor, "b r k m"]


def _sorted(buckets: Int[Tensor, "b r n"], chunk: int) -> HashedPlaces:
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    count = buckets.shape[-1]
    order = buckets.argsort(stable=True, dim=-1)
    filling = order.new_full((*order.shape[:-1], -count % chunk), -1)
    queries = torch.cat((order, filling), -1)
    queries = queries.reshape(*order.shape[:2], -1, chunk)
    before = torch.cat((torch.full_like(queries[:, :, :1], -1), queries[:, :, :-1]), 2)
    keys = torch.cat((before, queries), -1)
    return HashedPlaces(buckets, order.argsort(-1), chunk, queries, keys)


def _visible(
    hashed: HashedPlaces, allowed: Bool[Tensor, "b n"], *, causal: bool
) -> Bool[Tensor, "b n n"]:
    """Return which places each place sees in any round; itself only if none other."""
    chunks = hashed.slots // hashed.chunk
    behind = chunks.unsqueeze(-1) - chunks.unsqueeze(-2)
    met = (hashed.buckets.unsqueeze(-1) == hashed.buckets.unsqueeze(-2)) & (behind >= 0)
    met = (met & (behind <= 1)).any(1) & allowed.unsqueeze(-2)
    met = met.tril() if causal else met
    itself = torch.eye(met.shape[-1], dtype=torch.bool, device=met.device)
    others = met & ~itself
    return others | (itself & met & ~others.any(-1, keepdim=True))


def _seen_in_chunks(
    shared: Float[Tensor, "b n d"],
    values: Float[Tensor, "b n e"],
    hashed: HashedPlaces,
    allowed: Bool[Tensor, "b n"],
    *,
    causal: bool,
    scale: float,
) -> Float[Tensor, "b n e"]:
    seen, often = _met_in_chunks(hashed, allowed, causal=causal)
    scores = _at(shared, hashed.queries) @ _at(normalize(shared, dim=-1), hashed.keys).mT * scale
    scores = scores.masked_fill(~seen, -torch.inf)
    # One maximum per place, the same in all rounds, lets their sums be added as they are.
    highest = _by_place(scores.detach().amax(-1, keepdim=True), hashed).amax(1)
    highest = highest.masked_fill(highest == -torch.inf, 0.0)
    weights = (scores - _at(highest, hashed.queries)).exp() / often
    total = _by_place(weights.sum(-1, keepdim=True), hashed).sum(1)
    summed = _by_place(weights @ _at(values, hashed.keys), hashed).sum(1)
    lonely = total == 0
    own = values.masked_fill(~allowed.unsqueeze(-1), 0.0)
    return torch.where(lonely, own, summed / total.masked_fill(lonely, 1.0))


def _met_in_chunks(
    hashed: HashedPlaces, allowed: Bool[Tensor, "b n"], *, causal: bool
) -> tuple[Bool[Tensor, "b r k l m"], Int[Tensor, "b r k l m"]]:
    """Return what each slot sees beside itself in its round, and in how many rounds in all."""
    asking, offered = hashed.queries.unsqueeze(-1), hashed.keys.unsqueeze(-2)
    often = torch.zeros_like(asking * offered)
    met = torch.ones_like(often, dtype=torch.bool)
    for which in range(hashed.buckets.shape[1]):
        bucket, chunk = hashed.buckets[:, which], hashed.slots[:, which] // hashed.chunk
        behind = _number(chunk, hashed.queries).unsqueeze(-1) - _number(
            chunk, hashed.keys
        ).unsqueeze(-2)
        same = _number(bucket, hashed.queries).unsqueeze(-1) == _number(
            bucket, hashed.keys
        ).unsqueeze(-2)
        meets = same & (behind >= 0) & (behind <= 1)
        often = often + meets
        met[:, which] = meets[:, which]
    met = met & (offered >= 0) & (asking >= 0) & (asking != offered)
    met = met & _number(allowed, hashed.keys).unsqueeze(-2)
    return (met & (offered <= asking) if causal else met), often.clamp(min=1)


def _number(numbers: Tensor, places: Int[Tensor, "b r k l"]) -> Tensor:
    """Return what each place is given, whatever for slots without a place."""
    return numbers.gather(1, places.flatten(1).clamp(min=0)).view_as(places)


def _at(
    vectors: Float[Tensor, "b n d"], places: Int[Tensor, "b r k l"]
) -> Float[Tensor, "b r k l d"]:
    """Return the vectors of places."""
    flat = places.flatten(1).clamp(min=0).unsqueeze(-1).expand(-1, -1, vectors.shape[-1])
    return vectors.gather(1, flat).reshape(*places.shape, vectors.shape[-1])


def _by_place(
    vectors: Float[Tensor, "b r k l d"], hashed: HashedPlaces
) -> Float[Tensor, "b r n d"]:
    """Return what stands in chunks in the order of places."""
    slots = hashed.slots.unsqueeze(-1).expand(-1, -1, -1, vectors.shape[-1])
    return vectors.flatten(2, 3).gather(2, slots)
