"""`visattn export`: convert a training checkpoint to safetensors."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from visattn.commands.arguments import Flag, Word
from visattn.commands.files import create_folder
from visattn.commands.streams import activity, print_row
from visattn.models.model_files import (
    bundled_models,
    checkpoint_run,
    find_run,
    parse_hub_name,
    run_checkpoint,
)

_NAME = "model.safetensors"


def export(
    run: Annotated[Positional[Path], arg(metavar="RUN")],
    *,
    out: Annotated[Word, arg(metavar="FILE")] = "",
    overwrite: Flag = False,
    summary: Word = "",
    license: Word = "",  # noqa: A002 (the name of the option)
    private: Flag = False,
) -> int:
    """Convert a training checkpoint to one safetensors file.

    It holds the weights, the model's configuration and its preprocessing; loading it executes no
    code. Training is resumed from the checkpoint, not from this file. --out
    hf://USER/NAME[@BRANCH] uploads the file to the Hugging Face hub, with a card of the training
    config and the scores of visattn test.

    Args:
        run: run folder of visattn fit, for its best checkpoint, or a checkpoint
        out: file that ends in .safetensors, or hf://USER/NAME[@BRANCH] (default: model.safetensors
            in the run folder)
        overwrite: replace a file that exists
        summary: first sentences of the card on the hub
        license: license on the hub, such as apache-2.0
        private: make a new repository private
    """
    on_hub = out.startswith("hf://")
    if on_hub:
        parse_hub_name(out)
    elif out and Path(out).suffix != ".safetensors":
        raise ValueError(f"--out must end in .safetensors, got {out}")
    if run.suffix == ".safetensors" or str(run) in bundled_models():
        raise ValueError(f"{run} is exported already")
    checkpoint = run
    if run.suffix != ".ckpt":
        run = find_run(run)
        checkpoint, out = run_checkpoint(run), out or str(run / _NAME)
    if not out:
        raise ValueError("a checkpoint needs a name for its file: --out FILE.safetensors")
    if not on_hub:
        create_folder(Path(out).parent)
        if Path(out).exists() and not overwrite:
            raise FileExistsError(f"{out} exists: choose another --out, or pass --overwrite")
    with activity("loading the model") as shown:
        from visattn.models.card import model_card
        from visattn.models.saving import load, save

        model = load(checkpoint)
        shown.show(f"exporting to {out}")
        known = {"summary": summary, "license": license, "run": checkpoint_run(checkpoint)}
        save(model, out, card=model_card(model, out, **known) if on_hub else None, private=private)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print_row(out, f"{type(model).__name__}, {parameters:,} parameters")
    return 0
