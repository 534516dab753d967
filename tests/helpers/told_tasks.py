"""A tiny config for every task there is, over data made for a test."""

import gzip
import json
from pathlib import Path

from class_miniatures import write_digits
from miniatures import write_caption_data

TRAINER = """\
trainer:
  accelerator: cpu
  max_epochs: 2
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  logger: false
  gradient_clip_val: 0.1
  callbacks: [{class_path: run_diaries.RunDiary}]
model:
"""
OPTIMIZER = """\
    optimizer:
      class_path: torch.optim.AdamW
      init_args: {lr: 2.0e-3, weight_decay: 0.1}
"""
TRANSFORMER = """\
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: VisionTransformer
      init_args: {size: [28, 28], patch: 7, width: 8, depth: 1, heads: 2, mean: %s, std: %s}
"""
DIGITS = """\
data:
  class_path: TorchvisionDataModule
  init_args: {source: MNIST, root: ., validation: 11, augment: [{RandomTranslate: {pixels: 2}}]}
"""
CAPTIONS = """\
  class_path: %s
  init_args:
    captioner:
      class_path: ShowAttendTell
      init_args:
        encoder: {class_path: TimmEncoder, init_args: {name: test_resnet, size: [64, 64]}}
        word_width: 7
        hidden: 11
        attention: 5
        dropout: 0.0
    beam: 2
    best_by: val/cider-d
    warm: 0
%s"""
PHOTOS = """\
data:
  class_path: CaptionDataModule
  init_args:
    {captions: captions.jsonl, photos: photos, train: train.txt, validation: validation.txt,
     phrases: phrase_boxes.json.gz, mirror: true, min_count: 1}
"""
GUIDED = "    penalty: 1.0\n    supervision: 0.5\n    smoothing: 0.1\n"
GLIMPSES = """\
  class_path: GlimpseTask
  init_args:
    model:
      class_path: RecurrentAttentionModel
      init_args:
        {size: [28, 28], mean: [0.1], std: [0.3], glimpse: 7, glimpses: 3, width: 11, what: 7,
         where: 5, spread: 0.3}
    rollouts: 3
    baseline: average
    reward: log_probability
    normalize: true
    reaching: true
    random_epochs: 1
    starts: 2
    samples: 2
"""
SCENES = """\
  class_path: CaptioningTask
  init_args:
    captioner:
      class_path: ShowAttendTell
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {size: [24, 24], channels: 8}}
        word_width: 7
        hidden: 11
        attention: 5
    beam: 2
data:
  class_path: ScenesDataModule
  init_args: {size: 24, train: 3, validation: 11, test: 11, batch: 7, workers: 0}
"""
SHAPES = """\
data:
  class_path: SingleObjectDataModule
  init_args: {size: 28, train: 13, validation: 11, test: 11}
"""
CONFIGS = {
    "digits": TRAINER + TRANSFORMER % ("[0.1]", "[0.3]") + OPTIMIZER + DIGITS,
    "shapes": TRAINER + TRANSFORMER % (["0.5"] * 3, ["0.3"] * 3) + OPTIMIZER + SHAPES,
    "captions": TRAINER + CAPTIONS % ("CaptioningTask", GUIDED) + OPTIMIZER + PHOTOS,
    "critical": TRAINER + CAPTIONS % ("SCSTTask", "    samples: 3\n") + OPTIMIZER + PHOTOS,
    "glimpses": TRAINER + GLIMPSES + OPTIMIZER + DIGITS,
    "scenes": TRAINER + SCENES,
}


def write_tasks(folder: Path) -> None:
    """Write a config for every task, and the data that they read, into a folder."""
    for name, config in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(config)
    write_digits(folder, train=34)
    _write_photos(folder)


def _write_photos(folder: Path) -> None:
    """Write 12 photos for training and 11 for validation; they have 1 to 5 captions each.

    Phrases are known of every third training photo, and of the first two for validation.
    """
    paths = write_caption_data(folder, photos=23, format="jsonl")
    told = [json.loads(line) for line in paths.captions.read_text().splitlines()]
    for index, one in enumerate(told):
        one["captions"] = one["captions"][: 1 + index % 5]
    paths.captions.write_text("".join(json.dumps(one) + "\n" for one in told))
    names = [one["file"] for one in told]
    paths.train.write_text("\n".join(names[:12]))
    paths.validation.write_text("\n".join(names[12:]))
    phrases = json.loads(gzip.decompress(paths.phrases.read_bytes()))
    kept = {*names[:12:3], *names[12:14]}
    known = {name: said for name, said in phrases.items() if name in kept}
    paths.phrases.write_bytes(gzip.compress(json.dumps(known).encode(), mtime=0))
