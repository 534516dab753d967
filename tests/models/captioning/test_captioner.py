"""Laws of every captioner: teacher forcing, decoding step by step, and search agree."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from random_numbers import numbers, pixels
from small_captions import GRID, SIZES, WORDS, batch
from torch import Tensor

from visattn.models.base import SmallEncoder
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.knowing_when_to_look import KnowingWhenToLook
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.recording.recorder import record
from visattn.results.kinds import END, START, UNKNOWN

SMALL: dict[str, Any] = {**SIZES, "dropout": 0.0}


def soft(encoder: SmallEncoder) -> Captioner:
    return ShowAttendTell(WORDS, encoder, **SMALL, feature_proj_dim=13)


def hard(encoder: SmallEncoder) -> Captioner:
    return ShowAttendTell(WORDS, encoder, **SMALL, attention="hard")


def adaptive(encoder: SmallEncoder) -> Captioner:
    return KnowingWhenToLook(WORDS, encoder, **SMALL)


def windows(encoder: SmallEncoder) -> Captioner:
    model = SequenceRecognizer(
        WORDS, encoder, **SMALL, score="concat", alignment="predictive", window_radius=1.5
    )
    torch.nn.init.normal_(model.decoder.attention.center_vector, std=2.0)  # 0: always the middle
    return model


def transformer(encoder: SmallEncoder) -> Captioner:
    return TransformerCaptioner(
        WORDS, encoder, embed_dim=22, num_heads=11, num_layers=2, dropout=0.0, encoder_layers=1,
        maps="all",
    )  # fmt: skip


KINDS = [soft, hard, adaptive, windows, transformer]


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Captioner:
    """A captioner whose words and maps depend on the image and on the words before."""
    torch.manual_seed(0)
    build: Callable[[SmallEncoder], Captioner] = request.param
    model = build(SmallEncoder((16, 40), channels=12, coord_scale=1.0)).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("vector", "scorer.key.weight", "scorer.query.weight")):
                weight.mul_(7)
            if name.endswith(("output.weight", "output_hidden.weight", "output_proj.weight")):
                weight.mul_(5)
            if name.endswith(("cross_attn.query.weight", "key_value.weight")):
                weight.mul_(3)
            if name == "decoder.output_bias":
                weight[END] += 3
    return model


def features(model: Captioner, count: int) -> Tensor:
    return model.encoder(pixels(count, 3, 16, 40))


@torch.no_grad()
def test_teacher_forcing_is_step_after_step(model: Captioner) -> None:
    captions, lengths = batch()
    owners = torch.tensor([3, 0, 0, 1])  # two captions of an image, and an image without any
    grids = features(model, 4)
    read = model.teacher_force(grids, captions, lengths, owners)
    for row, length in enumerate(lengths.tolist()):
        state = model.start(grids[owners[row], None])
        for step in range(length):
            logits, state, attention = model.step(state, captions[row, step].view(1, 1))
            at = (read.rows == row) & (read.steps == step)
            torch.testing.assert_close(read.logits[at], logits[0])
            for packed, single in zip(read.attention, attention, strict=True):
                assert (packed is None) == (single is None)
                if packed is not None and single is not None:
                    torch.testing.assert_close(packed[at], single[0])
    total = read.attention.weights.sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


@torch.no_grad()
def test_search_matches_teacher_forcing_of_its_captions(model: Captioner) -> None:
    grids = features(model, 5)
    result = model.search(grids, beam_size=7, num_captions=3, max_length=11)
    changed = 0
    for image in range(5):
        for rank in range(3):
            length = int(result.lengths[image, rank])
            words = [START, *result.tokens[image, rank, :length].tolist()]
            count = len(words) - 1
            read = model.teacher_force(
                grids[image, None], torch.tensor([words]), torch.tensor([len(words)])
            )
            at = (image, rank, slice(count))
            for kept, expected in zip(result.attention_steps, read.attention, strict=True):
                if kept is not None and expected is not None:
                    torch.testing.assert_close(kept[at], expected[:count])
            log_probs = read.logits.log_softmax(-1).float()
            each = log_probs[range(count), words[1:]]
            torch.testing.assert_close(result.log_probs[at], each)
            score = each.sum() + (log_probs[-1, END] if result.finished[image, rank] else 0)
            torch.testing.assert_close(result.scores[image, rank], score)
            weights = result.attention_steps.weights[at]
            changed += int(count > 1 and bool((weights[0] - weights[1]).abs().max() > 1e-2))
    # The test is meaningful only if maps differ between words; one position may stay the best.
    assert changed > 3 or model.places == "argmax"


@torch.no_grad()
def test_pad_start_and_unknown_are_never_generated(model: Captioner) -> None:
    decoder: Any = model.decoder
    bias = decoder.output_bias if isinstance(model, TransformerCaptioner) else decoder.output.bias
    bias[[0, START, UNKNOWN]] = 100.0
    result = model.search(features(model, 3), beam_size=3, num_captions=3, max_length=5)
    assert result.scores.isfinite().all()
    assert not set(result.tokens.flatten().tolist()) & {0, START, UNKNOWN}


@torch.no_grad()
def test_a_state_follows_its_hypotheses_and_images(model: Captioner) -> None:
    grids = features(model, 3)
    state = model.start(grids).reorder_beams(torch.zeros(3, 5, dtype=torch.long))
    token = torch.arange(4, 9).expand(3, 5)
    _, state, _ = model.step(state, token)
    parents = torch.tensor([[4, 4, 0, 1], [0, 1, 2, 3], [3, 3, 3, 3]])
    next_token = torch.full((3, 4), 6)
    logits = model.step(state.reorder_beams(parents), next_token)[0]
    for image in range(3):
        for k, parent in enumerate(parents[image]):
            alone = model.start(grids[image, None])
            _, alone, _ = model.step(alone, token[image, parent].view(1, 1))
            expected = model.step(alone, torch.tensor([[6]]))[0]
            torch.testing.assert_close(logits[image, k], expected[0, 0])
    for index in (torch.tensor([2, 0]), torch.tensor([True, False, True]), slice(1, 3)):
        fewer = model.step(state.select_images(index), torch.full((2, 5), 6))[0]
        torch.testing.assert_close(fewer, model.step(state, torch.full((3, 5), 6))[0][index])
    moved = state.reorder_beams(parents)  # nothing of the image is copied per hypothesis
    shared = "memory" if isinstance(model, TransformerCaptioner) else "features"
    assert getattr(moved, shared) is getattr(state, shared)


@pytest.mark.parametrize("build", KINDS)
def test_every_parameter_learns(build: Callable[[SmallEncoder], Captioner]) -> None:
    torch.manual_seed(0)
    model = build(SmallEncoder((16, 40), channels=12)).double()
    if build is hard:  # places that are chosen have no gradient
        model.places = "expectation"
    captions, lengths = batch()
    images = torch.randint(256, (4, 3, 16, 40), dtype=torch.uint8)
    read = model.teacher_force(model.encoder(images), captions, lengths, torch.tensor([3, 0, 0, 1]))
    (read.logits.square().sum() + read.attention.weights.square().sum()).backward()
    still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert still == []


@torch.no_grad()
def test_a_recorder_sees_the_weights_that_were_read(model: Captioner) -> None:
    state = model.start(features(model, 2))
    with record(model) as recording:
        _, _, attention = model.step(state, torch.full((2, 1), START))
    maps = {entry.site: entry.values for entry in recording.maps if entry.kind == "words"}
    if attention.heads is None:
        assert torch.equal(maps[model.attention_site].flatten(-2), attention.weights)
    else:
        for layer in range(2):
            values = maps[f"decoder.layers.{layer}.cross_attn.tap"]
            assert torch.equal(values.flatten(-2), attention.heads[:, :, layer])
            assert values.shape[-2:] == GRID


def test_features_and_keys_are_projected_once_per_image() -> None:
    model, (captions, lengths) = soft(SmallEncoder((16, 40), channels=12)).double(), batch()
    sizes: list[int] = []
    for module in (model.decoder.feature_proj, model.decoder.attention.scorer.key):
        module.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    model.teacher_force(numbers(2, 12, *GRID), captions, lengths, torch.tensor([0, 1, 1, 0]))
    assert sizes == [2, 2]
