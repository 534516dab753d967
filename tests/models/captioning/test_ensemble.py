"""Ensemble of captioners: mean probabilities and attention, beams, saving, refusals."""

import copy
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import visattn
from visattn.cli import main
from visattn.models.base import SmallEncoder
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.ensemble import CaptionerEnsemble
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer import TransformerCaptioner
from visattn.models.glimpses.ram import RecurrentAttentionModel
from visattn.pipelines.caption_words import explain_words
from visattn.results.kinds import END, SPECIAL_TOKENS, START

WORDS = (*SPECIAL_TOKENS, *"abcdefg")
SIZE = (24, 40)


def members() -> list[Captioner[Any]]:
    """Three captioners of different classes, with encoders of different widths."""
    torch.manual_seed(3)
    lstm: Any = {"embed_dim": 5, "hidden_size": 11, "attention_dim": 3}
    encoder = partial(SmallEncoder, SIZE)
    models = [
        ShowAttendTell(WORDS, encoder(channels=12), **lstm),
        KnowingWhenToLook(WORDS, encoder(channels=8), **lstm),
        TransformerCaptioner(WORDS, encoder(channels=4), embed_dim=6, num_layers=2, num_heads=3),
    ]
    return [model.double().eval() for model in models]


def images(count: int = 2) -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, *SIZE), generator=random, dtype=torch.uint8)


@torch.no_grad()
def next_word_probs(models: list[Captioner[Any]], image: Tensor, tokens: list[int]) -> Tensor:
    """Mean over the models of the next word's probabilities, each run on its own."""
    total = torch.zeros(len(WORDS), dtype=torch.float64)
    for model in models:
        state = model.start(model.encoder(image[None]))
        logits = torch.zeros(0)
        for token in tokens:
            logits, state, _ = model.step(state, torch.tensor([[token]]))
        total += logits[0, 0].softmax(-1) / len(models)
    return total


def test_words_have_the_mean_probability_of_the_members() -> None:
    models, photos = members(), images()
    ensemble = CaptionerEnsemble(models)
    captions = torch.tensor([[START, 5, 9, 4], [START, 7, END, END]])
    output = ensemble.teacher_force(ensemble.encoder(photos), captions, torch.tensor([4, 2]))
    for logits, row, step in zip(output.logits, output.rows, output.steps, strict=True):
        expected = next_word_probs(models, photos[row], captions[row, : step + 1].tolist())
        torch.testing.assert_close(logits.exp(), expected)


def test_attention_and_gate_are_the_means_of_the_members() -> None:
    models, photos = members(), images()
    ensemble = CaptionerEnsemble(models)
    captions, lengths = torch.tensor([[START, 5, 9], [START, 7, 6]]), torch.tensor([3, 3])
    attention = ensemble.teacher_force(ensemble.encoder(photos), captions, lengths).attention
    alone = [
        model.teacher_force(model.encoder(photos), captions, lengths).attention for model in models
    ]
    torch.testing.assert_close(attention.weights, sum(each.weights for each in alone) / 3)
    torch.testing.assert_close(attention.gate, sum(each.gate for each in alone) / 3)
    torch.testing.assert_close(attention.weights.sum(-1), torch.ones(6, dtype=torch.float64))


def test_beam_search_finds_the_most_probable_captions() -> None:
    models, photos = members(), images()
    ensemble = CaptionerEnsemble(models)
    options: Any = {"beam_size": 600, "num_captions": 3, "max_length": 2, "min_length": 2}
    output = ensemble.search(ensemble.encoder(photos), **options)
    words = range(len(SPECIAL_TOKENS), len(WORDS))
    for image, photo in enumerate(photos):
        # pairs that begin alike share what comes next
        after = cache(lambda *tokens, photo=photo: next_word_probs(models, photo, list(tokens)))
        scores: dict[tuple[int, int], float] = {}
        for first, second in product(words, words):
            chosen = (
                after(START)[first],
                after(START, first)[second],
                after(START, first, second)[END],
            )
            scores[first, second] = float(torch.stack(chosen).log().sum())
        best = sorted(scores, key=lambda pair: -scores[pair])[:3]
        assert [tuple(tokens) for tokens in output.tokens[image].tolist()] == best
        for rank, pair in enumerate(best):  # the attention was reordered with the hypotheses
            caption = torch.tensor([[START, pair[0]]])
            features = ensemble.encoder(photo[None])
            forced = ensemble.teacher_force(features, caption, torch.tensor([2])).attention
            torch.testing.assert_close(output.attention_steps.weights[image, rank], forced.weights)


def test_copies_of_one_captioner_caption_as_it_does() -> None:
    model = members()[0].float()
    photo = np.random.default_rng(2).integers(0, 256, (31, 53, 3), dtype=np.uint8)
    ensemble = CaptionerEnsemble([copy.deepcopy(model) for _ in range(3)])
    [alone], [together] = visattn.caption(model, photo), visattn.caption(ensemble, photo)
    assert together.words == alone.words
    torch.testing.assert_close(together.maps.values, alone.maps.values)
    assert together.maps.geometry == alone.maps.geometry


def test_copies_move_and_change_together() -> None:
    ensemble = copy.deepcopy(CaptionerEnsemble(members()))
    encoders: Any = ensemble.encoder
    for member, encoder in zip(ensemble.members, encoders.encoders, strict=True):
        assert member.encoder is encoder
    names = [name for name, _ in ensemble.named_parameters()]
    assert len(names) == len(set(names)) == len(list(ensemble.parameters()))
    assert all(name.startswith("members.") for name in names)


def test_a_saved_ensemble_is_loaded(tmp_path: Path) -> None:
    ensemble, photos = CaptionerEnsemble(members()), images()
    visattn.save(ensemble, tmp_path / "ensemble.safetensors")
    loaded: Any = visattn.load(tmp_path / "ensemble.safetensors")
    assert [type(member) for member in loaded.members] == [type(each) for each in members()]
    caption, length = torch.tensor([[START, 5]] * 2), torch.tensor([2, 2])
    before = ensemble.teacher_force(ensemble.encoder(photos), caption, length)
    after = loaded.double().teacher_force(loaded.encoder(photos), caption, length)
    torch.testing.assert_close(after.logits, before.logits)


def test_export_makes_an_ensemble_of_several_files(tmp_path: Path, capsys: Any) -> None:
    files = [tmp_path / f"{index}.safetensors" for index in range(2)]
    models = members()[1:]
    for file, model in zip(files, models, strict=True):
        visattn.save(model, file)
    out = tmp_path / "both.safetensors"
    assert main(["export", *map(str, files), "--out", str(out)]) == 0
    parameters = sum(each.numel() for model in models for each in model.parameters())
    assert capsys.readouterr().out == f"{out}\tCaptionerEnsemble, {parameters:,} parameters\n"
    loaded: Any = visattn.load(out)
    assert [type(member) for member in loaded.members] == [type(model) for model in models]


def test_export_refuses_an_ensemble_of_other_models(tmp_path: Path, capsys: Any) -> None:
    files = [tmp_path / "captioner.safetensors", tmp_path / "glimpses.safetensors"]
    visattn.save(members()[0], files[0])
    glimpses = RecurrentAttentionModel(["cat", "dog"], SIZE, [0.5], [0.5], glimpse_size=5)
    visattn.save(glimpses, files[1])
    out = tmp_path / "both.safetensors"
    assert main(["export", *map(str, files), "--out", str(out)]) == 1
    assert "captioners only, got ShowAttendTell, RecurrentAttentionModel" in capsys.readouterr().err
    assert not out.exists()


def test_methods_that_need_a_decoder_are_refused() -> None:
    ensemble = CaptionerEnsemble([member.float() for member in members()])
    photo = np.zeros((24, 40, 3), np.uint8)
    with pytest.raises(ValueError, match="explain one of its members"):
        explain_words(ensemble, [photo], "relevance", max_length=2)
    [maps] = explain_words(ensemble, [photo], "occlusion", max_length=2)
    assert maps.values.shape[1:] == (3, 5)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (ShowAttendTell((*WORDS, "h"), SmallEncoder(SIZE)), "member 1 has 12"),
        (ShowAttendTell(WORDS, SmallEncoder((24, 48))), "same img_size: .*24, 40.* 1 has .24, 48"),
        (ShowAttendTell(WORDS, SmallEncoder(SIZE, mean=(0.1, 0.2, 0.3))), "same mean"),
        (ShowAttendTell(WORDS, SmallEncoder(SIZE, stride=4)), r"same grid_size: .*\(3, 5\).*"),
    ],
)
def test_members_that_differ_are_refused(other: Captioner[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaptionerEnsemble([members()[0], other])


def test_an_ensemble_has_members() -> None:
    with pytest.raises(ValueError, match="at least one captioner"):
        CaptionerEnsemble([])
