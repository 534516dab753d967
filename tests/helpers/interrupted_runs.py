"""Tiny runs of every task with random operations, and faults that interrupt them."""

import os
import signal
from pathlib import Path
from typing import Any

from caption_data import write_caption_data
from classification_data import write_digits, write_photo_folders
from lightning import Trainer
from lightning.pytorch.callbacks import Callback
from task_configs import MASKS, QUESTIONS, SORT_OF_CLEVR

from visattn.io import atomic as whole_files

TRAINER = """\
trainer:
  accelerator: cpu
  max_epochs: 2
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  callbacks:
    - {class_path: EMA, init_args: {decay: 0.7}}
    - {class_path: interrupted_runs.FaultInjector}
model:
"""
ADAMW = "{class_path: torch.optim.AdamW, init_args: {lr: 1.0e-2}}"
CLASSES = """\
  class_path: ClassificationTask
  init_args:
    mixup: 0.4
    cutmix: 1.0
    optim: {warmup_steps: 2}
    classifier:
"""
TRANSFORMER = (
    CLASSES.replace("warmup_steps: 2", f"warmup_steps: 2, optimizer: {ADAMW}")
    + """\
      class_path: VisionTransformer
      init_args:
        {img_size: [28, 28], patch_size: 7, embed_dim: 8, depth: 2, num_heads: 2,
         drop_path_rate: 0.3, mean: %s, std: %s}
"""
)
DIGITS = """\
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: TorchvisionImages
      init_args:
        {dataset: MNIST, root: ., val: 7}
    batch_size: 6
    transforms: [{class_path: RandomAffine, init_args: {degrees: [-9, 9], scale: [0.9, 1.1]}}]
    train_transforms:
      - {class_path: RandomCrop, init_args: {size: 28, padding: 3}}
      - {class_path: RandomRotation, init_args: {degrees: [-20, 20]}}
"""
PHOTOS = (
    CLASSES
    + """\
      class_path: AttentionResNet
      init_args: {depth: 8, stem_width: 4, img_size: [24, 24], block: cbam}
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: ClassFolders
      init_args:
        {root: folders}
    batch_size: 4
    train_transforms:
      - {class_path: RandomResizedCrop, init_args: {size: [24, 24]}}
      - RandomHorizontalFlip
"""
)
SHAPES = """\
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: SingleObjects
      init_args:
        {image_size: 28, train: 25, val: 7, test: 5}
    batch_size: 6
    train_transforms: [RandomHorizontalFlip]
"""
CANVASES = """\
  class_path: GlimpseTask
  init_args:
    model:
      class_path: RecurrentAttentionModel
      init_args:
        {img_size: [33, 33], mean: [0.1], std: [0.3], glimpse_size: 7, num_glimpses: 3,
         hidden_size: 11, what_dim: 7, where_dim: 5, policy_std: 0.3}
    num_rollouts: 2
    baseline: informed
    final_std: 0.1
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: ClutteredDigits
      init_args:
        {root: ., canvas: {size: [33, 33], num_distractors: 2}, val: 7}
    batch_size: 6
    train_transforms: [RandomInvert]
"""
SOFT = """\
      class_path: ShowAttendTell
      init_args:
        embed_dim: 7
        hidden_size: 11
        attention_dim: 5
"""
TRANSFORMER_CAPTIONER = """\
      class_path: TransformerCaptioner
      init_args:
        embed_dim: 14
        num_heads: 7
        num_layers: 1
        feature_dropout: 0.2
"""
CAPTIONER = f"""\
  class_path: %s
  init_args:
    captioner:
{SOFT}\
        encoder: {{class_path: SmallEncoder, init_args: {{img_size: [24, 24], channels: 8}}}}
        dropout: 0.3%s
    beam_size: 1
    optim: {{warmup_steps: 0}}
"""
SCENES = (
    CAPTIONER
    + """\
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: SceneCaptions
      init_args:
        {image_size: 24, train: 7, val: 3, test: 3}
    batch_size: 7
    num_workers: 0
"""
)
HARD = """
    num_rollouts: 2
    entropy_until: 0.9"""
CAPTIONS = (
    CAPTIONER.replace(SOFT, TRANSFORMER_CAPTIONER)
    + """\
    monitor: val/loss
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: CaptionFile
      init_args:
        {captions: captions.token.txt, photos: photos, train: train.txt, val: validation.txt}
    phrases: phrase_boxes.json.gz
    min_word_freq: 1
    batch_size: 4
    hflip: true
"""
)
BATCHES = "    batch_size: 3\n"
BOXES = """\
  class_path: DetectionTask
  init_args:
    detector:
      class_path: DETR
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {img_size: [24, 24], channels: 8}}
        dim: 8
        num_heads: 2
        num_queries: 7
        num_encoder_layers: 1
        num_decoder_layers: 1
data:
  class_path: DetectionData
  init_args:
    source:
      class_path: SceneObjects
      init_args: {image_size: 24, train: 13, val: 3, test: 3}
    batch_size: 3
    train_transforms: [RandomHorizontalFlip]
"""
CANVAS_DATA = """\
data:
  class_path: SequenceData
  init_args:
    source:
      class_path: DigitCanvases
      init_args: {root: ., val: 7, spec: {canvas: {size: [48, 80]}, max_digits: 2}}
    batch_size: 6
    train_transforms: [RandomInvert]
"""
SEQUENCES = """\
  class_path: SequenceRecognitionTask
  init_args:
    captioner:
      class_path: SequenceRecognizer
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {img_size: [48, 80], channels: 8}}
    beam_size: 1
"""
READERS = """\
  class_path: GlimpseTask
  init_args:
    model:
      class_path: DRAM
      init_args:
        {img_size: [48, 80], mean: [0.1], std: [0.3], end_class: end, num_glimpses_per_object: 2,
         glimpse_size: 5, hidden_size: 11, what_dim: 7, where_dim: 3, context_size: 6}
    num_rollouts: 2
    supervised_location_epochs: 1
    reward: gain
    backprop_policy_to_core: true
    final_std: 0.05
"""
TASKS = {
    "classes": TRAINER + TRANSFORMER % ("[0.1]", "[0.3]") + DIGITS,
    "photos": TRAINER + PHOTOS,
    "shapes": TRAINER + TRANSFORMER % ("[0.5, 0.5, 0.5]", "[0.3, 0.3, 0.3]") + SHAPES,
    "canvases": TRAINER + CANVASES,
    "scenes": TRAINER + SCENES % ("CaptioningTask", ""),
    "captions": TRAINER + CAPTIONS % ("CaptioningTask", ""),
    "critical": TRAINER + CAPTIONS % ("SCSTTask", ""),
    "hard": TRAINER + SCENES % ("HardAttentionTask", "\n        attention: hard" + HARD),
    "questions": TRAINER + QUESTIONS + "    optim: {warmup_steps: 0}\n" + SORT_OF_CLEVR + BATCHES,
    "masks": TRAINER + MASKS + BATCHES,
    "boxes": TRAINER + BOXES,
    "sequences": TRAINER + SEQUENCES + CANVAS_DATA,
    "readers": TRAINER + READERS + CANVAS_DATA,
}


def write_run_configs(folder: Path) -> None:
    """Write a config for every task, and the data that they read, into a folder."""
    for name, config in TASKS.items():
        (folder / f"{name}.yaml").write_text(config)
    write_digits(folder, train=34)
    write_photo_folders(folder / "folders", train=6, val=2)
    paths = write_caption_data(folder, photos=23, sides=False)
    names = [*paths.train.read_text().split(), *paths.validation.read_text().split()]
    paths.train.write_text("\n".join(names[:16]))
    paths.validation.write_text("\n".join(names[16:]))


class FaultInjector(Callback):
    """Keep a state of each kind, and cause the fault of the environment variable BREAK.

    BREAK is EVENT:BATCH or EVENT:BATCH:RANK. The events: `kill` in the middle of the batch, `end`
    at its end, `writing` in the middle of the next checkpoint; `term` and `int` for the signals,
    `validation` and `term_validation` for those in the next validation; `keep` for the states after
    each batch, validation and epoch, in the folder `kept` of the run.
    """

    def __init__(self) -> None:
        event, _, place = os.environ.get("BREAK", "none:0").partition(":")
        batch, _, rank = place.partition(":")
        self.event, self.batch, self.rank = event, int(batch), int(rank or 0)

    def _now(self, trainer: Trainer, event: str) -> bool:
        due = trainer.fit_loop.total_batch_idx >= self.batch
        return self.event == event and due and trainer.global_rank == self.rank

    def _kill(self, trainer: Trainer, event: str, number: int) -> None:
        if self._now(trainer, event) and not trainer.sanity_checking:
            self.event = "done"
            os.kill(os.getpid(), number)

    def _keep(self, trainer: Trainer, kind: str) -> None:
        if self.event == "keep":
            number = trainer.fit_loop.total_batch_idx
            file = Path(trainer.default_root_dir, "kept", f"{kind}-{number}.ckpt")
            trainer.save_checkpoint(file)

    def on_train_batch_start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "term", signal.SIGTERM)
        self._kill(trainer, "int", signal.SIGINT)

    def on_before_backward(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "kill", signal.SIGKILL)

    def on_train_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "end", signal.SIGKILL)
        if self._now(trainer, "writing"):
            whole_files.flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        if not trainer.fit_loop._should_accumulate():
            self._keep(trainer, "batch")

    def on_validation_batch_start(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._kill(trainer, "validation", signal.SIGKILL)
        self._kill(trainer, "term_validation", signal.SIGTERM)

    def on_validation_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._keep(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._keep(trainer, "epoch")
