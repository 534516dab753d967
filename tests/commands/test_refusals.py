"""What commands refuse: one line of what is wrong, before anything is computed or written.

More of it stands in tests/exit_codes.md.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from visattn.cli import main
from visattn.commands.model import parse_value, read_class_names

Capsys = pytest.CaptureFixture[str]
OVERLAY = "overlay photos --model cnn.safetensors"
CAPTION = "caption photos --model captioner.safetensors"
SCORE = "score maps --masks masks --model cnn.safetensors"
ALONE = ("export", "configs", "blocks", "models", "score captions")  # have no --out, or a file
DEEP = "[" * 100_000

# (command, message); the exit code is 1
CASES = [
    # models
    ("glimpse photos", "--model is missing: train one with visattn fit --config ram_scenes"),
    ("segment photos", "visattn fit --config scenes_unet"),
    ("detect photos", "visattn fit --config scenes_detr"),
    ("ask photos -q what?", "visattn fit --config sort_of_clevr_cross"),
    ("caption photos --model eye.safetensors", "RecurrentAttentionModel, which is not a captioner"),
    ("caption photos --model timm:test_resnet", "which is not a captioner"),
    ("detect photos --model runs/tried", "which is not a detector"),
    ("ask photos -q what? --model runs/tried", "which is not a model that answers questions"),
    ("overlay photos --model captioner.safetensors", "use visattn caption to show"),
    ("overlay photos --model torchvision:vit_b_61", "Unknown model vit_b_61"),
    ("caption photos --model torn.ckpt", "torn.ckpt is damaged, or holds code"),
    ("caption photos --model torn.safetensors", "torn.safetensors"),
    ("glimpse photos --model eye.safetensors --device gpu", "expected cpu, cuda, cuda:N or mps"),
    (f"{CAPTION} --device cuda:97", "--device cuda:97 is not available"),
    (f"{CAPTION} --device meta", "--device meta is not available"),
    # how it is built
    (f"{OVERLAY} --model-args num_classes=7", "cnn.safetensors comes with its own"),
    ("overlay photos --model timm:test_resnet --model-args nothing", "must be NAME=VALUE"),
    (f"{OVERLAY} --input-size a", "must be N or HEIGHTxWIDTH"),
    (f"{OVERLAY} --class-names captions.txt", "a name for each of 3 classes, got 2"),
    (f"{OVERLAY} --class-names gone.txt", "gone.txt: No such file"),
    # what is explained
    (f"{OVERLAY} --method gradcan", "got 'gradcan'; did you mean gradcam"),
    (f"{OVERLAY} --target 3", "must be a class index, 0 to 2; got 3"),
    (f"{OVERLAY} --target bees", "got 'bees'; did you mean bee"),
    (f"{OVERLAY} --method gradcam --method-args num_masks=3", "gradcam has no num_masks"),
    (f"{OVERLAY} --method rise --layers layer2", "rise has no layer"),
    (f"{OVERLAY} --method rise --heads 0", "rise has no heads"),
    (f"{OVERLAY} --layers 99", "99"),
    (f"{OVERLAY} --method gradcam --layers 0 1", "the map of one layer, got 2 layers"),
    (f"{OVERLAY} --layers leyer2", "did you mean layer2"),
    (f"{OVERLAY} --colormap mud", "unknown colormap 'mud'"),
    (f"{OVERLAY} --normalize global", "must be image, percentile or a value, got 'global'"),
    (f"{OVERLAY} --at 12,8", "--at must be pixel:X,Y, box:L,T,R,B, box:best or query:N"),
    (f"{OVERLAY} --at pixel:12;8", "--at pixel:12;8: "),
    (f"{OVERLAY} --at region:predicted", "with the class in --target"),
    (f"{OVERLAY} --at region:gone.png --target ant", "gone.png"),
    # captions, questions, objects
    (f"{CAPTION} --prompt a", "--prompt is for models of transformers"),
    (f"{CAPTION} --relative", "--relative is for models of transformers"),
    (f"{CAPTION} --generate num_beams=2", "--generate is for models of transformers"),
    # photos and folders
    (f"{OVERLAY[:7]} --model cnn.safetensors", "name photos: files, folders or URLs"),
    ("caption empty --model captioner.safetensors", "no image in empty"),
    (f"{CAPTION} --out photos", "is searched for images: the next run would read"),
    (f"{CAPTION} --out captions.txt", "--out captions.txt cannot be written"),
    (f"{CAPTION} --out captions.txt/new", "cannot be written: Not a directory"),
    (f"caption photos/dog.png{CAPTION[14:]} --figures png --out photos", "would overwrite"),
    ("caption mixed --model captioner.safetensors --strict", "torn.jpg: not an image"),
    # scores, exports, lists, data
    (f"{SCORE} --data photos --methods rolout", "did you mean rollout"),
    (f"{SCORE} --data empty --methods gradcam", "empty"),
    ("score captions torn.ckpt references.csv", "torn.ckpt"),
    ("score captions photos references.csv", "photos holds no results of visattn caption"),
    ("export nowhere", "nowhere"),
    ("export cnn.safetensors", "is exported already"),
    ("export runs/tried --out a.pt", "--out must end in .safetensors"),
    ("export runs/tried --out hf://me", "a model on the hub is named hf://USER/NAME"),
    ("data digits --root empty --out drawn", "empty does not hold MNIST/raw"),
    ("data scenes --out captions.txt/new", "cannot be written: Not a directory"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "message"), CASES)
def test_requests_that_end_with_a_message(
    line: str, message: str, run: Callable[..., int], tmp_path: Path, capsys: Capsys
) -> None:
    before = sorted(Path().rglob("*"))
    alone = "--out" in line or line.startswith(ALONE)
    out = [] if alone else ["--out", str(tmp_path / "out")]
    code = main([*line.split(" "), *out])
    printed = capsys.readouterr()
    assert message in printed.err
    assert (code, printed.out) == (1, "")
    assert "Traceback" not in printed.err
    assert sorted(Path().rglob("*")) == before
    assert not (tmp_path / "out" / "index.html").exists()


@pytest.mark.parametrize("text", ["0,a\n1,b\n", "1 a\n2 b\n", "0: a\n1: b\n", "0\tcat\n7\tdog\n"])
def test_numbers_before_class_names_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(ValueError, match="has a number before each name"):
        read_class_names(tmp_path / "classes.txt")


@pytest.mark.parametrize("text", ["cat\ndog\n", "0\n1\n", "0 - zero\n1 - one\n", "3d\ncat\n"])
def test_other_class_names_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text(text)
    assert read_class_names(tmp_path / "classes.txt") == text.splitlines()


def test_deep_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "classes.json").write_text(DEEP)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_class_names(tmp_path / "classes.json")
    assert parse_value(f"a={DEEP}") == ("a", DEEP)
