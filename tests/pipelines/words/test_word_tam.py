"""Token activation maps of captions, against the complete logits of the model."""

from typing import Any

import pytest
import torch
from torch import Tensor
from vlm_runs import greedy, prompt_of, sharp

from visattn.attribution.token_activation import rank_gaussian_filter
from visattn.pipelines.word_source import with_word_maps, word_grids
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.pipelines.words.methods import ReplayedWords
from visattn.pipelines.words.replay import WordReplay, replay_tokens
from visattn.pipelines.words.token_activation import replay_token_activation


def process_of(family: str) -> PhotoProcessor:
    model, processor = sharp(family)
    return PhotoProcessor(model, processor, prompt_of(family))


def maps_of_logits(replay: WordReplay, process: PhotoProcessor) -> Tensor:
    """The maps as the authors compute them, from logits at all positions, token by token."""
    inputs = {name: value for name, value in replay.inputs.items() if name != "logits_to_keep"}
    with torch.no_grad():
        output: Any = replay.model(**inputs)
    logits = output.logits[0].double()
    ids, columns = inputs["input_ids"][0].tolist(), replay.placement.columns.tolist()
    ahead = len(logits) - len(ids)
    count = len(replay.token_ids)
    end = len(logits) - count + 1
    images = {ids[column - ahead] for column in columns if column >= ahead}
    earlier = [
        (ids[at - ahead], at)
        for at in range(max(ahead, columns[0]), end)
        if ids[at - ahead] not in images | process.special_ids
    ]
    rows = []
    for number, token in enumerate(replay.token_ids.tolist()):
        own = logits[columns, token].clamp(min=0)
        kept = [(other, at) for other, at in earlier if other != token]
        scores = [logits[at, token].clamp(min=0) for _, at in kept]
        mixed, total = torch.zeros_like(own), sum(scores) + 1e-8
        for score, (other, _) in zip(scores, kept, strict=True):
            mixed = mixed + score / total * logits[columns, other].clamp(min=0)
        scale = (own @ mixed) / (mixed @ mixed) if float(mixed @ mixed) else 0.0
        rows.append((own - scale * mixed).clamp(min=0))
        if token not in process.special_ids:
            earlier.append((token, end - 1 + number))  # the state that predicted it
    return torch.stack(rows)


def with_special_token(replay: WordReplay, process: PhotoProcessor) -> WordReplay:
    """Return the replay of its words with the end token among them."""
    tokens = replay.token_ids.tolist()
    tokens.insert(2, process.tokenizer.eos_token_id)
    return replay_tokens(replay.image, torch.tensor(tokens), process)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("family", ["llava", "git", "qwen2_vl"])
def test_maps_equal_those_of_all_logits(family: str, *, special: bool) -> None:
    replay, process = greedy(family), process_of(family)
    if special:
        replay = with_special_token(replay, process)
    maps = replay_token_activation(replay)
    rows = maps_of_logits(replay, process)
    grid = replay.placement.rasterize(rows.float())  # one cell per image token
    filtered = rank_gaussian_filter(grid)
    expected = torch.stack([filtered[slice(*span)].mean(0) for span in replay.spans])
    assert float(expected.max()) > 1e-2
    torch.testing.assert_close(maps, expected, atol=1e-4, rtol=1e-4)


def test_captions_say_what_is_drawn() -> None:
    replay = greedy("llava")
    source = ReplayedWords(replay)
    caption = with_word_maps(replay.caption(), source, "tam")
    assert caption.quantity == "token activation, logits"
    assert caption.notes.startswith("tam of Llava")
    assert caption.gates == replay.caption().gates
    with pytest.raises(ValueError, match="attention weights, which tam does not"):
        with_word_maps(replay.caption(), source, "tam", layers=[0])


@pytest.mark.parametrize(
    ("family", "reason"),
    [("blip2", "read learned queries"), ("ved", "read by cross-attention"),
     ("mllama", "read by cross-attention"), ("t5gemma2", "one sequence with the words")],
)  # fmt: skip
def test_other_models_are_refused(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        word_grids(ReplayedWords(greedy(family)), ["tam"])
