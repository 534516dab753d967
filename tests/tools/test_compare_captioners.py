"""Figures of several captioners that read one caption, from the command line of a checkout."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from tool_modules import tool_module

import visattn
from visattn.data import Scenes, Vocabulary
from visattn.models.base import SmallEncoder
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.results.kinds import START
from visattn.viz.heatmap import resize_image

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
def test_a_row_has_what_the_captioner_gives_step_by_step(
    tool: ModuleType, models: dict[str, Captioner], name: str
) -> None:
    model, words = models[name], Scenes(3, split="test").captions(SCENE)[0].words
    image = Scenes(3, size=model.encoder.img_size[0], split="test").image(SCENE)
    row = tool.word_row(model, image, words)
    with torch.no_grad():
        state, token = model.start(model.encoder(image[None])), START
        for index, word in enumerate(words):
            logits, state, attention = model.step(state, torch.tensor([[token]]))
            token = model.words.index(word)
            expected = logits[0, 0].log_softmax(-1)[token].item()
            assert row.log_probs[index] == pytest.approx(expected, abs=1e-4)
            assert row.gates[index] == pytest.approx(attention.gate.item(), abs=1e-4)
            weights = attention.weights.reshape(model.encoder.grid_size).numpy()
            np.testing.assert_allclose(row.maps[index], weights, atol=1e-5)


@pytest.mark.parametrize("smooth", [True, False])
def test_the_maximum_is_drawn_where_the_map_has_it_and_in_the_column_of_its_word(
    tool: ModuleType, *, smooth: bool
) -> None:
    maps = np.zeros((2, 3, 3), dtype=np.float32)
    maps[0, 0, 2] = maps[1, 2, 0] = 1
    row = tool.WordRow(maps, [0.0, -1.0], [1.0, 1.0], "β", smooth)
    gray = np.full((300, 300, 3), 90, np.uint8)
    figure = tool.word_rows({"m": row}, gray, ["a", "b"], [None, np.array([9, 9, 30, 30])])
    pixels = np.asarray(figure).astype(int)
    step, top = tool.TILE + tool.GAP, tool.TITLE_HEIGHT
    for column, (y, x) in enumerate([(0, 2), (2, 0)]):
        left = tool.GAP + (column + 1) * step
        tile = pixels[top : top + tool.TILE, left : left + tool.TILE].sum(-1)
        tile[5:35, 5:35] = 0  # the box
        cells = tile.reshape(3, 50, 3, 50).mean((1, 3))
        assert np.unravel_index(cells.argmax(), (3, 3)) == (y, x)
        beside = tile[50 * y + 25, 50 * x - 10 if x else 60]  # in the next cell
        assert (beside > tile[75, 75]) == smooth


def test_the_command_writes_a_row_for_each_captioner(
    tool: ModuleType,
    models: dict[str, Captioner],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pairs = []
    for name, model in models.items():
        visattn.save(model, tmp_path / f"{name}.safetensors")
        pairs.append(f"{name}={tmp_path / name}.safetensors")
    out = tmp_path / "new" / "figure.png"
    assert tool.main([*pairs, "--scene", str(SCENE), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    num_words = len(Scenes(3, split="test").captions(SCENE)[0].words)
    with Image.open(out) as figure:
        assert figure.width == tool.GAP + (num_words + 1) * (tool.TILE + tool.GAP)
        assert figure.height == tool.TITLE_HEIGHT + 2 * (tool.TILE + tool.TEXT_HEIGHT + tool.GAP)


def test_an_image_is_read_at_the_input_size_of_each_captioner(
    tool: ModuleType, models: dict[str, Captioner], tmp_path: Path
) -> None:
    """The row equals that of the image resized by hand; tiles have its proportions."""
    model, words = models["adaptive"], list(models["adaptive"].words[4:7])
    visattn.save(model, tmp_path / "m.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    options = ["--image", str(tmp_path / "a.png"), "--words", *words]
    out = tmp_path / "figure.png"
    assert tool.main([f"m={tmp_path}/m.safetensors", *options, "--out", str(out)]) == 0
    resized = torch.from_numpy(resize_image(pixels, (48, 48))).permute(2, 0, 1)
    row = tool.word_row(model, resized, words)
    expected = tool.word_rows({"m": row}, pixels, words, [None] * 3)
    np.testing.assert_array_equal(np.asarray(Image.open(out)), np.asarray(expected))
    width, height = round(tool.TILE * 2**0.5), round(tool.TILE / 2**0.5)
    left, top = tool.GAP, tool.TITLE_HEIGHT
    shown = np.asarray(expected)[top : top + height, left : left + width]
    np.testing.assert_array_equal(shown, resize_image(pixels, (height, width)))


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
