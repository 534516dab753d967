"""`visattn export`: convert training checkpoints to safetensors, ONNX or a torch.export file."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.files import create_folder
from visattn.commands.options import (
    MODEL,
    OUTPUT,
    CommandParser,
    add_overwrite,
    add_resize_mode,
    refuse_without,
)
from visattn.commands.output_option import output_name
from visattn.commands.streams import activity, print_row
from visattn.models.saving.bundled import find_bundled_model, is_model_name, list_bundled_models
from visattn.models.saving.hub import parse_hub_name
from visattn.models.saving.runs import checkpoint_run, find_run, run_checkpoint

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from torch import nn

    from visattn.models.saving.card import ModelCard

_DESCRIPTION = """\
Convert a training checkpoint to one safetensors file with the weights, the model's configuration
and its preprocessing. Loading this file executes no code. Training is resumed from the checkpoint,
not from this file. With --onnx or --torch-export: a graph that returns the attention maps, too.
Several captioners with one vocabulary become an ensemble, which averages their word probabilities.

--out hf://USER/NAME[@BRANCH] uploads the file to the Hugging Face hub, with a card of the training
config, the scores of visattn test, and an example image."""

_NO_SOURCE = """\
name what to export: --run FOLDER, for the best checkpoint of a run, or a checkpoint:
  visattn export --run runs/scenes_demo/1
  visattn export runs/scenes_demo/1/checkpoints/last.ckpt --out last.safetensors"""
_NAME = "model"
_EPILOG = """\
Graphs take RGB images, uint8, of the size of the model; their metadata (JSON, "visattn") say how a
photo becomes the input and where maps lie on it. Outputs:
  Vision Transformer  logits; attention of the class token [image, layer, head, y, x]
  glimpse model       logits after each glimpse, locations in [-1, 1], boxes in pixels of the input
  LSTM captioner      two files: NAME gives the state before the first word; NAME.step takes state
                      and word, and gives logits of the next word, attention [image, y, x], state
A file is compared with the model before it is written. ONNX needs pip install 'visattn[onnx]'."""


_EXAMPLES = (
    "visattn export --run runs/scenes_demo/1",
    "visattn export --run runs/scenes_demo/1 --onnx",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn export", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "checkpoints",
        nargs="*",
        type=Path,
        metavar="CHECKPOINT",
        help=".ckpt file of visattn fit; for graphs and ensembles also a .safetensors file of "
        "visattn export, or a name of visattn models",
    )
    parser.group(MODEL).add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="run directory of visattn fit, instead of CHECKPOINT: its best checkpoint",
    )
    parser.group(OUTPUT).add_argument(
        "--out",
        type=output_name,
        metavar="FILE",
        help="output file, .safetensors, .onnx or .pt2, or hf://USER/NAME[@BRANCH] (default with "
        f"--run: {_NAME}.safetensors, .onnx or .pt2 in the run directory)",
    )
    graph = parser.group(OUTPUT).add_mutually_exclusive_group()
    graph.add_argument(
        "--onnx", action="store_const", const=".onnx", dest="suffix", help="write an ONNX graph"
    )
    graph.add_argument(
        "--torch-export",
        action="store_const",
        const=".pt2",
        dest="suffix",
        help="write a program of torch.export",
    )
    add_resize_mode(parser, "crop")
    add_overwrite(parser, "a file")
    parser.set_defaults(suffix=".safetensors")
    hub = parser.add_argument_group("card and repository on the hub")
    hub.add_argument("--summary", default="", metavar="TEXT", help="first sentences of the card")
    hub.add_argument("--image", type=Path, metavar="FILE", help="example image on the card")
    hub.add_argument("--license", default="", metavar="ID", help="license, such as apache-2.0")
    hub.add_argument("--private", action="store_true", help="make a new repository private")
    return parser


def main(argv: Sequence[str]) -> int:
    """Export the model of a checkpoint, or an ensemble of several; return 0."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if bool(args.checkpoints) == (args.run is not None):
        parser.error(_NO_SOURCE)
    if args.out is None and args.run is None:
        parser.error(f"--out FILE{args.suffix} is missing")
    on_hub = parse_hub_name(args.out or "") is not None
    hub_options = [name for name in ("summary", "image", "license", "private") if vars(args)[name]]
    if hub_options and not on_hub:
        parser.error(f"--{hub_options[0]} belongs to --out hf://USER/NAME")
    if on_hub and args.suffix != ".safetensors":
        parser.error("graphs are written to files; only weights are uploaded to the hub")
    if args.out is not None and not on_hub and Path(args.out).suffix != args.suffix:
        parser.error(
            f"--out must end in {args.suffix}, got {args.out}; --onnx writes .onnx, --torch-export "
            ".pt2, without them .safetensors is written"
        )
    if args.suffix == ".safetensors":
        refuse_without(parser, args, ["resize_mode"], "a graph, --onnx or --torch-export")
    if on_hub:
        refuse_without(parser, args, ["overwrite"], "a file, --out FILE")
    checkpoints, out = _inputs_and_output(args)
    if not on_hub:
        file = Path(out)
        create_folder(file.parent)
        if file.exists() and not args.overwrite:
            raise FileExistsError(f"{file} exists: choose another --out, or pass --overwrite")
    with activity("loading the model") as shown:
        model = _read(checkpoints)
        shown.show(f"exporting to {out}")
        if on_hub:
            from visattn.models.saving.load import save

            save(model, out, card=_card(args, checkpoints), private=args.private)
            written: list[Path | str] = [out]
        else:
            written = [*_write(model, Path(out), args)]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    for file in written:
        print_row(file, f"{type(model).__name__}, {parameters:,} parameters")
    return 0


def _write(model: "nn.Module", file: Path, args: argparse.Namespace) -> list[Path]:
    """Write a model or its graphs; return the files."""
    from visattn.models.saving.graph_export import export_graph
    from visattn.models.saving.load import save

    if args.suffix == ".safetensors":
        save(model, file)
        return [file]
    export_graph(model, file, resize_mode=args.resize_mode)
    return sorted({file, *file.parent.glob(f"{file.stem}.step{file.suffix}")})


def _card(args: argparse.Namespace, checkpoints: Sequence[Path]) -> "ModelCard":
    """Return the card of the run; without config for ensembles and checkpoints outside of a run."""
    from visattn.models.saving.card import ModelCard

    options = {"image": args.image, "license": args.license}
    if len(checkpoints) == 1:
        run = checkpoint_run(checkpoints[0])
        if any(run.glob("config*.yaml")):
            return ModelCard.from_run(run, args.summary, **options)
    return ModelCard(args.summary, **options)


def _inputs_and_output(args: argparse.Namespace) -> tuple[list[Path], Path | str]:
    """Return the checkpoints, and the output file or its name on the hub."""
    if args.run is not None:
        run = find_run(args.run)
        return [run_checkpoint(run)], args.out or run / f"{_NAME}{args.suffix}"
    checkpoints = [_find(checkpoint) for checkpoint in args.checkpoints]
    if [path.suffix for path in checkpoints] == [".safetensors"] == [args.suffix]:
        raise ValueError(
            f"{checkpoints[0]} is exported already; a checkpoint ends in .ckpt, and --onnx or "
            "--torch-export write a graph"
        )
    return checkpoints, args.out


def _find(checkpoint: Path) -> Path:
    """Return the file of a checkpoint, or of a model that comes with visattn."""
    if str(checkpoint) in list_bundled_models() and is_model_name(checkpoint):
        return find_bundled_model(str(checkpoint))
    if checkpoint.is_dir():
        raise ValueError(f"{checkpoint} is a folder; export the folder of a run with --run")
    if not checkpoint.is_file():
        raise FileNotFoundError(
            f"{checkpoint} does not exist; visattn fit prints where it saves checkpoints"
        )
    return checkpoint


def _read(checkpoints: Sequence[Path]) -> "nn.Module":
    """Return the model of a file, or the ensemble of the captioners of several."""
    from visattn.models.captioning.captioner import Captioner
    from visattn.models.captioning.ensemble import CaptionerEnsemble
    from visattn.models.saving.checkpoint import read_model
    from visattn.models.saving.load import load

    if len({path.resolve() for path in checkpoints}) < len(checkpoints):
        raise ValueError("an ensemble is made of different checkpoints, got one twice")
    models = [
        load(path) if path.suffix == ".safetensors" else read_model(path) for path in checkpoints
    ]
    if len(models) == 1:
        return models[0]
    captioners = [model for model in models if isinstance(model, Captioner)]
    if len(captioners) < len(models):
        names = ", ".join(type(model).__name__ for model in models)
        raise ValueError(f"an ensemble has captioners only, got {names}; export them one by one")
    return CaptionerEnsemble(captioners).eval()
