"""Attention of words to text and statistics of heads, against `output_attentions` of eager runs."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from vlm_runs import eager, greedy, options, photo, prompt_of, replays, sharp

import visattn
from visattn.data.phrases import phrases_to_input
from visattn.pipelines.words.replay import WordReplay
from visattn.pipelines.words.row_statistics import head_overview, text_attention
from visattn.results.captions import Phrase

TOLERANCE = 2e-6


def eager_layers(family: str, replay: WordReplay) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights `h t m` of the words in layers of text and of the photo."""
    model: Any = sharp(family)[0]
    with eager(model), torch.no_grad():
        output = model(**replay.inputs, output_attentions=True)
    count = len(replay.token_ids)
    own = getattr(output, "decoder_attentions", None) or output.attentions
    cross = getattr(output, "cross_attentions", None) or own
    return [each[0, :, -count:] for each in own], [each[0, :, -count:] for each in cross]


@pytest.mark.parametrize("family", ["llava", "git", "qwen2_vl", "ved"])
def test_text_attention_equals_eager_attention(family: str) -> None:
    replay = greedy(family)
    result = text_attention(replay)
    text, photo = (torch.stack(each).mean((0, 1)) for each in eager_layers(family, replay))
    assert result.joint == (family != "ved")
    for index, (start, stop) in enumerate(replay.spans):
        row, image_row = text[start:stop].mean(0), photo[start:stop].mean(0)
        for key, weight in zip(result.keys, result.weights[index].tolist(), strict=True):
            assert abs(float(row[list(key.tokens)].sum()) - weight) <= TOLERANCE, key
        share = float(image_row[replay.placement.columns] @ replay.placement.visible)
        assert abs(share - float(result.photo[index])) <= TOLERANCE
        rest = 1 - share - (float(result.weights[index].sum()) if result.joint else 0.0)
        assert abs(rest - float(result.other[index])) <= 4 * TOLERANCE
    sums = result.weights.sum(1) + (result.photo + result.other if result.joint else 0.0)
    torch.testing.assert_close(sums, torch.ones(len(sums)), atol=1e-5, rtol=0)


def test_every_token_of_text_has_a_name() -> None:
    replay = greedy("qwen2_vl")
    keys = text_attention(replay).keys
    tokens = [token for key in keys for token in key.tokens]
    assert len(set(tokens)) == len(tokens)
    ids = replay.inputs["input_ids"][0].tolist()
    image = ids[int(replay.placement.columns[0])]
    assert sorted(tokens) == [place for place, token in enumerate(ids) if token != image]
    names = [key.text for key in keys if key.kind == "special"]
    assert "<|vision_start|>" in names
    assert tuple(key.text for key in keys if key.kind == "word") == replay.words[:-1]
    with_start = text_attention(greedy("ved"))
    assert (with_start.keys[0].text, with_start.keys[0].kind) == ("<s>", "special")


def test_earlier_words_only() -> None:
    replay = greedy("llava")
    result = text_attention(replay)
    first = [key.kind for key in result.keys].index("word")
    later = result.weights[:, first:].triu()  # of the word itself and of those after it
    assert not bool(later.any())
    assert bool((result.weights[-1] > 0).all())
    name, weight = result.strongest(len(replay.words) - 1, 1)[0]
    assert weight == float(result.weights[-1].max())
    assert name in [key.text for key in result.keys]


def test_layers_and_heads_are_selected() -> None:
    replay = greedy("llava")
    result = text_attention(replay, layers=[-1], heads=[0, 2])
    row = eager_layers("llava", replay)[0][1][[0, 2]].mean(0)
    own = torch.stack([row[:, list(key.tokens)].sum(1) for key in result.keys], 1)
    assert float((own - result.weights).abs().max()) <= TOLERANCE
    assert result.how == "layers [1]; heads [0, 2]"
    with pytest.raises(ValueError, match="layers must be indices from 0 to 1"):
        text_attention(replay, layers=[2])


def test_layers_of_other_depth_are_refused() -> None:
    replay = greedy("ved")
    fewer = replace(replay, sites=replay.sites[:1])
    with pytest.raises(ValueError, match="read text in 3 and the photo in 1 others"):
        text_attention(fewer, layers=[0])


@pytest.mark.parametrize("family", ["llava", "ved"])
def test_overview_equals_eager_attention(family: str) -> None:
    replay = greedy(family)
    half = Phrase(0, 1, ((0.0, 0.0, 0.5, 1.0),), (), replay.words[1])
    overview = head_overview(replay, [half])
    grid = replay.placement.grid_size
    y, x = (torch.arange(side, dtype=torch.float64) for side in grid)
    for layer, weights in enumerate(eager_layers(family, replay)[1]):
        for head, rows in enumerate(weights.double()):
            spans = [rows[slice(*span)].mean(0) for span in replay.spans]
            maps = replay.placement.rasterize(torch.stack(spans)[:, replay.placement.columns])
            shares = maps.sum((1, 2))
            entropies, spreads = [], []
            for each in maps / shares[:, None, None]:
                entropies.append(float(-(each * each.log()).sum()) / math.log(each.numel()))
                center = float((each.sum(1) * y).sum()), float((each.sum(0) * x).sum())
                square = (y[:, None] - center[0]) ** 2 + (x - center[1]) ** 2
                even = (y[:, None] - y.mean()) ** 2 + (x - x.mean()) ** 2
                spreads.append((float((each * square).sum()) / float(even.mean())) ** 0.5)
            expected = (shares.mean(), sum(entropies) / len(spans), sum(spreads) / len(spans))
            values = (overview.share, overview.entropy, overview.spread)
            for own, other in zip(values, expected, strict=True):
                assert abs(float(own[layer, head]) - float(other)) <= 1e-5
    assert overview.sites == replay.sites


def test_boxes_rank_heads() -> None:
    replay = greedy("llava")
    phrase = Phrase(0, 1, ((0.25, 0.0, 0.5, 1.0),), (), replay.words[0])
    overview = head_overview(replay, [phrase])
    assert overview.in_boxes is not None
    assert overview.area is not None
    best = overview.ranked()[0]
    assert best.in_boxes is not None
    assert best.in_boxes == float(overview.in_boxes.max())
    caption = replay.caption()
    kept = replays("llava", keep_heads=True)[0]
    assert kept.head_rows is not None
    maps = kept.placement.rasterize(kept.head_rows[best.layer, best.head].float())
    words = [number for number, word in enumerate(caption.words) if word == replay.words[0]]
    inside = []
    for word in words:
        own = maps[replay.spans[word][0]]
        [placed] = phrases_to_input([phrase], replay.placement.geometry)
        left, _, right, _ = placed.boxes[0]
        cells = torch.arange(own.shape[1] + 1) / own.shape[1]
        covered = (cells[1:].clamp(max=right) - cells[:-1].clamp(min=left)).clamp(min=0)
        inside.append(float((own.sum(0) * covered * own.shape[1]).sum() / own.sum()))
    assert abs(sum(inside) / len(inside) - best.in_boxes) < 2e-3  # rows of heads are float16
    assert "in_boxes" in overview.to_dict()


def test_options_of_the_overview_select_the_head() -> None:
    model, processor = sharp("llava")
    replay = replays("llava", keep_heads=True)[0]
    best = head_overview(replay).ranked()[0]
    assert best.options == f"--layers {best.layer} --heads {best.head}"
    [caption] = visattn.caption(
        model, photo(), processor=processor, prompt=prompt_of("llava"), head_overview=True,
        text_attention=True, layers=[best.layer], heads=[best.head], **options("llava"),
    )  # fmt: skip
    assert caption.head_overview is not None
    share = float(caption.head_overview.share[best.layer, best.head])
    assert abs(sum(caption.gates) / len(caption.gates) - share) < 1e-3
    assert caption.text_attention is not None
    torch.testing.assert_close(caption.text_attention.photo, torch.tensor(caption.gates),
                               atol=1e-3, rtol=0)  # fmt: skip
