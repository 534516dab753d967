"""Training a captioner on the score itself: captions that do better than its others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.data.captions.batch import CaptionBatch
from visattn.data.captions.vocabulary import split_words
from visattn.functional.captioning.sampling import Samples, draw_samples
from visattn.functional.reinforce import leave_one_out, policy_loss
from visattn.metrics.captioning.bleu import NgramCounts, ngram_counts
from visattn.metrics.captioning.cider import IdfTable, cider_score, rarity_of
from visattn.models.captioner import END, PAD, SPECIALS, START, UNKNOWN, Captioner
from visattn.training.data.captions import CaptionDataModule
from visattn.training.distributed.reduce import fair_share
from visattn.training.distributed.sample_rng import step_draws
from visattn.training.tasks.caption_generation import features
from visattn.training.tasks.captioning import CaptioningTask

SILENT = (PAD, START, UNKNOWN)


class SCSTTask(CaptioningTask):
    """Train a captioner further, on CIDEr-D: of several captions it draws, the better gain.

    It starts from a captioner that was trained on given captions (`start`). A caption's reward is
    its CIDEr-D against all references, where the end counts as a word of both: else captions learn
    to break off after "with a". How rare words are is counted over the training photos. Nothing
    is dropped out: what learns is what will speak.

    Args:
        captioner: The captioner; it gets its words from the data.
        data_info: What the data tells of itself; `words` is the vocabulary.
        samples: Captions drawn for each photo.
        max_length: Most words of a drawn caption.
        settings: As `CaptioningTask` takes them; what concerns given captions has no effect.

    Source:
        Rennie et al. 2017, arXiv:1612.00563, with the mean of the other samples as the baseline.
    """

    def __init__(
        self,
        captioner: Callable[[list[str]], Captioner],
        data_info: dict[str, Any],
        *,
        samples: int = 5,
        max_length: int = 20,
        **settings: Any,
    ) -> None:
        if samples < 2 or max_length < 1:
            raise ValueError(
                "samples must be at least 2, to be compared, and max_length at least 1, "
                f"got {samples} and {max_length}"
            )
        super().__init__(captioner, data_info, **settings)
        self.samples, self.max_length = samples, max_length
        self.rarity: IdfTable | None = None
        self.reference_ngrams: dict[str, list[NgramCounts]] = {}

    def on_fit_start(self) -> None:
        """Count how rare words are among the references of the training photos."""
        super().on_fit_start()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, CaptionDataModule):
            raise TypeError(
                "training on CIDEr-D needs photos with references: use CaptionDataModule"
            )
        self.reference_ngrams = {
            entry.id: [_grams(split_words(caption)) for caption in entry.captions]
            for entry in data.entries["train"]
        }
        self.rarity = rarity_of(list(self.reference_ngrams.values()))

    def on_train_start(self) -> None:
        """Leave out dropout; a run that goes on within an epoch does not start one."""
        super().on_train_start()
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """Leave out dropout."""
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.eval()

    def training_step(self, batch: CaptionBatch, batch_idx: int) -> Tensor:
        """Return a loss whose gradient raises the expected reward."""
        seen = features(self.model, batch)
        drawn = draw_samples(
            self.model.step,
            self.model.start(seen),
            images=len(seen),
            count=self.samples,
            start=START,
            stop=END,
            max_length=self.max_length,
            banned=SILENT,
            device=seen.device,
            uniforms=partial(step_draws(self).uniforms, len(seen), self.samples),
        )
        rewards = self.rewards(drawn, batch)
        self.log("train/reward", rewards.mean(), prog_bar=True)
        log_probabilities, owners = self._spoken(seen, drawn)
        loss = policy_loss(log_probabilities, leave_one_out(rewards).flatten()[owners])
        return loss * fair_share(len(log_probabilities), seen.device)

    def rewards(self, drawn: Samples, batch: CaptionBatch) -> Float[Tensor, "b k"]:
        """Return the CIDEr-D, 0 to 10, of each drawn caption."""
        if self.rarity is None:
            raise RuntimeError("how rare words are is counted when the training starts")
        scores: list[list[float]] = []
        for sample, captions, lengths in zip(
            batch.samples, drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True
        ):
            told = self.reference_ngrams[sample.id]
            rows = (tokens[:length] for tokens, length in zip(captions, lengths, strict=True))
            said = [ngram_counts([self.model.words[token] for token in row]) for row in rows]
            scores.append([cider_score(one, told, self.rarity) for one in said])
        return torch.tensor(scores, device=drawn.tokens.device)

    def _spoken(
        self, seen: Float[Tensor, "b c y x"], drawn: Samples
    ) -> tuple[Float[Tensor, " p"], Tensor]:
        """Return the log-probability of each drawn word, and which sample it belongs to."""
        lengths, order = drawn.lengths.flatten().sort(descending=True, stable=True)
        tokens = drawn.tokens.flatten(0, 1)[order]
        start = torch.full_like(tokens[:, :1], START)
        read = torch.cat((start, tokens[:, :-1]), 1)
        told = self.model.unroll(seen, read, lengths, order // self.samples)
        silent = torch.tensor(SILENT, device=tokens.device)
        spoken = told.logits.index_fill(-1, silent, -torch.inf).log_softmax(-1)
        words = tokens[told.rows, told.steps].unsqueeze(-1)
        return spoken.gather(-1, words).squeeze(-1), order[told.rows]


def _grams(words: list[str]) -> NgramCounts:
    return ngram_counts([*words, SPECIALS[END]])
