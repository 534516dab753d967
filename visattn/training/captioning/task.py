"""Training of captioners with teacher forcing."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW

from visattn.data.captions.batch import CaptionBatch, num_paired
from visattn.data.phrases import SupervisedPart, supervised_words
from visattn.functional.captions import (
    AttentionLoss,
    Reduction,
    attention_supervision_loss,
    caption_loss,
    doubly_stochastic_penalty,
    pack_targets,
)
from visattn.models.captioning.captioner import Captioner, TeacherForcedOutput
from visattn.models.config import build_model, model_config
from visattn.training.captioning.evaluation import (
    GENERATED,
    TEACHER_FORCED,
    CaptionEvaluation,
    CaptionWithMaps,
    generate_captions,
    reference_captions,
    teacher_force_batch,
)
from visattn.training.captioning.metrics import (
    REFERENCE_METRICS,
    SCENE_CAPTION_METRICS,
    SCENE_MAP_METRICS,
)
from visattn.training.data_module import InputSpec
from visattn.training.optim import OptimConfig, encoder_and_decoder
from visattn.training.reduce import ddp_loss_scale, world_size
from visattn.training.task import Task

_OPTIM = OptimConfig(warmup_steps=100)
_METRICS = {
    "scenes": (*SCENE_CAPTION_METRICS, *SCENE_MAP_METRICS),
    "references": REFERENCE_METRICS,
}
_MONITORS = {"scenes": "val/caption_accuracy", "references": "val/cider-d"}


class CaptioningTask(Task):
    """Train a captioner on images with captions.

    Validation and test metrics depend on the annotations of the data: the correctness of captions
    of rendered scenes; BLEU, ROUGE-L and CIDEr-D with reference captions; attention correctness
    with the boxes of objects or phrases.

    The prefix of a metric's name is the kind of captions it scores. Generated captions: `val`,
    `test`, and `novel` for the second test set. `teacher_forced`: reference captions, for which
    only the attention maps are scored. Controls of the test: `shuffled`, captions scored against
    the other image of a pair; `untrained`, a model with the same architecture and random weights.
    Each image counts once, over all processes.

    Args:
        captioner: The captioner; it gets its vocabulary from the data.
        data_info: Values from the data module; `words` is the vocabulary, `annotations` the kinds
            of ground truth: `scenes`, `references`.
        doubly_stochastic_weight: Weight of the doubly stochastic attention penalty; 0 disables it.
        reduction: How the loss and the penalty are reduced: as in the `paper`, as in the authors'
            code (`arctic`), or as the `mean` over words.
        label_smoothing: Label smoothing of the cross-entropy.
        word_dropout: Probability with which a word that the decoder reads is replaced by the
            unknown word in training.
        attention_loss_weight: Weight of the attention supervision loss on the boxes of phrases,
            where the data has them; 0 disables it.
        attention_loss: The supervision loss: `cross_entropy` with uniform attention over the boxes,
            or minus the log of the attention `mass` inside them.
        supervised_words: Which words of a phrase are supervised: `all`, or the `last` one.
        gate_weight: Weight of the mean gate, the share of the image in the context vector, so that
            a captioner with a gate or a visual sentinel reads the image only where it helps; 0
            disables it.
        optim: The optimizer, by default AdamW with a learning rate of 2e-3 and a weight decay of
            1e-2; `lr_mults` for `decoder` and `encoder`.
        beam_size: Beam size of the search in validation and test.
        length_penalty: Exponent of the length penalty of this search; 0 compares log-probabilities,
            which favors short captions.
        monitor: The validation metric that selects the best checkpoint. By default
            `val/caption_accuracy` for rendered scenes, `val/cider-d` with reference captions, else
            `val/loss`.

    Raises:
        ValueError: In `fit`, if the captioner has hard attention.
    """

    model: Captioner
    default_optimizer = staticmethod(partial(AdamW, lr=2e-3, weight_decay=1e-2))
    samples_places = False
    """Whether the task trains hard attention, with sampled places."""

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        doubly_stochastic_weight: float = 0.0,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        word_dropout: float = 0.0,
        attention_loss_weight: float = 0.0,
        attention_loss: AttentionLoss = "cross_entropy",
        supervised_words: SupervisedPart = "all",
        gate_weight: float = 0.0,
        optim: OptimConfig = _OPTIM,
        beam_size: int = 5,
        length_penalty: float = 0.0,
        monitor: str | None = None,
    ) -> None:
        annotations = data_info.get("annotations")
        scored = [name for name in _METRICS if name in (annotations or ())]
        default = _MONITORS[scored[0]] if scored else "val/loss"
        super().__init__(captioner(data_info["words"]), optim, monitor or default)
        names = ("loss", *chain.from_iterable(_METRICS[key] for key in annotations or _METRICS))
        for split in (*GENERATED, *TEACHER_FORCED):
            self.evaluations[split] = CaptionEvaluation(split, names)
        # In a tuple, so that it is not registered as a submodule and saved in checkpoints.
        self._untrained: tuple[Captioner, ...] = ()
        self.reduction: Reduction = reduction
        self.doubly_stochastic_weight = doubly_stochastic_weight
        self.label_smoothing = label_smoothing
        self.word_dropout = word_dropout
        self.attention_loss_weight = attention_loss_weight
        self.attention_loss: AttentionLoss = attention_loss
        self.supervised_words: SupervisedPart = supervised_words
        self.gate_weight = gate_weight
        self.beam_size = beam_size
        self.length_penalty = length_penalty

    @property
    def input_spec(self) -> InputSpec:
        """The input of the encoder, and the encoder, whose features may be cached."""
        encoder = self.model.encoder
        return InputSpec(encoder.img_size, encoder.mean, encoder.std, encoder)

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the decoder and of the encoder."""
        return dict(reversed(encoder_and_decoder(self.model).items()))

    def check_training(self) -> None:
        """Check that attention is not hard: soft weights can be tested with it, not trained."""
        if self.model.places is not None and not self.samples_places:
            raise ValueError(
                "hard attention has no gradient without sampled positions: train it with "
                "HardAttentionTask, or set attention: soft"
            )

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy of the captions, plus the penalties with a weight above 0."""
        output = teacher_force_batch(self.model, batch.drop_words(self.word_dropout))
        targets = batch.captions[output.rows, output.steps + 1]
        num_captions = len(batch.lengths)
        loss = caption_loss(
            output.logits,
            targets,
            num_captions,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )
        self.log("train/loss", loss.detach(), prog_bar=True)
        # In nats; uniform attention over n positions has log n.
        entropy = torch.special.entr(output.attention.weights.detach()).sum(-1).mean()
        self.log("train/attention_entropy", entropy)
        count = len(targets) if self.reduction == "mean" else num_captions
        return loss * ddp_loss_scale(count, loss.device) + self.attention_penalties(output, batch)

    def attention_penalties(
        self, output: TeacherForcedOutput, batch: CaptionBatch
    ) -> float | Float[Tensor, ""]:
        """Return the sum of the weighted losses of the attention; 0 without any."""
        penalties: list[Tensor] = []
        if self.doubly_stochastic_weight:
            penalty = self._doubly_stochastic_penalty(output, len(batch.lengths))
            penalties.append(self.doubly_stochastic_weight * penalty)
        if self.attention_loss_weight:
            penalties.append(self.attention_loss_weight * self._attention_loss(output, batch))
        if self.gate_weight:
            penalties.append(self.gate_weight * self._mean_gate(output.attention.gate))
        return sum(penalties)

    def _doubly_stochastic_penalty(
        self, output: TeacherForcedOutput, num_captions: int
    ) -> Float[Tensor, ""]:
        weights = output.attention.weights
        penalty = doubly_stochastic_penalty(
            weights, output.rows, num_captions, reduction=self.reduction
        )
        if self.reduction == "arctic":  # summed over the captions of all processes
            return penalty * world_size()
        return penalty * ddp_loss_scale(num_captions, weights.device)

    def _attention_loss(
        self, output: TeacherForcedOutput, batch: CaptionBatch
    ) -> Float[Tensor, ""]:
        """Return the supervision loss of the attention on the boxes of the phrases."""
        grid = self.model.encoder.grid_size
        words = supervised_words(batch.phrases(), grid, words=self.supervised_words)
        device = output.attention.weights.device
        targets, supervised = pack_targets(
            *(x.to(device) for x in words), lengths=batch.packing or batch.lengths
        )
        loss = attention_supervision_loss(
            output.attention.weights, targets, supervised, self.attention_loss
        )
        self.log("train/attention_loss", loss.detach())
        return loss * ddp_loss_scale(supervised.sum(), device)

    def _mean_gate(self, gate: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        if not gate.requires_grad:
            raise ValueError(
                f"gate_weight must be 0 for a {type(self.model).__name__}, which has no gate, got "
                f"{self.gate_weight}"
            )
        self.log("train/gate", gate.detach().mean())
        return gate.mean() * ddp_loss_scale(len(gate), gate.device)

    def validation_step(self, batch: CaptionBatch, batch_idx: int) -> None:
        """Score generated captions and the loss; outside of `fit`, also teacher-forced maps."""
        output = teacher_force_batch(self.model, batch)
        targets = batch.captions[output.rows, output.steps + 1]
        loss = caption_loss(output.logits, targets, len(batch.lengths), reduction="mean")
        self.evaluation("val").update_loss(loss, len(output.rows))
        self._score("val", self._generate(self.model, batch), batch)
        if not self.fitting:
            references = reference_captions(self.model, batch, output)
            self._score("val_teacher_forced", references, batch)

    def test_step(self, batch: CaptionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score generated captions; on the first test set also teacher-forced maps and controls."""
        captions = self._generate(self.model, batch)
        self._score("novel" if dataloader_idx else "test", captions, batch)
        if dataloader_idx:
            return
        self._score("teacher_forced", reference_captions(self.model, batch), batch)
        if num_paired(batch):  # a single image has no partner to swap with
            swapped = batch.swap_images()
            for split, captions in (
                ("shuffled", self._generate(self.model, swapped)),
                ("shuffled_teacher_forced", reference_captions(self.model, swapped)),
            ):
                paired = [each for each in captions if each.image_index < num_paired(batch)]
                self._score(split, paired, batch)
        if not self._untrained:  # equal random weights in every test
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = cast("Captioner", build_model(model_config(self.model)))
            self._untrained = (model.eval().to(self.device),)
        (untrained,) = self._untrained
        self._score("untrained", self._generate(untrained, batch), batch)
        self._score("untrained_teacher_forced", reference_captions(untrained, batch), batch)

    def on_test_end(self) -> None:
        """Delete the control model, since the next test may use another device."""
        self._untrained = ()

    def _generate(self, model: Captioner, batch: CaptionBatch) -> list[CaptionWithMaps]:
        return generate_captions(
            model, batch, beam_size=self.beam_size, length_penalty=self.length_penalty
        )

    def _score(self, split: str, captions: Sequence[CaptionWithMaps], batch: CaptionBatch) -> None:
        self.evaluation(split).update(captions, batch, complete=not self.fitting)
