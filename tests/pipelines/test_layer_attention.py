"""Recorded attention of layers and heads."""

import re
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import Tensor

from visattn.images.reader import LoadedImage
from visattn.models.vit import VisionTransformer
from visattn.pipelines.inputs import PreparedImages, Preprocessing, prepare_photos
from visattn.pipelines.layer_attention import record_layers
from visattn.recording.model_info import ModelInfo, ReadRows
from visattn.recording.recorder import record
from visattn.recording.subject import Subject, analyze_model
from visattn.viz.html.explorer_page import explorer_html

PHOTO = LoadedImage(np.random.default_rng(3).integers(0, 256, (50, 90, 3), dtype=np.uint8), "a.jpg")


@pytest.fixture(scope="module")
def subject() -> Subject:
    torch.manual_seed(5)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=(40, 56), patch_size=8, embed_dim=24, depth=3, num_heads=3,
        num_classes=2, reg_tokens=2,
    )  # fmt: skip
    return analyze_model(model.eval())


def prepared(subject: Subject) -> PreparedImages:
    return prepare_photos(subject.model, subject.info, [PHOTO], Preprocessing())


def test_layers_match_the_recorder(subject: Subject) -> None:
    pixels = prepared(subject).inputs
    recorded = record_layers(subject, pixels, heads=[2, 0])[::2]
    assert [(layer.index, layer.heads, layer.prefix_queries, layer.grid) for layer in recorded] == [
        (index, (2, 0), ("class", "register", "register"), (5, 7)) for index in (0, 2)
    ]
    with record(subject.model) as recorder, torch.no_grad():
        subject.scores(pixels)
    for layer in recorded:
        torch.testing.assert_close(layer.weights, recorder.maps[layer.index].values[0][[2, 0]])


def test_neighboring_queries_are_averaged_above_max_weights(subject: Subject) -> None:
    pixels = prepared(subject).inputs
    full = record_layers(subject, pixels)[1]
    averaged = record_layers(subject, pixels, max_weights=3 * 3 * 35 * 20)[1]
    assert averaged.grid == (3, 4)
    assert averaged.weights.shape == (3, 3 + 12, 5, 7)
    torch.testing.assert_close(averaged.weights[:, :3], full.weights[:, :3])
    rows = full.weights[:, 3:].unflatten(1, (5, 7))
    torch.testing.assert_close(averaged.weights[:, 3], rows[:, :2, :2].mean((1, 2)))
    torch.testing.assert_close(averaged.weights[:, -1], rows[:, 3:, 5:].mean((1, 2)))


def test_the_row_of_a_tile_is_the_mean_of_those_that_the_scores_read(
    subject: Subject,
) -> None:
    inputs = prepared(subject).inputs
    layer = record_layers(subject, inputs)[1]

    def row(info: ModelInfo) -> Tensor:
        read = record_layers(replace(subject, info=info), inputs)[1]
        return torch.einsum("q,hqyx->hyx", torch.tensor(read.shares), read.weights)

    torch.testing.assert_close(row(subject.info), layer.weights[:, 0])
    patches = replace(subject.info, pooling="mean", read_rows=None)
    torch.testing.assert_close(row(patches), layer.weights[:, 3:].mean(1))
    mixed = ReadRows((0.25, 0.0, 0.25), 0.5, kinds=("class", "register", "register"))
    expected = (layer.weights[:, 0] + layer.weights[:, 2]) / 4 + layer.weights[:, 3:].mean(1) / 2
    torch.testing.assert_close(row(replace(patches, read_rows=mixed)), expected)


def test_a_sequence_pool_is_a_layer_of_one_head_and_one_query() -> None:
    model = VisionTransformer(
        ("ant", "bee", "cat"), img_size=(16, 16), stem="overlapping", embed_dim=128, depth=2,
        num_heads=2, mlp_ratio=1.0, global_pool="sequence", qkv_bias=False,
    )  # fmt: skip
    subject = analyze_model(model.eval())
    batch = prepared(subject)
    layers = record_layers(subject, batch.inputs)
    assert [layer.weights.shape[:2] for layer in layers] == [(2, 64), (2, 64), (1, 1)]
    torch.testing.assert_close(layers[-1].weights.sum(), torch.tensor(1.0))
    page = explorer_html(PHOTO, batch.geometries[0], subject=subject, layers=layers)
    assert '"read":"mean"' in page


def test_pages_start_with_the_tokens_that_the_scores_read(subject: Subject) -> None:
    batch = prepared(subject)
    rows = ReadRows((0.5, 0.0, 0.0), 0.5, kinds=("class", "register", "register"))
    for info, read in (
        (subject.info, ""),
        (replace(subject.info, pooling="mean", read_rows=None), "mean"),
        (replace(subject.info, pooling="mixture", read_rows=rows), "class 0.5, patches 0.5"),
    ):
        model = replace(subject, info=info)
        layers = record_layers(model, batch.inputs)[:1]
        page = explorer_html(PHOTO, batch.geometries[0], subject=model, layers=layers)
        assert f'"read":"{read}"' in page
        assert '"query_roles":["class","register","register"]' in page
    actual = re.search(r'"shares":\[([^,]*),([^,]*),', page)
    assert actual is not None
    assert (float(actual[1]), float(actual[2])) == (pytest.approx(0.5), 0)
