r"""Train a small vision-language model of transformers on drawn scenes, from random weights.

    python tools/train_scenes_vlm.py ved|llava --out DIR [--eval 500]

`ved` is a VisionEncoderDecoder (ViT and GPT-2), `llava` a LLaVA (CLIP tower and Llama), on scenes
of configs/scenes_demo.yaml; a word is a token. `save_pretrained` writes DIR with its processor; the
same command continues an interrupted run.
"""

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from visattn.commands.options import CommandParser

ROOT = Path(__file__).resolve().parents[1]
SIZE, PATCH, WIDTH, LENGTH = 48, 8, 96, 14
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
PAD, START, END, _, IMAGE = range(5)
IDS: dict[str, Any] = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}


def main(argv: Sequence[str] | None = None) -> int:
    """Train or evaluate and return 0."""
    args = _parser().parse_args(argv)
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    if args.eval:
        print(json.dumps(_evaluate(*_load(args.out), args.eval, args.seed)))
    else:
        _train(args)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="train_scenes_vlm.py", description=__doc__)
    add = parser.add_argument
    add("kind", choices=("ved", "llava"))
    add("--out", type=Path, required=True, metavar="DIR", help="folder of model and checkpoint")
    add("--steps", type=int, default=12000, metavar="N", help="optimizer steps (12000)")
    add("--batch-size", type=int, default=16, metavar="N", help="scenes per step (16)")
    add("--num-scenes", type=int, default=12000, metavar="N", help="training scenes (12000)")
    add("--lr", type=float, default=2e-3, help="highest learning rate (2e-3)")
    add("--parts", type=float, default=0.2, help="weight of the loss of the parts (0.2)")
    add("--seed", type=int, default=0, help="seed of weights and batches, or of test scenes (0)")
    add("--checkpoint-every", type=int, default=500, metavar="N", help="steps (500)")
    add("--eval", type=int, metavar="N", help="share of true captions on N test scenes")
    return parser


def scenes(count: int, split: Any, seed: int = 0) -> Any:
    """Return the scenes of configs/scenes_demo.yaml at the size of the models."""
    from visattn.data.scenes.dataset import Scenes
    from visattn.data.scenes.world import WorldConfig

    colors = ("red", "green", "blue", "yellow", "purple", "orange")
    shapes = ("circle", "square", "triangle", "cross")
    config = WorldConfig(colors, shapes, ("plain",), (2, 2))
    return Scenes(count, size=SIZE, split=split, seed=seed, config=config)


def vocabulary() -> list[str]:
    """Return the special tokens and the words of the captions."""
    from visattn.data.scenes.language import grammar_words

    return [*SPECIAL, *grammar_words(scenes(1, "train").config)]


def _arrays(count: int, folder: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Return pixels `n 3 y x`, tokens `n 5 t` and parts `n y x 3` of the training scenes.

    The parts name size, color and shape of the object that covers most of a patch, 0 for none.
    """
    path = folder / f"scenes_{count}.pt"
    if path.is_file():
        return torch.load(path, weights_only=True)
    ids = {word: index for index, word in enumerate(vocabulary())}
    dataset = scenes(count, "train")
    pixels = torch.stack([dataset.image(index) for index in range(count)])
    tokens = torch.full((count, 5, LENGTH), PAD)
    for index in range(count):
        for row, caption in zip(tokens[index], dataset.captions(index), strict=True):
            line = [START, *(ids[word] for word in caption.words), END]
            row[: len(line)] = torch.tensor(line)
    parts = torch.stack([_parts(dataset, index) for index in range(count)])
    torch.save((pixels, tokens, parts), path)
    return pixels, tokens, parts


def _parts(dataset: Any, index: int) -> Tensor:
    from visattn.data.scenes.world import RADII

    share = nn.functional.avg_pool2d(dataset.masks(index).float(), PATCH)
    kinds = [tuple(RADII), dataset.config.colors, dataset.config.shapes]
    names = [(o.size, o.color, o.shape) for o in dataset.world(index).objects]
    labels = torch.tensor(
        [[kind.index(name) + 1 for kind, name in zip(kinds, each, strict=True)] for each in names]
    )
    most = labels[share.argmax(0)]
    return most * (share.amax(0) > 0.2)[..., None]


def _batches(
    pixels: Tensor, tokens: Tensor, parts: Tensor, size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield normalized images, captions and parts; half are mirrored, left and right swapped."""
    words = vocabulary()
    mirrored = torch.arange(len(words))
    left, right = words.index("left"), words.index("right")
    mirrored[left], mirrored[right] = right, left
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(pixels), generator=generator).split(size):
            images, captions = pixels[rows].float() / 127.5 - 1, tokens[rows]
            labels = parts[rows]
            flip = torch.rand(len(rows), generator=generator) < 0.5
            images[flip] = images[flip].flip(-1)
            captions[flip] = mirrored[captions[flip]]
            labels[flip] = labels[flip].flip(2)
            yield images, captions, labels


def build(kind: str) -> nn.Module:
    """Return a model with random weights."""
    return _ved() if kind == "ved" else _llava()


def _ved() -> nn.Module:
    hf: Any = importlib.import_module("transformers")

    encoder = hf.ViTModel(
        hf.ViTConfig(
            image_size=SIZE, patch_size=PATCH, hidden_size=WIDTH, num_hidden_layers=2,
            num_attention_heads=4, intermediate_size=2 * WIDTH, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        add_pooling_layer=False,
    )  # fmt: skip
    decoder = hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=len(vocabulary()), n_positions=32, n_embd=WIDTH, n_layer=2, n_head=4,
            n_inner=2 * WIDTH, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            add_cross_attention=True, is_decoder=True, **IDS,
        )
    )  # fmt: skip
    model = hf.VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    model.config.decoder_start_token_id, model.config.pad_token_id = START, PAD
    model.config.eos_token_id = END
    model.generation_config.update(decoder_start_token_id=START, **IDS)
    _place(encoder.embeddings.position_embeddings, 1)
    return model


def _llava() -> nn.Module:
    hf: Any = importlib.import_module("transformers")

    vision = hf.CLIPVisionConfig(
        image_size=SIZE, patch_size=PATCH, hidden_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=2 * WIDTH,
    )  # fmt: skip
    text = hf.LlamaConfig(
        vocab_size=len(vocabulary()), hidden_size=WIDTH, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=2 * WIDTH,
        max_position_embeddings=128, **IDS,
    )  # fmt: skip
    config = hf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1,
        image_seq_length=(SIZE // PATCH) ** 2,
    )  # fmt: skip
    model = hf.LlavaForConditionalGeneration(config)
    model.generation_config.update(**IDS)
    _place(model.model.vision_tower.embeddings.position_embedding.weight[None], 1)
    return model


@torch.no_grad()
def _place(embeddings: Tensor, skip: int) -> None:
    """Initialize position embeddings `1 n d` with sines and cosines of x and y."""
    side, quarter = SIZE // PATCH, embeddings.shape[-1] // 4
    at = torch.arange(side)[:, None] * math.pi / side
    waves = at * torch.linspace(0.5, side / 2, quarter)
    axis = torch.cat([waves.sin(), waves.cos()], 1)
    grid = torch.cat([axis[:, None].expand(-1, side, -1), axis[None].expand(side, -1, -1)], -1)
    embeddings[0, skip:] = 0.5 * grid.flatten(0, 1)


def loss_of(
    model: Any, head: nn.Module, images: Tensor, captions: Tensor, parts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of five captions of each image, and that of the patches' parts."""
    count, each, _ = captions.shape
    longest = int((captions != PAD).sum(-1).max())
    captions = captions[..., :longest]
    states: list[Tensor] = []
    tower = model.encoder if hasattr(model, "decoder") else model.model.vision_tower
    hook = tower.register_forward_hook(lambda *call: states.append(call[2].last_hidden_state))
    logits = (_ved_logits if hasattr(model, "decoder") else _llava_logits)(model, images, captions)
    hook.remove()
    targets = captions[..., 1:].reshape(count * each, -1)
    entropy = nn.functional.cross_entropy
    *named, places = head(states[0][:, 1:]).flatten(0, 1).split((4, 7, 5, 2), 1)
    labels = parts.flatten(0, 2).unbind(1)
    extra = sum(entropy(guess, label) for guess, label in zip(named, labels, strict=True))
    axis = torch.linspace(-1, 1, parts.shape[1])
    grid = torch.cartesian_prod(axis, axis).repeat(count, 1)
    extra = extra + nn.functional.mse_loss(places, grid)
    return entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD), extra


def _ved_logits(model: Any, images: Tensor, captions: Tensor) -> Tensor:
    states = model.encoder(images).last_hidden_state.repeat_interleave(captions.shape[1], 0)
    inputs = captions[..., :-1].flatten(0, 1)
    return model.decoder(inputs, encoder_hidden_states=states, use_cache=False).logits


def _llava_logits(model: Any, images: Tensor, captions: Tensor) -> Tensor:
    """Return logits; the captions follow the image in one sequence and do not see each other."""
    count, each, length = captions.shape
    keys, words = (SIZE // PATCH) ** 2 + 1, length - 2  # START, image | words of each caption
    head = torch.tensor([START] + [IMAGE] * (keys - 1)).expand(count, -1)
    tail = captions[..., 1:-1]
    ids = torch.cat([head, tail.flatten(1)], 1)
    block = torch.arange(each).repeat_interleave(words)
    owner = torch.cat([torch.full((keys,), -1), block])
    total = len(owner)
    sees = (owner[None] == -1) | (owner[:, None] == owner[None])
    sees &= torch.ones(total, total, dtype=torch.bool).tril()
    positions = torch.cat([torch.arange(keys), keys + torch.arange(words).repeat(each)])
    bias = torch.zeros(total, total).masked_fill(~sees, torch.finfo(torch.float32).min)
    logits = model(
        input_ids=ids, pixel_values=images, attention_mask=bias.expand(count, 1, -1, -1),
        position_ids=positions.expand(count, -1), use_cache=False,
    ).logits  # fmt: skip
    first = logits[:, keys - 1 : keys, None].transpose(1, 2).expand(-1, each, -1, -1)
    rest = logits[:, keys:].unflatten(1, (each, words))
    return torch.cat([first, rest], 2).flatten(0, 1)


class Training:
    """A model in training, with the moving average of its weights, which is what is saved."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        self.args, self.checkpoint = args, args.out / "checkpoint.pt"
        self.model = build(args.kind).train()
        self.head = nn.Linear(WIDTH, 4 + 7 + 5 + 2)
        self.optimizers = _optimizers(self.model, self.head, args.lr)
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.step, self.seconds = 0, 0.0
        if self.checkpoint.is_file():
            self._resume(torch.load(self.checkpoint, weights_only=True))

    def _resume(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.head.load_state_dict(saved["head"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.average, self.step, self.seconds = saved["average"], saved["step"], saved["seconds"]

    def update(self, images: Tensor, captions: Tensor, parts: Tensor) -> float:
        """Take one optimizer step, and return the loss of the captions."""
        started = time.monotonic()
        cosine = 0.99 * 0.5 * (1 + math.cos(math.pi * self.step / self.args.steps)) + 0.01
        loss, extra = loss_of(self.model, self.head, images, captions, parts)
        (loss + self.args.parts * extra).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.args.lr * min(1.0, (self.step + 1) / 300) * cosine
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        decay = min(0.995, self.step / (self.step + 9))
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - decay)
        self.seconds += time.monotonic() - started
        return float(loss.detach())

    def save(self) -> None:
        """Write the checkpoint and the averaged model, and print its share of true captions."""
        names = ("average", "step", "seconds")
        state: dict[str, Any] = {name: getattr(self, name) for name in names}
        state |= {"model": self.model.state_dict(), "head": self.head.state_dict()}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save(state, self.checkpoint.with_suffix(".new"))
        self.checkpoint.with_suffix(".new").replace(self.checkpoint)
        averaged = build(self.args.kind)
        averaged.load_state_dict(self.average)
        save(averaged.eval(), self.args.out)
        score = _evaluate(averaged, self.args.kind, 100)
        print(f"step {self.step}  truth {score['truth']:.2f}  {self.seconds:.0f} s", flush=True)


def _train(args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    training = Training(args)
    batches = _batches(*_arrays(args.num_scenes, args.out), args.batch_size, args.seed)
    for _ in range(training.step):
        next(batches)
    losses: list[float] = []
    while training.step < args.steps:
        losses.append(training.update(*next(batches)))
        if training.step % 100 == 0:
            mean = sum(losses) / len(losses)
            print(f"step {training.step}  loss {mean:.4f}  {training.seconds:.0f} s", flush=True)
            losses.clear()
        if training.step % args.checkpoint_every == 0 or training.step == args.steps:
            training.save()


def _optimizers(model: nn.Module, head: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for everything else."""
    matrices = [
        weight for name, weight in model.named_parameters()
        if weight.ndim == 2 and "embed" not in name and "wte" not in name and "wpe" not in name
        and "lm_head" not in name
    ]  # fmt: skip
    ids = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in ids]
    return [
        torch.optim.Muon(matrices, lr=lr, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(
            [*others, *head.parameters()], lr=lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]


def save(model: Any, folder: Path) -> None:
    """Write model, tokenizer and processor, so that `AutoProcessor.from_pretrained` finds them."""
    hf: Any = importlib.import_module("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    model.save_pretrained(folder)
    words = {word: index for index, word in enumerate(vocabulary())}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", START)]
    )
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>", padding_side="left", clean_up_tokenization_spaces=False,
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    half: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    if hasattr(model, "decoder"):
        vit = hf.ViTImageProcessor(size={"height": SIZE, "width": SIZE}, **half)
        processor: Any = hf.TrOCRProcessor(vit, tokenizer)
    else:
        crop = {"height": SIZE, "width": SIZE}
        clip = hf.CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=crop, **half)
        processor = hf.LlavaProcessor(
            clip, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
            image_token="<image>", num_additional_image_tokens=1,
        )  # fmt: skip
    processor.save_pretrained(folder)


def _load(folder: Path) -> tuple[Any, str]:
    hf: Any = importlib.import_module("transformers")

    kind = json.loads((folder / "config.json").read_text())
    model = getattr(hf, kind["architectures"][0]).from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, use_safetensors=True
    )
    return model.eval(), "llava" if kind["model_type"] == "llava" else "ved"


@torch.no_grad()
def _evaluate(model: Any, kind: str, count: int, seed: int = 0) -> dict[str, float]:
    """Return the share of test scenes whose greedy caption is true, and that is grammatical."""
    from visattn.data.scenes.language import verify_caption

    dataset, words = scenes(count, "test", seed), vocabulary()
    true = parsed = 0
    for rows in (range(first, min(count, first + 50)) for first in range(0, count, 50)):
        images = torch.stack([dataset.image(row) for row in rows]).float() / 127.5 - 1
        options: dict[str, Any] = {}
        if kind == "llava":
            ids = torch.tensor([START] + [IMAGE] * (SIZE // PATCH) ** 2).expand(len(images), -1)
            options = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        output = model.generate(pixel_values=images, max_new_tokens=14, do_sample=False, **options)
        start = options["input_ids"].shape[1] if options else 1
        for row, ids in zip(rows, output[:, start:].tolist(), strict=True):
            text = " ".join(words[token] for token in ids if token >= len(SPECIAL))
            verdict = verify_caption(text, dataset.world(row))
            true, parsed = true + verdict.true, parsed + verdict.parsed
    return {"count": count, "truth": true / count, "parsed": parsed / count}


if __name__ == "__main__":
    raise SystemExit(main())
