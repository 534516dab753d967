"""Caption search with a real captioner against teacher forcing."""

from typing import Any

import pytest
import torch

from visattn.functional.beams import BeamSearchOutput
from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import AttentionStep, Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.results.kinds import END, SPECIAL_TOKENS, START, UNKNOWN

WORDS = (*SPECIAL_TOKENS, *"abcdefghijklm")


def show_attend_tell(encoder: SmallEncoder) -> ShowAttendTell:
    model = ShowAttendTell(WORDS, encoder, embed_dim=11, hidden_size=17, attention_dim=7)
    decoder: Any = model.decoder
    scorer = decoder.attention.scorer
    with torch.no_grad():
        for weight in (scorer.vector, scorer.key.weight, scorer.query.weight):
            weight.mul_(7)
        for weight in (decoder.output.weight, decoder.output_hidden.weight):
            weight.mul_(7)
    return model


def transformer(encoder: SmallEncoder) -> TransformerCaptioner:
    model = TransformerCaptioner(WORDS, encoder, embed_dim=22, num_heads=11, num_layers=2)
    decoder: Any = model.decoder
    with torch.no_grad():
        for layer in decoder.layers:
            for weight in (layer.cross_attn.query.weight, layer.cross_attn.key_value.weight):
                weight.mul_(3)
        decoder.output_proj.weight.mul_(5)
        decoder.output_bias[END] += 3
    return model


@pytest.fixture(params=[show_attend_tell, transformer])
def model(request: pytest.FixtureRequest) -> Captioner[Any]:
    torch.manual_seed(0)
    encoder = SmallEncoder((16, 40), channels=12, coord_scale=1.0)  # the image counts
    # The output of an untrained model hardly depends on its image: enlarge its weights.
    return request.param(encoder).eval()


def images(count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, 3, 16, 40), dtype=torch.uint8, generator=random)


def said(result: BeamSearchOutput[AttentionStep], image: int, rank: int) -> list[int]:
    return result.tokens[image, rank, : result.lengths[image, rank]].tolist()


@torch.no_grad()
def test_search_matches_teacher_forcing_of_its_captions(model: Captioner[Any]) -> None:
    result = model.search(model.encoder(images(5)), beam_size=7, num_captions=5, max_length=11)
    hypotheses = sorted(
        (
            (image, rank, [START, *said(result, image, rank)])
            for image in range(5)
            for rank in range(5)
        ),
        key=lambda hypothesis: -len(hypothesis[2]),
    )
    captions = torch.zeros(25, max(len(words) for *_, words in hypotheses), dtype=torch.long)
    for row, (*_, words) in zip(captions, hypotheses, strict=True):
        row[: len(words)] = torch.tensor(words)
    lengths = torch.tensor([len(words) for *_, words in hypotheses])
    owners = torch.tensor([image for image, *_ in hypotheses])
    read = model.teacher_force(model.encoder(images(5)), captions, lengths, owners)
    changed = 0
    for row, (image, rank, words) in enumerate(hypotheses):
        mine, count = read.rows == row, len(words) - 1
        log_probs = read.logits[mine].log_softmax(-1)
        at = (image, rank, slice(count))
        weights, gates = result.attention_steps.weights[at], result.attention_steps.gate[at]
        torch.testing.assert_close(weights, read.attention.weights[mine][:count], atol=1e-5, rtol=0)
        torch.testing.assert_close(gates, read.attention.gate[mine][:count], atol=1e-5, rtol=0)
        each = log_probs[range(count), words[1:]]
        torch.testing.assert_close(result.log_probs[at], each, atol=1e-5, rtol=1e-5)
        score = each.sum() + (log_probs[-1, END] if result.finished[image, rank] else 0)
        torch.testing.assert_close(result.scores[image, rank], score, atol=1e-4, rtol=1e-5)
        changed += int(count > 1 and bool((weights[0] - weights[1]).abs().max() > 1e-2))
    assert changed > 12  # the test is meaningful only if maps differ between words


@torch.no_grad()
def test_search_is_independent_of_the_batch(model: Captioner[Any]) -> None:
    seven, order = images(7), [3, 0, 6, 5, 1, 4, 2]
    together = model.search(model.encoder(seven), beam_size=5, num_captions=3, max_length=13)
    shuffled = model.search(model.encoder(seven[order]), beam_size=5, num_captions=3, max_length=13)
    lengths = set()
    for place, image in enumerate(order):
        alone = model.search(
            model.encoder(seven[image : image + 1]), beam_size=5, num_captions=3, max_length=13
        )
        for rank in range(3):
            words = said(alone, 0, rank)
            lengths.add(len(words))
            for other, at in ((together, image), (shuffled, place)):
                assert said(other, at, rank) == words
                torch.testing.assert_close(
                    other.attention_steps.weights[at, rank, : len(words)],
                    alone.attention_steps.weights[0, rank, : len(words)],
                    atol=1e-5,
                    rtol=0,
                )
    assert len(lengths) > 2


@torch.no_grad()
def test_beam_size_1_is_greedy(model: Captioner[Any]) -> None:
    result = model.search(model.encoder(images(3)), beam_size=1, max_length=11, min_length=0)
    for image in range(3):
        state, words = model.start(model.encoder(images(3)[image : image + 1])), [START]
        while len(words) <= 11:
            logits, state, _ = model.step(state, torch.tensor([[words[-1]]]))
            logits[..., [0, START, UNKNOWN]] = -torch.inf
            words.append(int(logits.argmax()))
            if words[-1] == END:
                break
        assert said(result, image, 0) == [word for word in words[1:] if word != END]


@torch.no_grad()
def test_pad_start_and_unknown_are_never_generated(model: Captioner[Any]) -> None:
    decoder: Any = model.decoder
    bias = decoder.output_bias if isinstance(model, TransformerCaptioner) else decoder.output.bias
    bias[[0, START, UNKNOWN]] = 100.0
    result = model.search(model.encoder(images(5)), beam_size=3, num_captions=3, max_length=7)
    assert result.scores.isfinite().all()
    assert not set(result.tokens.flatten().tolist()) & {0, START, UNKNOWN}


@pytest.mark.parametrize("words", [("red", "blue"), SPECIAL_TOKENS[::-1], ()])
def test_vocabulary_begins_with_special_tokens(words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must begin with <pad>, <start>, <end>, <unknown>"):
        ShowAttendTell(words, SmallEncoder((16, 40), channels=12))


def test_captioner_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Captioner(SPECIAL_TOKENS, SmallEncoder((16, 40), channels=12))  # type: ignore[abstract]
