"""Exported graphs return the maps of the model, and run without torch and visattn."""

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import visattn
from visattn.models import (
    SPECIAL_TOKENS,
    AttentionResNet,
    KnowingWhenToLook,
    RecurrentAttentionModel,
    ShowAttendTell,
    SmallEncoder,
    VisionTransformer,
    export_graph,
    read_graph_metadata,
)
from visattn.pipelines.scanpath import glimpses

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(MISSING), reason=f"no {', '.join(MISSING)}: pip install 'visattn[onnx]'"
)
SUFFIXES = [".pt2", pytest.param(".onnx", marks=needs_onnx)]
pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def without_shape_checks() -> Iterator[None]:
    """The checks compare sizes, which makes numbers of the batch axis, so that it is not free."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", value=True)
    yield
    jaxtyping.config.update("jaxtyping_disable", value=before)


def vit() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(
        ("cat", "dog"), img_size=(35, 49), patch_size=7, embed_dim=12, depth=2, num_heads=2,
        num_registers=1,
    ).eval()  # fmt: skip
    for layer in model.blocks:  # uneven attention
        nn.init.normal_(layer.get_parameter("attn.qkv.weight"), std=0.7)
    return model


def photos(size: tuple[int, int], count: int = 3) -> Tensor:
    rng = np.random.default_rng(5)
    return torch.from_numpy(rng.integers(0, 256, (count, 3, *size), dtype=np.uint8))


def run(file: Path, *inputs: Tensor) -> list[np.ndarray]:
    """Outputs of a file, of another number of images than it was traced with."""
    if file.suffix == ".pt2":
        return [each.detach().numpy() for each in torch.export.load(file).module()(*inputs)]
    session: Any = import_module("onnxruntime").InferenceSession(file)
    names = [each.name for each in session.get_inputs()]
    values = [value.numpy() for value in inputs]
    return session.run(None, dict(zip(names, values, strict=True)))


def metadata_of(file: Path) -> dict[str, Any]:
    if file.suffix == ".pt2":
        return read_graph_metadata(file)
    session: Any = import_module("onnxruntime").InferenceSession(file)
    return json.loads(session.get_modelmeta().custom_metadata_map["visattn"])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_vit_gives_the_rows_of_its_class_token(suffix: str, tmp_path: Path) -> None:
    model, images = vit(), photos((35, 49), 5)
    [file] = export_graph(model, tmp_path / f"vit{suffix}")
    logits, attention = run(file, images)
    with torch.no_grad(), visattn.record(model, queries="class") as recording:
        expected = model(images)
    maps = torch.stack([each.values[:, :, 0] for each in recording.maps], 1)
    np.testing.assert_allclose(logits, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(attention, maps.numpy(), atol=1e-5)
    assert maps.std() > 0.003
    assert metadata_of(file)["map"] == {
        "output": "attention", "axes": ["image", "layer", "head", "y", "x"], "grid": [5, 7],
    }  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["soft", "adaptive", "location"])
def test_the_steps_of_a_captioner_give_the_greedy_caption(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    words = (*SPECIAL_TOKENS, *"abcdefg")
    encoder = SmallEncoder((24, 40), channels=12)
    sizes: dict[str, Any] = {"embed_dim": 5, "hidden_size": 11, "attention_dim": 3}
    captioner = ShowAttendTell if kind == "soft" else KnowingWhenToLook
    if kind == "location":
        sizes["feedback"] = "location"
    model = captioner(words, encoder, **sizes).eval()
    start, step = export_graph(model, tmp_path / f"m{suffix}")
    metadata, images = metadata_of(step), photos((24, 40))
    state = [torch.from_numpy(value) for value in run(start, images)]
    count, tokens, maps = len(metadata["state"]), torch.full((3,), 1), []
    chosen = []
    for _ in range(4):
        logits, attention, _, *changed = run(step, *state, tokens)
        logits[:, :4] = -np.inf  # no special token: all captions have one length
        tokens = torch.from_numpy(logits.argmax(1))
        state[-count:] = map(torch.from_numpy, changed)
        chosen.append(tokens)
        maps.append(attention)
    with torch.no_grad():
        best = model.search(
            encoder(images), beam_size=1, max_length=4, min_length=4, banned_tokens=(0, 1, 3)
        )
    assert torch.stack(chosen, 1).tolist() == best.tokens[:, 0, :4].tolist()
    expected = best.attention_steps.weights[:, 0, :4].unflatten(-1, (3, 5))
    np.testing.assert_allclose(np.stack(maps, 1), expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_glimpse_model_gives_locations_and_boxes(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = RecurrentAttentionModel(
        ("cat", "dog", "ant"), (29, 41), [0.4] * 3, [0.3] * 3, num_glimpses=3, num_scales=2,
        glimpse_size=5,
        hidden_size=16, init_location="center", pad_value=0.2,
    ).eval()  # fmt: skip
    nn.init.normal_(model.policy.mean.weight)
    [file] = export_graph(model, tmp_path / f"ram{suffix}", resize_mode="squash")
    images = photos((29, 41))
    _, locations, boxes = run(file, images)
    scans = glimpses(model, [each.permute(1, 2, 0).numpy() for each in images])
    np.testing.assert_allclose(locations, torch.stack([s.locations for s in scans]), atol=1e-5)
    np.testing.assert_allclose(boxes, torch.stack([s.boxes for s in scans]), atol=1e-4)
    assert np.ptp(locations[:, 1:]) > 0.2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (AttentionResNet(("a", "b"), depth=8, stem_width=4), "AttentionResNet cannot be exported"),
        (RecurrentAttentionModel(("a", "b"), (9, 9), [0.5], [0.5]), "must not be random"),
        (
            VisionTransformer(
                ("a", "b"), img_size=(14, 14), patch_size=7, embed_dim=8, depth=1, num_heads=1,
                global_pool="mean",
            ),
            "must have a class token",
        ),
    ],
)  # fmt: skip
def test_what_has_no_map_to_export_is_refused(
    model: nn.Module, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export_graph(model, tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())


def test_a_file_that_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visattn.models.saving.graph_export._TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="does not compute what the model computes"):
        export_graph(vit(), tmp_path / "m.pt2")
    assert not list(tmp_path.iterdir())
