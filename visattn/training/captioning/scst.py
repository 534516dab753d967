"""Self-critical sequence training of captioners on CIDEr-D."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.captions.batch import CaptionBatch, split_words
from visattn.functional.captions import SampledCaptions, sample_captions
from visattn.functional.reinforce import (
    categorical_log_prob,
    leave_one_out_advantages,
    reinforce_loss,
)
from visattn.metrics.ngrams import (
    IdfTable,
    WeightedNgrams,
    idf_table,
    ngram_counts,
    weighted_cider_d,
    weighted_ngrams,
)
from visattn.models.captioning.captioner import Captioner
from visattn.results.kinds import END, PAD, SPECIAL_TOKENS, START, UNKNOWN
from visattn.training.captioning.evaluation import encode_images
from visattn.training.captioning.task import CaptioningTask
from visattn.training.reduce import ddp_loss_scale, step_generator

BANNED_TOKENS = (PAD, START, UNKNOWN)


class SCSTTask(CaptioningTask):
    """Fine-tune a captioner on CIDEr-D by self-critical sequence training.

    The captioner should first be trained with teacher forcing (`--init_from`). The reward of a
    sampled caption is its CIDEr-D against all references; the end token counts as a word in both,
    otherwise captions learn to stop after "with a". Its baseline is the mean reward of the other
    samples of the image. Document frequencies are those of the training photos. Dropout is
    disabled.

    Args:
        captioner: The captioner; it gets its vocabulary from the data.
        data_info: Values that the data module provides; `words` is the vocabulary.
        num_samples: Captions sampled for each photo.
        max_length: Maximum number of words of a sampled caption.
        settings: Arguments of `CaptioningTask`; those of the teacher-forced losses have no effect.

    Source:
        Rennie et al. 2017, arXiv:1612.00563, with the mean of the other samples as the baseline.
    """

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        num_samples: int = 5,
        max_length: int = 20,
        **settings: Any,
    ) -> None:
        super().__init__(captioner, data_info, **settings)
        self.num_samples = num_samples
        self.max_length = max_length
        self.idf_table: IdfTable = IdfTable({}, 0.0)  # counted in on_fit_start
        self.references: dict[str, list[WeightedNgrams]] = {}
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0  # only during this training; the saved config keeps the rate

    def on_fit_start(self) -> None:
        """Count document frequencies over the references of the training photos."""
        super().on_fit_start()
        references = self.data and self.data.references("train")
        if references is None:
            raise TypeError(
                "SCSTTask needs photos with reference captions: use CaptionData, got "
                f"{type(self.data).__name__}"
            )
        end = SPECIAL_TOKENS[END]
        counts = {
            name: [ngram_counts([*split_words(caption), end]) for caption in captions]
            for name, captions in references.items()
        }
        self.idf_table = idf = idf_table(list(counts.values()))
        self.references = {
            name: [weighted_ngrams(ngrams, idf) for ngrams in captions]
            for name, captions in counts.items()
        }

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return the REINFORCE loss of sampled captions."""
        features = encode_images(self.model, batch)
        generator = step_generator(self)
        size = (len(features), self.num_samples)
        samples = sample_captions(
            self.model.step,
            self.model.start(features),
            torch.full(size, START, device=features.device),
            end_token=END,
            max_length=self.max_length,
            banned_tokens=BANNED_TOKENS,
            uniforms=partial(generator.rand, *size),
        )
        rewards = self.rewards(samples, batch)
        self.log("train/reward", rewards.mean(), prog_bar=True)
        # Captions are sampled word by word without a graph; one pass over all words then gives the
        # log-probabilities a gradient.
        log_probs, sample_indices = self._log_probs(features, samples)
        advantages = leave_one_out_advantages(rewards).flatten()[sample_indices]
        loss = reinforce_loss(log_probs, advantages, reduction="mean")
        return loss * ddp_loss_scale(len(log_probs), features.device)

    def rewards(self, samples: SampledCaptions, batch: CaptionBatch) -> Float[Tensor, "b k"]:
        """Return the CIDEr-D, 0 to 10, of each sampled caption."""
        scores: list[list[float]] = []
        for sample, captions, lengths in zip(
            batch.samples, samples.tokens.tolist(), samples.lengths.tolist(), strict=True
        ):
            references = self.references[sample.id]
            rows = (tokens[:length] for tokens, length in zip(captions, lengths, strict=True))
            counts = (ngram_counts([self.model.words[token] for token in row]) for row in rows)
            weighted = (weighted_ngrams(ngrams, self.idf_table) for ngrams in counts)
            scores.append([weighted_cider_d(caption, references) for caption in weighted])
        return torch.tensor(scores, device=samples.tokens.device)

    def _log_probs(
        self, features: Float[Tensor, "b c y x"], samples: SampledCaptions
    ) -> tuple[Float[Tensor, " p"], Tensor]:
        """Return the log-probability of each sampled word, and the index of its caption."""
        lengths, order = samples.lengths.flatten().sort(descending=True, stable=True)
        tokens = samples.tokens.flatten(0, 1)[order]
        start = torch.full_like(tokens[:, :1], START)
        inputs = torch.cat((start, tokens[:, :-1]), 1)
        images = order // self.num_samples
        output = self.model.teacher_force(features, inputs, lengths, images)
        # The same constraints as in sampling, so that these are the probabilities of the samples.
        banned = torch.tensor(BANNED_TOKENS, device=tokens.device)
        logits = output.logits.index_fill(-1, banned, -torch.inf)
        words = tokens[output.rows, output.steps]
        return categorical_log_prob(logits, words), order[output.rows]
