"""Small configs of every task, on generated data."""

import gzip
import json
from pathlib import Path

from caption_data import write_caption_data
from classification_data import write_digits

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
  callbacks: [{class_path: training_log.TrainingLog}]
model:
"""
OPTIMIZER = """\
    optim:
      optimizer:
        class_path: torch.optim.AdamW
        init_args: {lr: 2.0e-3, weight_decay: 0.1}
"""
WITHOUT_WARMUP = OPTIMIZER + "      warmup_steps: 0\n"
TRANSFORMER = """\
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: VisionTransformer
      init_args:
        {img_size: [28, 28], patch_size: 7, embed_dim: 8, depth: 1, num_heads: 2, mean: %s, std: %s}
"""
DIGITS = """\
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: TorchvisionImages
      init_args:
        {dataset: MNIST, root: ., val: 11}
    train_transforms: [{class_path: RandomCrop, init_args: {size: 28, padding: 2}}]
"""
CAPTIONS = """\
  class_path: %s
  init_args:
    captioner:
      class_path: ShowAttendTell
      init_args:
        encoder: {class_path: TimmEncoder, init_args: {name: test_resnet, img_size: [64, 64]}}
        embed_dim: 7
        hidden_size: 11
        attention_dim: 5
        dropout: 0.0%s
    beam_size: 2
    monitor: val/cider-d
%s"""
PHOTOS = """\
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: CaptionFile
      init_args:
        {captions: captions.jsonl, photos: photos, train: train.txt, val: validation.txt}
    phrases: phrase_boxes.json.gz
    hflip: true
    min_word_freq: 1
"""
GUIDED = """\
    doubly_stochastic_weight: 1.0
    attention_loss_weight: 0.5
    label_smoothing: 0.1
"""
HARD = """\
    num_rollouts: 3
"""
GLIMPSES = """\
  class_path: GlimpseTask
  init_args:
    model:
      class_path: RecurrentAttentionModel
      init_args:
        {img_size: [28, 28], mean: [0.1], std: [0.3], glimpse_size: 7, num_glimpses: 3,
         hidden_size: 11, what_dim: 7, where_dim: 5, policy_std: 0.3}
    num_rollouts: 3
    baseline: informed
    reward: gain
    normalize_advantages: true
    backprop_policy_to_core: true
    num_eval_starts: 2
    num_eval_samples: 2
"""
MODEL = """\
model:
  class_path: CaptioningTask
  init_args:
    captioner:
      class_path: ShowAttendTell
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {img_size: [24, 24], channels: 8}}
        embed_dim: 7
        hidden_size: 11
        attention_dim: 5
"""
SCENES = (
    MODEL.removeprefix("model:\n")
    + """\
    beam_size: 2
data:
  class_path: CaptionData
  init_args:
    source:
      class_path: SceneCaptions
      init_args:
        {image_size: 24, train: 3, val: 11, test: 11}
    batch_size: 7
    num_workers: 0
"""
)
SHAPES = """\
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: SingleObjects
      init_args:
        {image_size: 28, train: 13, val: 11, test: 11}
"""
QUESTIONS = """\
  class_path: QuestionTask
  init_args:
    vqa_model:
      class_path: CrossAttentionVQA
      init_args:
        encoder: {class_path: TimmEncoder, init_args: {name: test_resnet, img_size: [80, 80]}}
        dim: 8
        num_heads: 2
        grid_layers: 0
        reading_layers: 2
    hop_loss_weight: 0.5
    num_panels: 0
"""
SORT_OF_CLEVR = """\
data:
  class_path: QuestionData
  init_args:
    source:
      class_path: SortOfClevrImages
      init_args:
        {train: 13, val: 11, test: 11, questions: 3}
"""
MASKS = """\
  class_path: SegmentationTask
  init_args:
    segmenter:
      class_path: UNet
      init_args:
        encoder: {class_path: SmallEncoder, init_args: {img_size: [24, 24], channels: 8}}
        decoder_channels: [7, 5]
    dice_weight: 0.0
    num_panels: 0
data:
  class_path: SegmentationData
  init_args:
    source:
      class_path: SceneObjects
      init_args:
        {image_size: 24, train: 13, val: 3, test: 11}
    num_workers: 0
"""
CONFIGS = {
    "digits": TRAINER + TRANSFORMER % ("[0.1]", "[0.3]") + OPTIMIZER + DIGITS,
    "shapes": TRAINER + TRANSFORMER % (["0.5"] * 3, ["0.3"] * 3) + OPTIMIZER + SHAPES,
    "captions": TRAINER + CAPTIONS % ("CaptioningTask", "", GUIDED) + WITHOUT_WARMUP + PHOTOS,
    "critical": TRAINER
    + CAPTIONS % ("SCSTTask", "", "    num_samples: 3\n")
    + WITHOUT_WARMUP
    + PHOTOS,
    "hard": TRAINER
    + CAPTIONS % ("HardAttentionTask", "\n        attention: hard", GUIDED + HARD)
    + WITHOUT_WARMUP
    + PHOTOS,
    "glimpses": TRAINER + GLIMPSES + OPTIMIZER + DIGITS,
    "scenes": TRAINER + SCENES,
    "questions": TRAINER + QUESTIONS + WITHOUT_WARMUP + SORT_OF_CLEVR,
    "masks": TRAINER + MASKS,
}


def write_task_configs(folder: Path) -> None:
    """Write a config for every task, and the data that they read, into a folder."""
    for name, config in CONFIGS.items():
        (folder / f"{name}.yaml").write_text(config)
    write_digits(folder, train=34)
    _write_photos(folder)


def _write_photos(folder: Path) -> None:
    """Write 12 photos for training and 11 for validation; they have 1 to 5 captions each.

    Phrases are known of every third training photo, and of the first two for validation.
    """
    paths = write_caption_data(folder, photos=23, format="jsonl", sides=False)
    records = [json.loads(line) for line in paths.captions.read_text().splitlines()]
    for index, record in enumerate(records):
        record["captions"] = record["captions"][: 1 + index % 5]
    paths.captions.write_text("".join(json.dumps(record) + "\n" for record in records))
    names = [record["file"] for record in records]
    paths.train.write_text("\n".join(names[:12]))
    paths.validation.write_text("\n".join(names[12:]))
    phrases = json.loads(gzip.decompress(paths.phrases.read_bytes()))
    kept = {*names[:12:3], *names[12:14]}
    known = {name: value for name, value in phrases.items() if name in kept}
    paths.phrases.write_bytes(gzip.compress(json.dumps(known).encode(), mtime=0))
