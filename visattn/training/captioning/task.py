"""Training of captioners with teacher forcing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW

from visattn.data.captions.batch import CaptionBatch
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
from visattn.training.captioning.evaluation import CaptionEvalTask, teacher_force_batch
from visattn.training.optim import OptimConfig
from visattn.training.parameters import encoder_and_decoder
from visattn.training.reduce import ddp_loss_scale, world_size

_OPTIM = OptimConfig(warmup_steps=100)


class CaptioningTask(CaptionEvalTask):
    """Train a captioner on images with captions.

    Validation and test metrics depend on the annotations of the data: the correctness of captions
    of rendered scenes; BLEU, ROUGE-L and CIDEr-D with reference captions; attention correctness
    with the boxes of objects or phrases. The test adds controls.

    Args:
        captioner: The captioner; it gets its vocabulary from the data.
        data_info: Values that the data module provides; `words` is the vocabulary, `annotations`
            what captions can be scored against: `scenes`, `references`.
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
        ValueError: If a weight is negative, or `word_dropout` is not in [0, 1); in `fit`, if the
            captioner has hard attention.
    """

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
        weights = (doubly_stochastic_weight, attention_loss_weight, gate_weight)
        if min(weights) < 0:
            raise ValueError(
                "doubly_stochastic_weight, attention_loss_weight and gate_weight must be at least "
                f"0, got {', '.join(map(str, weights))}"
            )
        if not 0 <= word_dropout < 1:
            raise ValueError(f"word_dropout must be in [0, 1), got {word_dropout}")
        super().__init__(
            captioner(data_info["words"]),
            beam_size=beam_size,
            length_penalty=length_penalty,
            annotations=data_info.get("annotations"),
            optim=optim,
            monitor=monitor,
        )
        self.reduction: Reduction = reduction
        self.doubly_stochastic_weight = doubly_stochastic_weight
        self.label_smoothing = label_smoothing
        self.word_dropout = word_dropout
        self.attention_loss_weight = attention_loss_weight
        self.attention_loss: AttentionLoss = attention_loss
        self.supervised_words: SupervisedPart = supervised_words
        self.gate_weight = gate_weight

    def check_training(self) -> None:
        """Refuse hard attention: soft weights may be tested with it, but not trained."""
        if self.model.places is not None and not self.samples_places:
            raise ValueError(
                "hard attention has no gradient without sampled places: train it with "
                "HardAttentionTask, or set attention: soft"
            )

    def parts(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of the decoder and of the encoder."""
        parts = encoder_and_decoder(self.model)
        return {"decoder": parts["decoder"], "encoder": parts["encoder"]}

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
        # In nats; uniform attention over n places has log n.
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
        if self.reduction == "arctic":  # the sum over the captions of all processes
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
