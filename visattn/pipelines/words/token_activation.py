"""Token activation maps of generated captions, from what the language-model head reads."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.token_activation import (
    TokenStates,
    rank_gaussian_filter,
    token_activation_maps,
)
from visattn.pipelines.words.language_model import is_encoder_decoder
from visattn.pipelines.words.recorded_pass import forward_logits
from visattn.pipelines.words.replay import WordReplay
from visattn.pipelines.words.spans import word_means
from visattn.recording.frozen import frozen


@torch.no_grad()
def replay_token_activation(
    replay: WordReplay,
) -> Float[Tensor, "w gy gx"]:
    """Return the token activation map of each word, in units of logits.

    The map of a word is the mean over its tokens. Cells are filtered on the grid of the photo:
    where tiles and thumbnails overlap, on the mean activation there.

    Raises:
        ValueError: If image tokens and words are not one sequence, or the words read learned
            queries.

    Source:
        Li et al. 2025, arXiv:2506.23270. Deviations: earlier tokens are all tokens of text behind
        the first image token but special ones, and values are not scaled to 0 and 1.
    """
    _check_sequence(replay)
    head: Any = replay.model.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    weight = getattr(head, "weight", None)
    if weight is None:
        raise ValueError(
            f"tam reads the language-model head, which {type(replay.model).__name__} does not "
            "show (get_output_embeddings); use another method"
        )
    states = _head_inputs(replay, head)
    tokens, positions = _context(replay, states)
    count = len(replay.token_ids)
    first = len(states) - count
    ids = torch.tensor([*tokens, *replay.token_ids.tolist()])
    read_at = torch.tensor([*positions, *range(first, first + count)])
    columns = replay.placement.columns.to(states.device)
    rows = token_activation_maps(
        TokenStates(states[columns], states[read_at.to(states.device)], ids, len(tokens)),
        weight,
        getattr(head, "bias", None),
        left_out=sorted(replay.process.special_ids),
    ).cpu()
    # of cells that several tokens cover, the mean; cells that no token covers stay 0
    covered = replay.placement.rasterize(torch.ones(1, len(columns)))[0]
    maps = replay.placement.rasterize(rows) / covered.masked_fill(covered <= 0, 1.0)
    return word_means(rank_gaussian_filter(maps), replay.spans)


def _check_sequence(replay: WordReplay) -> None:
    name = type(replay.model).__name__
    if any("learned queries" in note for note in replay.notes):
        raise ValueError(
            f"tam needs image tokens with a place, but the words of {name} read learned queries; "
            "use the methods attention or occlusion"
        )
    if is_encoder_decoder(replay.model) or set(replay.sites) != set(replay.text_sites):
        raise ValueError(
            f"tam reads words at image tokens, which stand in one sequence with the words; those "
            f"of {name} are read by cross-attention: use another method"
        )


def _head_inputs(replay: WordReplay, head: nn.Module) -> Float[Tensor, "n d"]:
    """Return the states of all positions that the language-model head gets; it runs on one."""
    collected: list[Tensor] = []

    def shorten(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        collected.append(args[0])
        return (args[0][:, -1:], *args[1:])

    # With it the model passes the last positions to the head only.
    inputs = {name: value for name, value in replay.inputs.items() if name != "logits_to_keep"}
    handle = head.register_forward_pre_hook(shorten)
    try:
        with frozen(replay.model), torch.no_grad():
            forward_logits(replay.model, inputs, 1)
    finally:
        handle.remove()
    if len(collected) != 1 or int(replay.placement.columns.max()) >= collected[0].shape[1]:
        raise ValueError(
            f"the language-model head of {type(replay.model).__name__} does not run once on all "
            "image tokens; use another method than tam"
        )
    return collected[0][0]


def _context(replay: WordReplay, states: Float[Tensor, "n d"]) -> tuple[list[int], list[int]]:
    """Return ids and positions of the tokens of text between the first image token and the words.

    Special ones are among them; `token_activation_maps` leaves them out. Models that put the image
    before the ids have more positions than ids.
    """
    ids = replay.inputs["input_ids"][0].tolist()
    ahead = len(states) - len(ids)
    columns = replay.placement.columns.tolist()
    image_ids = {ids[column - ahead] for column in columns if column >= ahead}
    end = len(states) - len(replay.token_ids) + 1  # the last generated token is no input
    positions = [
        position
        for position in range(max(ahead, min(columns)), end)
        if ids[position - ahead] not in image_ids
    ]
    return [ids[position - ahead] for position in positions], positions
