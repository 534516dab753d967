"""Put trained models into the package: `make models` trains, rounds, tests and bundles them.

python tools/bundle_models.py round RUN...    round the weights of best.ckpt, before the test
python tools/bundle_models.py bundle RUN...   model and card into --out, by default the package;
                                              the folder of a run has the name of its model
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

import visattn as va
from visattn.io.atomic import atomic_replace, atomic_write
from visattn.models.card import model_card
from visattn.models.model_files import run_checkpoint

BUNDLED = Path(va.__file__).parent / "models" / "bundled"
SUMMARIES = {
    "scenes-captioner": (
        "Captions drawn scenes of two to four colored shapes (`visattn data scenes`), with the "
        "attention of each word. It knows nothing else: on photos its words mean nothing. It is "
        "small: about one caption in twenty is wrong, and one in four of scenes with a color and a "
        "shape that training never showed together.\n\n"
        "`caption_accuracy` is the share of captions that are true, of 500 scenes; `novel` are "
        "scenes with color–shape pairs that training never showed; `untrained` and `shuffled` "
        "are controls."
    ),
    "scenes-glimpses": (
        "Reads the shape of one colored object on a drawn scene in five glimpses (`visattn data "
        "shapes`, plain objects). It knows nothing else: on photos its classes mean nothing.\n\n"
        "`error` is that with its own locations; `random` and `raster` locations are controls."
    ),
}
ORIGIN = (
    "Trained on scenes that were drawn on the fly, without any data of others, with the config "
    "below; `make models` trains it again. Weights are stored in half precision, and the scores "
    "are those of these weights."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Round or bundle the models of runs; return 0.

    Raises:
        FileNotFoundError: If a run has no checkpoint.
        KeyError: If the name of a folder is not that of a bundled model.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("round", "bundle"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder for models and cards")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for run in args.runs:
        if args.action == "round":
            round_weights(run_checkpoint(run))
        else:
            bundle(run, args.out)
    return 0


def round_weights(checkpoint: Path) -> None:
    """Round the weights of a checkpoint to half precision, in place; they stay float32."""
    content = torch.load(checkpoint, map_location="cpu", weights_only=True)
    content["state_dict"] = {
        name: tensor.half().float() if tensor.dtype == torch.float32 else tensor
        for name, tensor in content["state_dict"].items()
    }
    with atomic_replace(checkpoint) as part:
        torch.save(content, part)


def bundle(run: Path, folder: Path) -> None:
    """Write the model of a run and its card into a folder."""
    file = folder / f"{run.name}.safetensors"
    model = va.load(run_checkpoint(run))
    summary = f"{SUMMARIES[run.name]}\n\n{ORIGIN}"
    card = model_card(model, run.name, summary=summary, license="apache-2.0", run=run)
    atomic_write(file.with_suffix(".md"), card)
    va.save(model.half(), file)
    print(f"{file}: {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    raise SystemExit(main())
