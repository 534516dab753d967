"""Transformers models from local directories, and their preprocessing."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from torchvision.transforms import v2

import visattn as va
from tests.helpers import tiny_vlms
from visattn.cli import main
from visattn.geometry.preprocessing import geometry_of_transform
from visattn.models.backbones.huggingface import image_transform, processor_transform
from visattn.models.loaded import loaded_with

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


def test_a_directory_loads_as_its_model(folder: Path) -> None:
    model: Any = va.load(f"hf:{folder}")
    theirs = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images).logits, theirs(images).logits)
    assert loaded_with(model).class_names == ("cat (0)", "dog", "cat (2)")
    assert (loaded_with(model).weights, model.training) == (str(folder), False)
    assert image_transform(loaded_with(model)) is None


def test_preprocessing_of_a_directory_matches_transformers(folder: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (89, 131, 3), np.uint8)
    for kind, options in (
        ("ViTImageProcessor", {"size": {"height": 37, "width": 41}}),
        ("BitImageProcessor", {"size": {"shortest_edge": 53}, "crop_size": 37}),
    ):
        theirs = getattr(transformers, kind)(**options)
        theirs.save_pretrained(folder)
        wanted = theirs(Image.fromarray(image), return_tensors="pt")["pixel_values"][0]
        batch = va.Explainer(va.load(f"hf:{folder}"), dense=True).prepare(image)
        torch.testing.assert_close(batch.inputs[0], wanted, atol=1e-5, rtol=0)


def edited(**more: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **more}))

    return edit


def own_code(folder: Path) -> None:
    (folder / "code.py").write_text("raise SystemExit('it was run')")
    edited(auto_map={"AutoConfig": "code.Mine", "AutoModel": "code.M"}, architectures=["Mine"])(
        folder
    )


def own_type(folder: Path) -> None:
    own_code(folder)
    edited(architectures=None, model_type="mine")(folder)


def a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(torch.nn.Linear(2, 3), folder / "pytorch_model.bin")


def text(written: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "config.json").write_text(written)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "holes between classes": (
        edited(id2label={"0": "cat", "5": "dog", "9": "yak"}), "must have the numbers 0 to 2",
    ),
    "missing weights": (edited(num_hidden_layers=3), r"lacks 16 weights, such as vit\."),
    "other shapes": (edited(hidden_size=12), "cannot be built"),
    "unknown type": (text('{"model_type": "unheard of"}'), "cannot be built"),
    "no object": (text("[1]"), "config.json: 'list' object has no attribute 'get'"),
    "no JSON": (text("{"), "config.json: line 1, column 2: invalid JSON"),
    "own code": (own_code, "cannot be built: .*Mine"),
    "own type": (own_type, "cannot be built"),
    "no model": (edited(architectures=["pipeline"]), "transformers has no model pipeline"),
    "a pickle": (a_pickle, "cannot be built"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, folder: Path) -> None:
    change, reason = REFUSED[name]
    change(folder)
    with pytest.raises(ValueError, match=reason):
        va.load(f"hf:{folder}")


def test_code_of_a_directory_and_of_the_hub_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_code(folder)
    edited(architectures=["ViTForImageClassification"])(folder)
    edited(attn_implementation="evil/kernel", _attn_implementation="evil/kernel")(folder)
    assert loaded_with(va.load(f"hf:{folder}")).class_names
    both = {"vision_config": {**VISION, "attn_implementation": "evil/kernel"}, "text_config": TEXT}
    transformers.CLIPModel(
        transformers.CLIPConfig(vision_config=VISION, text_config=TEXT)
    ).save_pretrained(folder / "clip")
    edited(**both)(folder / "clip")
    assert type(va.load(f"hf:{folder / 'clip'}")).__name__ == "CLIPModel"
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'visattn\[hf\]'"):
        va.load(f"hf:{folder}")
    with pytest.raises(FileNotFoundError, match="nowhere must be a directory"):
        va.load("hf:nowhere")


VISION: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 16}
TEXT: dict[str, Any] = {
    **SMALL, "num_hidden_layers": 1, "vocab_size": 37, "max_position_embeddings": 11,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def test_a_model_of_images_and_texts_is_whole_and_explained_by_its_vision_tower(
    tmp_path: Path,
) -> None:
    both = {"vision_config": VISION, "text_config": {**TEXT, "encoder_hidden_size": 24}}
    photo = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    for name, mean in (("CLIP", 0.4815), ("Siglip", 0.5), ("Blip", 0.4815)):
        whole: Any = getattr(transformers, f"{name}Config")(**both)
        kind = "BlipForConditionalGeneration" if name == "Blip" else f"{name}Model"
        made = getattr(transformers, kind)(whole).eval()
        made.save_pretrained(tmp_path / name)
        processor = getattr(transformers, f"{name}ImageProcessor")(size={"height": 32, "width": 32})
        processor.do_center_crop = False
        processor.save_pretrained(tmp_path / name)
        model = va.load(f"hf:{tmp_path / name}")
        assert type(model) is type(made)
        [heatmap] = va.explain(model, photo, "rollout")
        assert heatmap.info.model == f"{made.config.vision_config.model_type}"
        assert heatmap.info.more["preprocessing"]["mean"][0] == pytest.approx(mean, abs=1e-4)
        [expected] = va.explain(made.vision_model, photo, "rollout", resize_mode="squash")
        torch.testing.assert_close(heatmap.values, expected.values, atol=0.05, rtol=0.05)
        with pytest.raises(ValueError, match=r"must take only images, .* model\.vision_model"):
            va.explain(made, photo, "rollout")


@pytest.mark.slow
def test_a_model_that_generates_captions_and_its_tower_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    made, processor = tiny_vlms.build("llava")
    made.save_pretrained(tmp_path / "llava")
    processor.save_pretrained(tmp_path / "llava")
    photo = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    model = va.load(f"hf:{tmp_path / 'llava'}")
    assert type(model) is type(made)
    [ours] = va.caption(model, photo, max_new_tokens=2)
    [theirs] = va.caption(made.eval(), photo, processor=processor, max_new_tokens=2)
    assert ours.text == theirs.text
    [heatmap] = va.explain(model, photo, "rollout")
    assert heatmap.info.model == made.config.vision_config.model_type
    Image.fromarray(photo).save(tmp_path / "photo.png")
    words = ["overlay", str(tmp_path / "photo.png"), "--model", f"hf:{tmp_path / 'llava'}"]
    assert main([*words, "--method", "rollout", "--out", str(tmp_path / "out")]) == 0
    assert "only the vision tower of LlavaForCond" in capsys.readouterr().err
    drawn = np.load(tmp_path / "out" / "photo.npz")["rollout"]
    np.testing.assert_allclose(drawn, heatmap.values.numpy(), rtol=1e-4)


def test_preprocessing_that_is_not_followed_is_not_replaced_by_a_default(folder: Path) -> None:
    inside = {"image_processor": {"image_processor_type": "CLIPImageProcessor", "crop_size": 32}}
    (folder / "processor_config.json").write_text(json.dumps(inside))
    transform = image_transform(loaded_with(va.load(f"hf:{folder}")))
    assert geometry_of_transform(transform, (300, 400)).input_size == (32, 32)
    (folder / "processor_config.json").unlink()
    photo = np.zeros((61, 83, 3), np.uint8)
    options: tuple[dict[str, Any], ...] = ({}, {"input_size": 32}, {"resize_mode": "squash"})
    steps = v2.Compose([v2.PILToTensor(), v2.Resize((32, 32)), v2.ToDtype(torch.float32)])
    for config, reason in (
        ({"image_processor_type": "DetrImageProcessor"}, "DetrImageProcessor is not supported"),
        ({"image_processor_type": "HeardOfImageProcessor"}, "processor in .* cannot be loaded: "),
    ):
        (folder / "preprocessor_config.json").write_text(json.dumps(config))
        model = va.load(f"hf:{folder}")
        for each in options:
            with pytest.raises(ValueError, match=reason):
                va.explain(model, photo, "gradcam", 0, **each)
        assert va.explain(model, photo, "input_gradient", 0, transform=steps)


FOLLOWED = ("Beit", "Bit", "Blip", "CLIP", "ChineseCLIP", "DINOv3ViT", "DeiT", "Siglip", "ViT")
REFUSED_PROCESSORS = (
    "ConvNext",
    "Detr",
    "EfficientNet",
    "Levit",
    "Perceiver",
    "PPLCNet",
    "Qwen2VL",
)


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
    for name in REFUSED_PROCESSORS:
        processor = getattr(transformers, f"{name}ImageProcessor")()
        with pytest.raises(ValueError, match=f"{name}.*; pass a torchvision transform"):
            processor_transform(processor)
