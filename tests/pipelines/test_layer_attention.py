"""What heads looked at, small enough for a page."""

import numpy as np
import pytest
import torch

from visattn.attribution.explained_model import subject_of
from visattn.data.images.reader import LoadedImage
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.pipelines.draw_explorer import explorer, heads_sheet
from visattn.pipelines.inputs import prepared
from visattn.pipelines.layer_attention import seen_layers
from visattn.recording.model_info import ExplainedModel
from visattn.recording.recorder import record

PHOTO = LoadedImage(
    np.random.default_rng(3).integers(0, 256, (50, 90, 3), dtype=np.uint8), 1, "a.jpg"
)


@pytest.fixture(scope="module")
def subject() -> ExplainedModel:
    torch.manual_seed(5)
    model = VisionTransformer(
        ("ant", "bee"), size=(40, 56), patch=8, width=24, depth=3, heads=3, registers=2
    )
    return subject_of(model.eval())


def test_layers_are_what_a_recorder_sees(subject: ExplainedModel) -> None:
    pixels = prepared(subject, PHOTO).inputs
    found = seen_layers(subject, pixels, layers=[-1, 0], heads=[2, 0])
    assert [(one.number, one.heads, one.askers, one.grid) for one in found] == [
        (number, (2, 0), ("class", "register", "register"), (5, 7)) for number in (0, 2)
    ]
    with record(subject.model) as seen, torch.no_grad():
        subject.scores(pixels)
    for one in found:
        torch.testing.assert_close(one.weights, seen.maps[one.number].values[0][[2, 0]])


def test_without_room_patches_that_lie_together_ask_together(subject: ExplainedModel) -> None:
    pixels = prepared(subject, PHOTO).inputs
    whole = seen_layers(subject, pixels, layers=[1])[0]
    thin = seen_layers(subject, pixels, layers=[1], room=3 * 35 * 20)[0]
    assert thin.grid == (3, 4)
    assert thin.weights.shape == (3, 3 + 12, 5, 7)
    torch.testing.assert_close(thin.weights[:, :3], whole.weights[:, :3])
    rows = whole.weights[:, 3:].unflatten(1, (5, 7))
    torch.testing.assert_close(thin.weights[:, 3], rows[:, :2, :2].mean((1, 2)))
    torch.testing.assert_close(thin.weights[:, -1], rows[:, 3:, 5:].mean((1, 2)))


def test_the_row_of_the_answer_is_that_of_the_class_or_the_mean_of_all(
    subject: ExplainedModel,
) -> None:
    one = seen_layers(subject, prepared(subject, PHOTO).inputs, layers=[1])[0]
    torch.testing.assert_close(one.row("class"), one.weights[:, 0])
    torch.testing.assert_close(one.row("mean"), one.weights[:, 3:].mean(1))


def test_a_sheet_and_a_page_are_made_of_them(subject: ExplainedModel) -> None:
    ready = prepared(subject, PHOTO)
    layers = seen_layers(subject, ready.inputs)
    sheet = heads_sheet(PHOTO, ready.geometries[0], subject=subject, layers=layers)
    assert sheet.shape[1] > 600
    page = explorer(PHOTO, ready.geometries[0], subject=subject, layers=layers)
    assert '"askers":["class","register","register"]' in page


def test_what_has_no_heads_or_no_such_layer_is_refused(subject: ExplainedModel) -> None:
    pixels = prepared(subject, PHOTO).inputs
    with pytest.raises(ValueError, match="there are 3 layers, counted from 0, got 3"):
        seen_layers(subject, pixels, layers=[3])
    cnn = subject_of(AttentionResNet(("ant", "bee"), depth=8, width=4))
    with pytest.raises(ValueError, match="has no heads to show"):
        seen_layers(cnn, pixels)
