"""Attention of generated words to text, and statistics of each head, from one recorded pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from visattn.data.phrases import match_phrases, normalize_maps, phrases_to_input, score_phrases
from visattn.pipelines.words.controls import select_indices
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.recorded_pass import forward_logits
from visattn.pipelines.words.replay import WordReplay
from visattn.pipelines.words.spans import split_words, word_means
from visattn.recording.frozen import frozen
from visattn.recording.word_rows import WordRows
from visattn.results.captions import Phrase
from visattn.results.word_statistics import HeadOverview, KeyKind, TextAttention, TextKey


def text_attention(
    replay: WordReplay,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> TextAttention:
    """Return the attention of each word to the prompt, to special tokens and to earlier words.

    The row of a word is the mean over its tokens; the weight of a key is the sum over its tokens.
    One layer is in memory at a time.

    Args:
        replay: The caption.
        layers: Indices of the layers whose mean is taken; None for all. If text and photo are read
            by different layers, both are counted from 0, and there must be as many of each.
        heads: Indices of the heads whose mean is taken; None for all.

    Raises:
        ValueError: If layers or heads do not exist, or attention cannot be recorded.
    """
    own = [site for site in replay.text_sites if site not in replay.sites]
    joint = not own
    text_sites = list(replay.sites) if joint else own
    chosen = select_indices("layers", layers, len(replay.sites))
    if layers is not None and len(text_sites) != len(replay.sites):
        raise ValueError(
            f"layers select layers that read the photo, but the words of "
            f"{type(replay.model).__name__} read text in {len(text_sites)} and the photo in "
            f"{len(replay.sites)} others: leave out layers"
        )
    means = {
        "text": _Mean([text_sites[index] for index in chosen] if layers else text_sites),
        "photo": _Mean([replay.sites[index] for index in chosen]),
    }

    def keep(site: str, weights: Float[Tensor, "1 h t m"]) -> Tensor:
        kept = select_indices("heads", heads, weights.shape[1])
        row = weights[0, kept].float().mean(0).cpu()
        for mean in means.values():
            mean.add(site, row)
        return row[:0]

    _record(replay, keep, dict.fromkeys([*means["text"].sites, *means["photo"].sites]))
    text = word_means(means["text"].rows, replay.spans)
    photo = word_means(means["photo"].rows, replay.spans)
    keys = _text_keys(replay, text.shape[1])
    weights = add_keys(text, keys)
    shares = [photo[:, place.columns] @ place.visible for place in replay.placements]
    share = torch.stack(shares).sum(0)
    rest = photo.sum(1) - share - (weights.sum(1) if joint else 0.0)
    how = [f"mean of {len(replay.sites)} layers" if layers is None else f"layers {chosen}"]
    how.append("mean of heads" if heads is None else f"heads {list(heads)}")
    return TextAttention(replay.words, keys, weights, share, rest.clamp(min=0), joint,
                         "; ".join(how))  # fmt: skip


class _Mean:
    """Running mean of the rows of some layers."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = tuple(sites)
        self.rows = torch.zeros(0)

    def add(self, site: str, rows: Float[Tensor, "t m"]) -> None:
        if site in self.sites:
            share = rows / len(self.sites)
            self.rows = self.rows + share if len(self.rows) else share


def _record(
    replay: WordReplay, keep: Callable[[str, Tensor], Tensor], sites: dict[str, None]
) -> None:
    """Run the model once over the caption; `keep` gets the rows of the words of each layer."""
    recorder = WordRows(replay.model, dict.fromkeys(sites, len(replay.token_ids)), keep=keep)
    with frozen(replay.model), torch.no_grad(), recorder.recording():
        forward_logits(replay.model, replay.inputs, 1)
    if recorder.unsupported:
        site, reason = next(iter(recorder.unsupported.items()))
        raise ValueError(f"the attention of {site} cannot be recorded: {reason}")


def _text_keys(replay: WordReplay, count: int) -> tuple[TextKey, ...]:
    """Return the words and special tokens among the keys.

    Models that put the image before the ids have more keys than ids; merged attention has the keys
    of the image behind those of the words.
    """
    name = "decoder_input_ids" if "decoder_input_ids" in replay.inputs else "input_ids"
    ids = replay.inputs[name][0].tolist()
    # Keys of image tokens (i) that have no ids, with a prompt of 2 tokens (p) and 2 words (w):
    #
    #     i i i p p w w     the image before the ids: key 3 is that of the first id
    #     p p w w i i i     merged attention: key 0 is
    behind = count > len(ids) and int(replay.placement.columns.min()) >= len(ids)
    ahead = 0 if behind else count - len(ids)
    joint = set(replay.sites) == set(replay.text_sites)
    columns = set(replay.placement.columns.tolist()) if joint else set()
    image_ids = {ids[column - ahead] for column in columns if 0 <= column - ahead < len(ids)}
    written = len(ids) - len(replay.token_ids) + 1  # the last generated token is no input
    keys: list[TextKey] = []
    ranges: tuple[tuple[KeyKind, int, int], ...] = (
        ("prompt", 0, written), ("word", written, len(ids)),
    )  # fmt: skip
    for kind, first, last in ranges:
        places = [place for place in range(first, last) if ids[place] not in image_ids]
        keys += _words(replay.process, ids, places, kind, ahead)
    return tuple(keys)


def _words(
    process: PhotoProcessor, ids: Sequence[int], places: Sequence[int], kind: KeyKind, ahead: int
) -> Iterator[TextKey]:
    """Yield the words of a part of the text; each token belongs to one, or is a key itself."""
    special = process.special_ids
    runs = groupby(enumerate(places), lambda pair: (pair[1] - pair[0], ids[pair[1]] in special))
    for (_, is_special), group in runs:
        run = [place for _, place in group]
        if is_special:
            for place in run:
                yield TextKey(_token_name(process, ids[place]), "special", (place + ahead,))
            continue
        words = split_words(process.tokenizer, [ids[place] for place in run], special_ids=special)
        owners = [-1] * len(run)
        for word, (start, stop) in reversed([*enumerate(words.spans)]):
            owners[start:stop] = [word] * (stop - start)  # a token of two words is of the first
        for word, group in groupby(range(len(run)), owners.__getitem__):
            tokens = tuple(run[token] + ahead for token in group)
            text = "".join(_token_name(process, ids[token - ahead]) for token in tokens)
            yield TextKey(words.words[word] if word >= 0 else text, kind, tokens)


def _token_name(process: PhotoProcessor, token: int) -> str:
    names = process.tokenizer.convert_ids_to_tokens([token])
    return str(names[0]) if names and names[0] else f"token {token}"


def head_overview(replay: WordReplay, phrases: Sequence[Phrase] = ()) -> HeadOverview:
    """Return how each head of each layer reads the photo, as means over the words.

    One layer is in memory at a time.

    Args:
        replay: The caption.
        phrases: Phrases of reference captions with boxes relative to the photo; those that occur in
            the caption show how much of the map of their words lies in the boxes.

    Raises:
        ValueError: If attention cannot be recorded, or there is no word.
    """
    if not replay.words:
        raise ValueError("an overview of heads needs at least one word, but the caption has none")
    placement = replay.placement
    placed = phrases_to_input(match_phrases(replay.words, phrases), placement.geometry)
    layers: dict[str, tuple[Tensor, ...]] = {}
    area = [torch.zeros(0)]

    def keep(site: str, weights: Float[Tensor, "1 h t m"]) -> Tensor:
        columns = placement.columns.to(weights.device)
        rows = word_means(weights[0][..., columns].float().cpu(), replay.spans, -2)
        maps = placement.rasterize(rows)
        sums = maps.sum((-2, -1))
        statistics = [sums, map_entropy(maps), map_spread(maps)]
        if placed:
            inside, area[0] = _in_boxes(maps, placed)
            statistics.append(inside)
        layers[site] = tuple(per_word.mean(1) for per_word in statistics)
        return rows[:0]

    _record(replay, keep, dict.fromkeys(replay.sites))
    tables = [
        pad_sequence(list(statistic), batch_first=True, padding_value=torch.nan)
        for statistic in zip(*(layers[site] for site in replay.sites), strict=True)
    ]
    boxes = tables[3] if placed else None
    return HeadOverview(replay.sites, tables[0], tables[1], tables[2], boxes,
                        float(area[0].mean()) if placed else None)  # fmt: skip


def _in_boxes(
    maps: Float[Tensor, "h w y x"], phrases: Sequence[Phrase]
) -> tuple[Float[Tensor, "h p"], Float[Tensor, " p"]]:
    """Return the share of maps in the boxes of each phrase, and that of a uniform map."""
    results = [score_phrases(of_head, phrases) for of_head in normalize_maps(maps)]
    inside = torch.tensor([[score.mean_correctness for score in row] for row in results])
    return inside, torch.tensor([score.baseline for score in results[0]])


def add_keys(rows: Float[Tensor, "*t m"], keys: tuple[TextKey, ...]) -> Float[Tensor, "*t k"]:
    """Return the attention to each key: the sum over its tokens.

    Example:
        >>> add_keys(torch.tensor([[0.1, 0.2, 0.7]]), (TextKey("cat", "word", (0, 1)),))
        tensor([[0.3000]])
    """
    sums = [rows[..., list(key.tokens)].sum(-1) for key in keys]
    return torch.stack(sums, -1) if sums else rows[..., :0]


def map_entropy(maps: Float[Tensor, "*n y x"]) -> Float[Tensor, "*n"]:
    """Return the entropy of maps as a share of that of a uniform one; 1 for maps of zeros.

    Maps are not negative and may have any sum.

    Example:
        >>> map_entropy(torch.tensor([[[1.0, 1.0]], [[0.0, 5.0]]]))
        tensor([1., 0.])
    """
    shares, empty = _shares(maps)
    count = maps.shape[-2] * maps.shape[-1]
    entropy = -torch.xlogy(shares, shares).sum((-2, -1)) / math.log(max(count, 2))
    return (entropy + 0.0).masked_fill(empty, 1.0)  # without negative zeros


def map_spread(maps: Float[Tensor, "*n y x"]) -> Float[Tensor, "*n"]:
    """Return how far maps lie from their center, as a share of a uniform map; 1 for zeros.

    Cells are taken as square.

    Example:
        >>> map_spread(torch.tensor([[[1.0, 1.0, 1.0]], [[0.0, 2.0, 0.0]], [[1.0, 0.0, 1.0]]]))
        tensor([1.0000, 0.0000, 1.2247])
    """
    shares, empty = _shares(maps)
    rows, columns = maps.shape[-2:]
    y = torch.arange(rows, dtype=maps.dtype, device=maps.device) - (rows - 1) / 2
    x = torch.arange(columns, dtype=maps.dtype, device=maps.device) - (columns - 1) / 2
    variance = torch.zeros_like(shares[..., 0, 0])
    for places, axis in ((y, -1), (x, -2)):
        along = shares.sum(axis)
        mean = (along * places).sum(-1, keepdim=True)
        variance = variance + (along * (places - mean) ** 2).sum(-1)
    uniform = float((y**2).mean() + (x**2).mean())
    return (variance.clamp(min=0) / max(uniform, 1e-12)).sqrt().masked_fill(empty, 1.0)


def _shares(maps: Tensor) -> tuple[Tensor, Tensor]:
    sums = maps.sum((-2, -1), keepdim=True)
    empty = sums[..., 0, 0] <= 0
    return maps / sums.masked_fill(sums <= 0, 1.0), empty
