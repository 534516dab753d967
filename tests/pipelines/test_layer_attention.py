"""Recorded attention of layers and heads."""

import numpy as np
import pytest
import torch

from visattn.attribution.explained_model import analyze_model
from visattn.data.images.reader import LoadedImage
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.pipelines.draw_explorer import all_heads_figure, explorer_html
from visattn.pipelines.inputs import prepare_images
from visattn.pipelines.layer_attention import record_layers
from visattn.recording.model_info import ExplainedModel
from visattn.recording.recorder import record

PHOTO = LoadedImage(
    np.random.default_rng(3).integers(0, 256, (50, 90, 3), dtype=np.uint8), 1, "a.jpg"
)


@pytest.fixture(scope="module")
def explained() -> ExplainedModel:
    torch.manual_seed(5)
    model = VisionTransformer(
        ("ant", "bee"),
        img_size=(40, 56),
        patch_size=8,
        embed_dim=24,
        depth=3,
        num_heads=3,
        num_registers=2,
    )
    return analyze_model(model.eval())


def test_layers_match_the_recorder(explained: ExplainedModel) -> None:
    pixels = prepare_images(explained, PHOTO).inputs
    recorded = record_layers(explained, pixels, layers=[-1, 0], heads=[2, 0])
    assert [(layer.index, layer.heads, layer.prefix_queries, layer.grid) for layer in recorded] == [
        (index, (2, 0), ("class", "register", "register"), (5, 7)) for index in (0, 2)
    ]
    with record(explained.model) as recorder, torch.no_grad():
        explained.scores(pixels)
    for layer in recorded:
        torch.testing.assert_close(layer.weights, recorder.maps[layer.index].values[0][[2, 0]])


def test_neighboring_queries_are_averaged_above_max_weights(explained: ExplainedModel) -> None:
    pixels = prepare_images(explained, PHOTO).inputs
    full = record_layers(explained, pixels, layers=[1])[0]
    averaged = record_layers(explained, pixels, layers=[1], max_weights=3 * 35 * 20)[0]
    assert averaged.grid == (3, 4)
    assert averaged.weights.shape == (3, 3 + 12, 5, 7)
    torch.testing.assert_close(averaged.weights[:, :3], full.weights[:, :3])
    rows = full.weights[:, 3:].unflatten(1, (5, 7))
    torch.testing.assert_close(averaged.weights[:, 3], rows[:, :2, :2].mean((1, 2)))
    torch.testing.assert_close(averaged.weights[:, -1], rows[:, 3:, 5:].mean((1, 2)))


def test_output_row_is_the_class_token_or_the_mean_of_patches(
    explained: ExplainedModel,
) -> None:
    layer = record_layers(explained, prepare_images(explained, PHOTO).inputs, layers=[1])[0]
    torch.testing.assert_close(layer.output_row("class"), layer.weights[:, 0])
    torch.testing.assert_close(layer.output_row("mean"), layer.weights[:, 3:].mean(1))


def test_figure_and_page_show_all_layers(explained: ExplainedModel) -> None:
    batch = prepare_images(explained, PHOTO)
    layers = record_layers(explained, batch.inputs)
    figure = all_heads_figure(PHOTO, batch.geometries[0], explained=explained, layers=layers)
    assert figure.shape[1] > 600
    page = explorer_html(PHOTO, batch.geometries[0], explained=explained, layers=layers)
    assert '"query_roles":["class","register","register"]' in page


def test_unknown_layers_and_models_without_attention_are_refused(explained: ExplainedModel) -> None:
    pixels = prepare_images(explained, PHOTO).inputs
    with pytest.raises(ValueError, match="layers must lie between 0 and 2, got 3"):
        record_layers(explained, pixels, layers=[3])
    cnn = analyze_model(AttentionResNet(("ant", "bee"), depth=8, stem_width=4))
    with pytest.raises(ValueError, match="has no attention heads to show"):
        record_layers(cnn, pixels)
