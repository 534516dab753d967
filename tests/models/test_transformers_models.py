"""Models of transformers from directories, and what they do to pictures before they look."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from visattn.maps.geometries import Geometry
from visattn.models.transformers_models import preprocessing, transformers_model

SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 31,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        **SMALL, image_size=32, patch_size=8, id2label={0: "cat", 1: "dog", 2: "cat"}
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_directory_is_a_model(folder: Path) -> None:
    named = transformers_model(folder)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    pictures = torch.randn(2, 3, 32, 32)
    assert torch.equal(named.model(pictures).logits, theirs(pictures).logits)
    assert named.classes == ("cat (0)", "dog", "cat (2)")
    assert (named.transform, named.weights, named.model.training) == (None, str(folder), False)


def test_a_backbone_has_no_classes(tmp_path: Path) -> None:
    config = transformers.Dinov2Config(**SMALL, image_size=28, patch_size=14)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    assert transformers_model(tmp_path).classes == ()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViTImageProcessor", {"size": {"height": 37, "width": 41}}),
        ("BitImageProcessor", {"size": {"shortest_edge": 53}, "crop_size": 37}),
        ("DeiTImageProcessor", {"size": {"height": 61, "width": 61}, "crop_size": 37}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 53}, "crop_pct": 0.8}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
    ],
)
def test_pictures_come_in_as_transformers_has_them(
    kind: str, options: dict[str, Any], folder: Path
) -> None:
    fast = getattr(transformers, f"{kind}Fast", None) or getattr(transformers, kind)
    fast(**options).save_pretrained(folder)
    theirs = fast.from_pretrained(folder)
    picture = np.random.default_rng(0).integers(0, 256, (89, 131, 3), np.uint8)
    made: Any = transformers_model(folder).transform
    ours = made(Image.fromarray(picture))
    wanted = theirs(Image.fromarray(picture), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=0)
    assert Geometry.of(made, (89, 131)).input_size == tuple(ours.shape[1:])


def test_one_number_is_the_shorter_side_for_some() -> None:
    colours = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    sizes = {
        kind: Geometry.of(
            preprocessing({"size": 10, "image_processor_type": kind, **colours}), (20, 30)
        ).input_size
        for kind in ("ViTFeatureExtractor", "CLIPImageProcessor")
    }
    assert sizes == {"ViTFeatureExtractor": (10, 10), "CLIPImageProcessor": (10, 15)}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"do_pad": True}, "asks for do_pad, which is not known here"),
        ({"size": {"shortest_edge": 8, "longest_edge": 9}}, "resizing to .* is not known here"),
        ({"size": 8, "resample": 5}, "by filter 5 is not known here"),
        ({"size": 8, "rescale_factor": 1.0}, "rescale_factor must be 1/255, got 1.0"),
    ],
)
def test_other_preprocessing_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        preprocessing(config)


def test_what_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no directory with a config.json"):
        transformers_model(tmp_path / "nowhere")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"lacks \d+ weights, vit\."):
        transformers_model(folder)
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 12}))
    with pytest.raises(ValueError, match="holds no model that can be built"):
        transformers_model(folder)
    (folder / "config.json").write_text('{"model_type": "unheard of"}')
    with pytest.raises(ValueError, match="holds no model that can be built"):
        transformers_model(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config.json must hold a mapping, got list"):
        transformers_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is no JSON"):
        transformers_model(folder)


def test_code_in_a_directory_is_not_run(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine", "AutoModel": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ValueError, match="holds no model that can be built"):
        transformers_model(folder)


def test_without_transformers_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'visattn\[hf\]'"):
        transformers_model(folder)
