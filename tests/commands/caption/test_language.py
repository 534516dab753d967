"""`visattn caption --model hf:DIRECTORY`, and `visattn.caption` of models of transformers."""

import importlib.util
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.cli import main
from visattn.commands.caption import language as huggingface
from visattn.models.base import SmallEncoder
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.pipelines.words.language_model import PhotoProcessor
from visattn.results.captions import Caption
from visattn.results.kinds import SPECIAL_TOKENS

pytest.importorskip("transformers")

from tests.helpers.tiny_vlms import WORDS, build

Capsys = pytest.CaptureFixture[str]


def with_words(name: str) -> tuple[Any, Any]:
    """A tiny model that generates only tokens that are words."""
    model, processor = build(name)
    words = range(len(processor[1] if isinstance(processor, tuple) else processor.tokenizer))
    first = len(words) - len(WORDS)
    model.generation_config.forced_eos_token_id = None
    model.generation_config.suppress_tokens = [*range(first), *range(len(words), 200)]
    return model, processor


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("llava", tmp_path_factory.mktemp("models"))


def save(name: str, folder: Path) -> Path:
    model, processor = with_words(name)
    model.save_pretrained(folder / name)
    for part in processor if isinstance(processor, tuple) else [processor]:
        part.save_pretrained(folder / name)
    return folder / name


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A portrait, a panorama and a file that is no image."""
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(3)
    for name, size in {"portrait": (90, 41), "panorama": (30, 160)}.items():
        pixels = generator.integers(0, 255, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    (folder / "broken.jpg").write_text("no image")
    return folder


def run(model: Path, *words: object) -> int:
    return main(["caption", "--model", f"hf:{model}", "--max-new-tokens", "4", *map(str, words)])


def test_a_folder_yields_lines_pages_panels_and_arrays(
    llava: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    assert run(llava, photos, "--out", out) == 1
    lines, errors = capsys.readouterr()
    rows = dict(line.split("\t") for line in lines.splitlines())
    assert set(rows) == {"portrait", "panorama"}
    assert "skipped" in errors
    assert "broken.jpg" in errors
    record = json.loads((out / "portrait.json").read_text())
    assert record["caption"] == rows["portrait"]
    assert record["maps"]["info"]["method"] == "attention"
    assert tuple(record["maps"]["info"]["more"][key] for key in ("layers", "heads")) == (
        "mean",
        "mean",
    )
    maps = np.load(out / "portrait.npz")["maps"]
    np.testing.assert_allclose(maps.sum((1, 2)), record["gates"], rtol=1e-4)
    page = (out / "portrait.html").read_text()
    assert "attention of LlavaForConditionalGeneration; mean of 2 layers; mean of heads" in page
    assert "on photo" in page


def test_command_and_function_agree(llava: Path, photos: Path, tmp_path: Path) -> None:
    photo = photos / "portrait.png"
    assert run(llava, photo, "--out", tmp_path, "--num-beams", 2) == 0
    model, processor = with_words("llava")
    [caption] = visattn.caption(model, photo, processor=processor, max_new_tokens=4, num_beams=2)
    arrays = np.load(tmp_path / "portrait.npz")
    np.testing.assert_allclose(arrays["maps"], caption.maps.values.numpy(), atol=1e-5)
    assert caption.gate_symbol == "on photo"


def test_controls_are_on_page_and_in_json(llava: Path, photos: Path, tmp_path: Path) -> None:
    controls = ["--layers", "-1", "--heads", "0", "2", "--relative"]
    assert run(llava, photos / "panorama.png", "--out", tmp_path, *controls) == 0
    record = json.loads((tmp_path / "panorama.json").read_text())
    made = record["maps"]["info"]["more"]
    assert (made["layers"], made["heads"]) == ([-1], [0, 2])
    assert made["relative"]
    for words in ("layers [-1]", "heads [0, 2]", "relative to a neutral prompt"):
        assert words in record["notes"]


@pytest.mark.parametrize("method", ["gradient_attention", "occlusion"])
def test_methods_give_their_own_maps(
    method: str, llava: Path, photos: Path, tmp_path: Path
) -> None:
    photo = photos / "portrait.png"
    for name in ("attention", method):
        assert run(llava, photo, "--out", tmp_path / name, "--method", name) == 0
    records = [
        json.loads((tmp_path / name / "portrait.json").read_text())
        for name in ("attention", method)
    ]
    assert records[0]["words"] == records[1]["words"]
    assert records[0]["maps"] != records[1]["maps"]
    assert records[1]["notes"].startswith(f"{method} of Llava")


def test_sampled_captions_repeat_with_their_seed(llava: Path, photos: Path, tmp_path: Path) -> None:
    options = ["--do-sample", "--temperature", "2", "--num-return-sequences", "3", "--seed", "5"]
    records = []
    for name in ("a", "b"):
        assert run(llava, photos / "portrait.png", "--out", tmp_path / name, *options) == 0
        records.append((tmp_path / name / "portrait.json").read_text())
    assert records[0] == records[1]
    assert len(json.loads(records[0])["alternatives"]) == 2


def test_image_processor_and_tokenizer_suffice(photos: Path, tmp_path: Path) -> None:
    assert run(save("ved", tmp_path), photos / "portrait.png", "--out", tmp_path / "out") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam-size", "3"], "--beam-size is for captioners of visattn"),
        (["--resize-mode", "pad"], "--resize-mode is for captioners of visattn"),
        (["--maps", "mean"], "not for hf:DIRECTORY; use --layers and --heads"),
        (["--top-p", "0.5"], "--top-p needs --do-sample"),
        (["--seed", "3"], "--seed needs --do-sample"),
        (["--length-penalty", "1"], "--length-penalty needs --num-beams"),
        (["--num-return-sequences", "2"], "needs --num-beams 2 or --do-sample"),
        (["--relative"], "--relative needs an output folder"),
        (["--out", "o", "--heads", "0", "--method", "gradcam"], "--heads needs --method attention"),
        (["--out", "o", "--relative", "--method", "gradcam"], "--relative needs --method"),
        (["--weights", "w"], "--weights has no use beside --model hf:"),
        (["--device-map", "auto", "--device", "cuda"], "--device-map cannot be combined"),
    ],
)  # fmt: skip
def test_contradicting_options_are_usage_errors(
    options: list[str], message: str, tmp_path: Path, capsys: Capsys
) -> None:
    assert run(tmp_path, "photo.png", *options) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [["--prompt", "a"], ["--num-beams", "2"], ["--relative"]],
)
def test_options_of_transformers_need_a_model_of_transformers(
    option: list[str], capsys: Capsys
) -> None:
    assert main(["caption", "photo.png", "--weights", "w.safetensors", *option]) == 2
    assert f"{' '.join(option)[:8]}" in (errors := capsys.readouterr().err)
    assert "needs a model of transformers" in errors


def test_a_model_of_another_kind_is_refused(photos: Path, capsys: Capsys) -> None:
    assert main(["caption", str(photos), "--model", "timm:resnet18"]) == 1
    assert "holds a ResNet, which is not a captioner" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        ("config.json", "must be a directory with a config.json"),
        ("model.safetensors", "no file named"),
        ("tokenizer.json", "cannot be loaded"),
        ("processor_config.json", "cannot be loaded"),
    ],
)
def test_incomplete_directories_are_refused(
    removed: str, message: str, llava: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    copy = shutil.copytree(llava, tmp_path / "copy")
    (copy / removed).unlink()
    assert run(copy, photos / "portrait.png") == 1
    *_, error = capsys.readouterr().err.splitlines()  # below the bar of transformers
    assert message in error


def test_own_code_is_not_executed(
    llava: Path, photos: Path, tmp_path: Path, capsys: Capsys
) -> None:
    copy = shutil.copytree(llava, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config |= {"architectures": ["MyModel"], "auto_map": {"AutoModel": "code.MyModel"}}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "code.py").write_text("raise SystemExit('executed')")
    assert run(copy, photos / "portrait.png") == 1
    assert "code of the directory is not executed" in capsys.readouterr().err


def test_text_models_are_refused(photos: Path, tmp_path: Path, capsys: Capsys) -> None:
    import transformers as hf

    _, processor = build("llava")
    config = hf.GPT2Config(vocab_size=200, n_embd=16, n_layer=1, n_head=2)
    hf.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    processor.save_pretrained(tmp_path / "gpt2")
    assert run(tmp_path / "gpt2", photos / "portrait.png") == 1
    assert "is it a text-only model?" in capsys.readouterr().err


def test_half_precision_gives_the_maps_of_float32(
    llava: Path, photos: Path, tmp_path: Path
) -> None:
    arrays = {}
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / dtype
        assert run(llava, photos / "portrait.png", "--dtype", dtype, "--out", out) == 0
        arrays[dtype] = np.load(out / "portrait.npz")
    full, half = arrays["float32"], arrays["bfloat16"]
    assert half["maps"].dtype == full["maps"].dtype
    np.testing.assert_allclose(half["maps"][0], full["maps"][0], atol=2e-2)  # of the same prefix
    assert (half["maps"][0] != full["maps"][0]).any()


def test_device_maps_need_accelerate(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "accelerate" else find_spec(name)
    )
    assert run(llava, photos / "portrait.png", "--device-map", "auto") == 1
    assert "pip install accelerate" in capsys.readouterr().err


def test_offloaded_weights_take_inputs_on_the_cpu() -> None:
    model, processor = build("llava")
    expected = PhotoProcessor(model, processor, "<image>w1")(Image.new("RGB", (40, 30)))
    model.to("meta")  # where accelerate leaves weights that are on disk
    inputs = PhotoProcessor(model, processor, "<image>w1")(Image.new("RGB", (40, 30)))
    assert torch.equal(inputs["pixel_values"], expected["pixel_values"])


def test_without_network_or_cache_a_directory_suffices(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert run(llava, photos / "portrait.png") == 0
    assert run(Path("Salesforce/blip-image-captioning-base"), photos / "portrait.png") == 1
    assert "visattn downloads nothing" in capsys.readouterr().err


def test_photos_that_a_model_cannot_process_are_skipped(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    from visattn.pipelines.words import replay

    original = replay.replay_text

    def fails(process: Any, photo: Any, *args: Any, **kwargs: Any) -> Any:
        if photo.name.endswith("portrait.png"):
            raise IndexError("index out of range in self")
        return original(process, photo, *args, **kwargs)

    monkeypatch.setattr(replay, "replay_text", fails)
    assert run(llava, photos) == 1
    lines, errors = capsys.readouterr()
    assert lines.startswith("panorama")
    assert "LlavaForConditionalGeneration fails on this photo: index out of range" in errors
    out = photos.parent / "existing"
    out.mkdir()
    assert run(llava, photos / "portrait.png", "--out", str(out)) == 1
    assert "skipped" not in capsys.readouterr().err  # it failed on the first photo


def test_long_prompts_are_refused(llava: Path, photos: Path, capsys: Capsys) -> None:
    assert run(llava, photos / "portrait.png", "--prompt", "w1 " * 5000) == 1
    assert "prompt and words must fit into" in capsys.readouterr().err


def test_a_missing_library_is_named(
    llava: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(llava, photos / "portrait.png") == 1
    assert "pip install 'visattn[hf]'" in capsys.readouterr().err


def test_function_refuses_arguments_of_the_other_kind_of_model() -> None:
    model, processor = build("llava")
    photo = np.zeros((40, 30, 3), np.uint8)
    with pytest.raises(TypeError, match=r"needs its processor: pass processor="):
        visattn.caption(model, photo)
    with pytest.raises(TypeError, match=r"beam_size is for captioners of visattn"):
        visattn.caption(model, photo, processor=processor, beam_size=3)
    with pytest.raises(TypeError, match=r"Linear, which has no generate"):
        visattn.caption(torch.nn.Linear(2, 2), photo, processor=processor)
    encoder = SmallEncoder((24, 24), channels=8)
    own = ShowAttendTell((*SPECIAL_TOKENS, "red"), encoder, hidden_size=8)
    with pytest.raises(TypeError, match=r"num_beams is for models of transformers"):
        visattn.caption(own, photo, num_beams=2)


def test_captions_without_words_are_written_and_not_made_again(
    photos: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, processor = build("llava")
    model.generation_config.suppress_tokens = [
        token for token in range(200) if token != model.generation_config.eos_token_id
    ]
    for part in (model, processor):
        part.save_pretrained(tmp_path / "silent")
    (photos / "broken.jpg").unlink()
    words = (photos, "--out", tmp_path / "out", "--alignment")
    assert run(tmp_path / "silent", *words) == 0
    assert capsys.readouterr().out == "panorama\t\nportrait\t\n"
    record = json.loads((tmp_path / "out" / "portrait.json").read_text())
    assert (record["caption"], record["words"]) == ("", [])
    assert Caption.from_dict(record).maps.values.shape[0] == 0
    assert "(no words)" in (tmp_path / "out" / "portrait.html").read_text()

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(huggingface.TransformersJob, "_captions", fail)
    assert run(tmp_path / "silent", *words) == 0
