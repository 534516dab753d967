"""Training of small vision-language models on scenes, from the command line of a checkout."""

from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tool_modules import tool_module

from visattn.commands.score.evaluate_words import WordModel, evaluate_words, mean_word_scores
from visattn.pipelines.words.language_model import load_word_model

TINY = ["--num-scenes", "6", "--batch-size", "2", "--checkpoint-every", "1"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("train_scenes_vlm")


@pytest.mark.parametrize("kind", ["ved", "llava"])
def test_loss_of_five_captions_is_that_of_single_ones(tool: ModuleType, kind: str) -> None:
    torch.manual_seed(0)
    model = tool.build(kind).eval()
    logits = tool._ved_logits if kind == "ved" else tool._llava_logits
    images = torch.randn(2, 3, tool.SIZE, tool.SIZE)
    captions = torch.randint(5, 20, (2, 5, 7))
    captions[..., 0], captions[..., -1] = tool.START, tool.END
    with torch.no_grad():
        together = logits(model, images, captions).unflatten(0, (2, 5))
        single = logits(model, images[1:], captions[1:, 3:4])[0]
    torch.testing.assert_close(together[1, 3], single, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["ved", "llava"])
def test_interrupted_run_continues_exactly_and_is_scored(
    tool: ModuleType, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert tool.main([kind, "--out", str(whole), "--steps", "3", *TINY]) == 0
    original = tool.Training.save

    def stop(training: object) -> None:
        original(training)
        raise KeyboardInterrupt

    tool.Training.save = stop
    try:
        with pytest.raises(KeyboardInterrupt):
            tool.main([kind, "--out", str(parts), "--steps", "3", *TINY])
    finally:
        tool.Training.save = original
    assert tool.main([kind, "--out", str(parts), "--steps", "3", *TINY]) == 0
    first, second = (load_word_model(folder)[0].state_dict() for folder in (whole, parts))
    for name, weight in first.items():
        if "pooler" not in name:
            torch.testing.assert_close(weight, second[name], atol=1e-6, rtol=1e-5)
    assert tool.main([kind, "--out", str(whole), "--eval", "2"]) == 0
    assert '"truth": 0.0' in capsys.readouterr().out
    check_scores(tool, whole)


def check_scores(tool: ModuleType, folder: Path) -> None:
    from visattn.data.phrases import scene_photos
    from visattn.pipelines.words.methods import ReplayedWords

    model, processor, _ = load_word_model(folder)
    words = WordModel(model, partial(ReplayedWords.read, processor=processor))
    photos = list(scene_photos(tool.scenes(3, "test")))
    rows = list(evaluate_words(words, photos, ["attention", "relevance"]))
    means = mean_word_scores(rows)
    assert set(means) == {"attention", "relevance", "uniform", "center"}
    assert set(means["relevance"]) == {"none", "swapped", "untrained"}
    assert means["uniform"]["none"]["lift"] == pytest.approx(0, abs=1e-6)
    assert len({row["image"] for row in rows if row["control"] == "swapped"}) == 2
