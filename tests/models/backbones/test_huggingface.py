"""Transformers models from local directories, and their preprocessing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torchvision.transforms import v2

from visattn.attribution.explained_model import analyze_model
from visattn.geometry.preprocessing import geometry_of_transform
from visattn.models.backbones.huggingface import (
    huggingface_transform,
    load_huggingface_model,
    processor_transform,
)
from visattn.pipelines import explain

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


def test_local_directory_loads_as_model(folder: Path) -> None:
    named = load_huggingface_model(folder)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(named.model(images).logits, theirs(images).logits)
    assert named.class_names == ("cat (0)", "dog", "cat (2)")
    assert (named.transform, named.weights, named.model.training) == (None, str(folder), False)


def test_names_of_classes_with_holes_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {"0": "cat", "5": "dog", "9": "yak"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"must have the numbers 0 to 2, got \[0, 5, 9\]"):
        load_huggingface_model(folder)


def test_backbone_without_head_has_no_classes(tmp_path: Path) -> None:
    config = transformers.Dinov2Config(**SMALL, image_size=28, patch_size=14)
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    assert load_huggingface_model(tmp_path).class_names == ()


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
def test_preprocessing_matches_transformers(
    kind: str, options: dict[str, Any], folder: Path
) -> None:
    fast = getattr(transformers, f"{kind}Fast", None) or getattr(transformers, kind)
    fast(**options).save_pretrained(folder)
    theirs = fast.from_pretrained(folder)
    image = np.random.default_rng(0).integers(0, 256, (89, 131, 3), np.uint8)
    made: Any = load_huggingface_model(folder).transform
    ours = made(Image.fromarray(image))
    wanted = theirs(Image.fromarray(image), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(ours, wanted, atol=1e-5, rtol=0)
    assert geometry_of_transform(made, (89, 131)).input_size == tuple(ours.shape[1:])


def test_integer_size_is_shortest_edge_for_some_processors() -> None:
    colors = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_center_crop": False}
    sizes = {
        kind: geometry_of_transform(
            huggingface_transform({"size": 10, "image_processor_type": kind, **colors}), (20, 30)
        ).input_size
        for kind in ("ViTFeatureExtractor", "CLIPImageProcessor")
    }
    assert sizes == {"ViTFeatureExtractor": (10, 10), "CLIPImageProcessor": (10, 15)}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"do_pad": True}, "step do_pad is not supported"),
        ({"size": {"shortest_edge": 8, "longest_edge": 9}}, "resizing to .* is not supported"),
        ({"size": 8, "resample": 5}, "with filter 5 is not supported"),
        ({"size": 8, "rescale_factor": 1.0}, "rescale_factor must be 1/255, got 1.0"),
        ({"max_num_patches": 25, "patch_size": 8}, "patches, as SigLIP 2 NaFlex does"),
    ],
)
def test_unsupported_preprocessing_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        huggingface_transform(config)


def test_invalid_model_directories_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must be a directory with a config.json"):
        load_huggingface_model(tmp_path / "nowhere")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(
        ValueError, match=r"lacks 16 weights of ViTForImageClassification, for example vit\."
    ):
        load_huggingface_model(folder)
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 12}))
    with pytest.raises(ValueError, match="cannot be built"):
        load_huggingface_model(folder)
    (folder / "config.json").write_text('{"model_type": "unheard of"}')
    with pytest.raises(ValueError, match="cannot be built"):
        load_huggingface_model(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config.json must hold a mapping, got list"):
        load_huggingface_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        load_huggingface_model(folder)


def test_remote_code_is_not_executed(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "code.Mine", "AutoModel": "code.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('it was run')")
    assert (
        load_huggingface_model(folder).notes[0] == "the code in the model directory is not executed"
    )
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Mine"]}))
    with pytest.raises(ValueError, match=r"has no class Mine; its own code is not executed"):
        load_huggingface_model(folder)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["pipeline"]}))
    with pytest.raises(ValueError, match=r"has no class pipeline"):
        load_huggingface_model(folder)
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    with pytest.raises(ValueError, match="cannot be built"):
        load_huggingface_model(folder)


VISION: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 16}
TEXT: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 1, "vocab_size": 37, "max_position_embeddings": 11,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def test_vision_tower_of_multimodal_model_is_loaded_and_reported(tmp_path: Path) -> None:
    both = {"vision_config": VISION, "text_config": {**TEXT, "encoder_hidden_size": 24}}
    for name, mean in (("CLIP", 0.4815), ("Siglip", 0.5), ("Blip", 0.4815)):
        whole: Any = getattr(transformers, f"{name}Config")(**both)
        kind = "BlipForConditionalGeneration" if name == "Blip" else f"{name}Model"
        model = getattr(transformers, kind)(whole).eval()
        model.save_pretrained(tmp_path / name)
        named = load_huggingface_model(tmp_path / name)
        assert type(named.model).__name__ == f"{name}VisionModel"
        said, assumed = named.notes
        assert f"only the vision tower of {kind} is used: vision_model, a {name}Vision" in said
        assert "has no preprocessor_config.json: images are resized and cropped" in assumed
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(
            named.model(images).last_hidden_state,
            model.vision_model(images).last_hidden_state,
        )
        card = analyze_model(named.model).info
        assert card.input_size == (32, 32)
        assert card.mean[0] == pytest.approx(mean, abs=1e-4)
        assert card.attention_layers[0].grid == (2, 2)
        with pytest.raises(ValueError, match=r"must take only images, .* model\.vision_model"):
            analyze_model(model)


def test_architecture_named_in_config_is_loaded(tmp_path: Path) -> None:
    stages: dict[str, Any] = {
        "hidden_sizes": [8, 16],
        "num_attention_heads": [1, 2],
        "depths": [1, 1],
    }
    stages |= {"num_encoder_blocks": 2, "sr_ratios": [2, 1], "patch_sizes": [7, 3]}
    stages |= {"strides": [4, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 13}
    for made in (
        transformers.Dinov2Model(transformers.Dinov2Config(**VISION)),
        transformers.ViTModel(transformers.ViTConfig(**VISION)),
        transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**VISION)),
        transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(**stages)),
    ):
        folder = tmp_path / type(made).__name__
        made.save_pretrained(folder)
        named = load_huggingface_model(folder)
        assert type(named.model) is type(made)
        assert named.class_names == ()
        right = made.state_dict()
        assert all(torch.equal(v, right[key]) for key, v in named.model.state_dict().items())


def test_pytorch_weights_load_and_unsafe_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    made: Any = transformers.ViTForImageClassification(config)
    torch.save(made.state_dict(), folder / "pytorch_model.bin")
    images = torch.randn(1, 3, 32, 32)
    loaded = load_huggingface_model(folder).model
    assert torch.equal(loaded(images).logits, made.eval()(images).logits)
    torch.nn.init.constant_(made.classifier.bias, float("nan"))
    torch.save(made.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"holds NaN or infinity in classifier\.bias"):
        load_huggingface_model(folder)
    torch.save(torch.nn.Linear(2, 3), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="cannot be built: .*"):
        load_huggingface_model(folder)


def test_processor_preprocessing_and_unsupported_steps(folder: Path) -> None:
    inside = {"image_processor": {"image_processor_type": "CLIPImageProcessor", "crop_size": 31}}
    (folder / "processor_config.json").write_text(json.dumps(inside))
    named = load_huggingface_model(folder)
    assert named.notes == ()
    made = geometry_of_transform(named.transform, (300, 400))
    assert made.input_size == (31, 31)  # all else is the default of its class
    padded = {"image_processor_type": "ViTImageProcessor", "do_pad": True, "size": 8}
    (folder / "preprocessor_config.json").write_text(json.dumps(padded))
    named = load_huggingface_model(folder)
    [note] = named.notes
    assert "is not supported: the preprocessing step do_pad" in note
    photo = np.zeros((61, 83, 3), np.uint8)
    sizes: tuple[dict[str, Any], ...] = ({}, {"img_size": 32}, {"resize_mode": "squash"})
    for options in sizes:  # not replaced by a default
        with pytest.raises(ValueError, match=r"step do_pad is not supported; pass .* transform="):
            explain(named, photo, "gradcam", 0, **options)
    steps = v2.Compose([v2.PILToTensor(), v2.Resize((32, 32)), v2.ToDtype(torch.float32)])
    assert explain(named, photo, "input_gradient", 0, transform=steps)
    unknown = {"image_processor_type": "HeardOfImageProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(unknown))
    assert "no image processor HeardOf" in load_huggingface_model(folder).notes[0]


FOLLOWED = (
    "Beit", "Bit", "Blip", "CLIP", "ChineseCLIP", "ConvNext", "DINOv3ViT", "DPT", "DeiT",
    "EfficientNet", "Flava", "Levit", "Llava", "MobileNetV1", "MobileNetV2", "MobileViT", "OwlViT",
    "PoolFormer", "Pvt", "SegGpt", "Segformer", "Siglip", "ViT",
)  # fmt: skip
REFUSED = {
    "Perceiver": "takes other steps .sizes 3 x 224 x 224 and 3 x 256 x 256",  # crops first
    "PPLCNet": "takes other steps .mean difference",  # BGR, and sides rounded
    "TextNet": "takes other steps .sizes",
    "Detr": "step do_pad is not supported",
    "Qwen2VL": "resizing to .* is not supported",
}  # fmt: skip


def test_image_processors_are_followed_exactly_or_refused() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (41, 59, 3), np.uint8)
    noise[:, :, 0] |= 128  # red is not blue
    photo = Image.fromarray(noise).resize((331, 253))
    for name in FOLLOWED:
        processor = getattr(transformers, f"{name}ImageProcessor")()
        right = processor(photo, return_tensors="pt")["pixel_values"][0]
        transform = processor_transform(processor)
        ours = transform(photo)
        assert ours.shape == right.shape, name
        assert float((ours - right).abs().mean()) < 0.02, name
        assert geometry_of_transform(transform, (253, 331)).input_size == ours.shape[1:], name
    offset = {"rescale_factor": 1 / 127.5, "rescale_offset": True, "do_normalize": False}
    aligned = transformers.EfficientNetImageProcessor(**offset, include_top=False)  # as of ALIGN
    right = aligned(photo, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(processor_transform(aligned)(photo), right, atol=1e-5, rtol=0)
    for name, reason in REFUSED.items():
        processor = getattr(transformers, f"{name}ImageProcessor")()
        with pytest.raises(ValueError, match=f"{reason}.*; pass a torchvision transform"):
            processor_transform(processor)


def test_missing_transformers_error_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'visattn\[hf\]'"):
        load_huggingface_model(folder)
