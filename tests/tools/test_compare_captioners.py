"""Figures of several captioners that read one caption, from the command line of a checkout."""

from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from tool_modules import tool_module

import visattn
from visattn.data import Scenes, Vocabulary
from visattn.models.base import SmallEncoder
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import START

SCENE = 2


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return tool_module("compare_captioners")


@pytest.fixture(scope="module")
def models() -> dict[str, Captioner]:
    torch.manual_seed(4)
    texts = [caption.text for caption in Scenes(3, split="test").captions(SCENE)]
    words = Vocabulary.from_captions(texts).words
    return {
        "soft": ShowAttendTell(words, SmallEncoder((24, 24), channels=8), hidden_size=11).eval(),
        "adaptive": KnowingWhenToLook(
            words, SmallEncoder((48, 48), channels=8), hidden_size=11
        ).eval(),
    }


@pytest.mark.parametrize("name", ["soft", "adaptive"])
def test_words_have_what_the_captioner_gives_step_by_step(
    tool: ModuleType, models: dict[str, Captioner], name: str
) -> None:
    model, words = models[name], Scenes(3, split="test").captions(SCENE)[0].words
    image = Scenes(3, size=model.encoder.img_size[0], split="test").image(SCENE)
    read = tool.read_caption(model, image, tool.Input(None, words, np.zeros((30, 60, 3), np.uint8)))
    with torch.no_grad():
        state, token = model.start(model.encoder(image[None])), START
        for index, word in enumerate(words):
            logits, state, attention = model.step(state, torch.tensor([[token]]))
            token = model.words.index(word)
            expected = logits[0, 0].log_softmax(-1)[token].item()
            assert read.log_probs[index] == pytest.approx(expected, abs=1e-4)
            assert read.gates[index] == pytest.approx(attention.gate.item(), abs=1e-4)
            weights = attention.weights.reshape(model.encoder.grid_size).numpy()
            np.testing.assert_allclose(read.maps.values[index], weights, atol=1e-5)
    corner = read.maps.geometry.from_edges().to_image(
        torch.tensor([[*model.encoder.img_size]]).float()
    )
    assert corner.tolist() == [[60.0, 30.0]]  # all of the image is squashed


def test_the_command_writes_a_panel_for_each_captioner(
    tool: ModuleType,
    models: dict[str, Captioner],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = []
    for name, model in models.items():
        visattn.save(model, tmp_path / f"{name}.safetensors")
        pairs.append(f"{name}={tmp_path / name}.safetensors")
    out = tmp_path / "new" / "figure.svg"
    assert tool.main([*pairs, "--scene", str(SCENE), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    root = ET.fromstring(out.read_text())
    written = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"soft", "adaptive"} <= {*written}
    words = Scenes(3, split="test").captions(SCENE)[0].words
    assert all(written.count(word) >= 2 * words.count(word) for word in words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--image", "a.png"], "--image needs the caption: add --words"),
        (["--image", "nowhere.png", "--words", "a"], "nowhere.png"),
    ],
)
def test_wrong_images_are_usage_errors(
    tool: ModuleType,
    models: dict[str, Captioner],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    visattn.save(models["soft"], tmp_path / "m.safetensors")
    with pytest.raises(SystemExit):
        tool.main([f"m={tmp_path}/m.safetensors", *options, "--out", str(tmp_path / "b.png")])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("model.safetensors", "NAME=FILE"),
        ("soft=nowhere.safetensors", "nowhere"),
        ("soft=scenes-glimpses", "not a captioner"),
    ],
)
def test_wrong_models_are_usage_errors(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: str, message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        tool.main([pair, "--out", str(tmp_path / "a.png")])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_vocabulary_without_the_words_is_a_usage_error(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = Vocabulary.from_captions(["two dogs"]).words
    model = ShowAttendTell(words, SmallEncoder((24, 24), channels=8), hidden_size=11)
    visattn.save(model, tmp_path / "dogs.safetensors")
    with pytest.raises(SystemExit):
        tool.main([f"soft={tmp_path}/dogs.safetensors", "--out", str(tmp_path / "a.png")])
    assert "lacks" in capsys.readouterr().err
