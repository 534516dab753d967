"""Lightning's progress bar, with the steps that are left to `max_steps` in an epoch."""

import sys

from lightning.pytorch.callbacks import TQDMProgressBar


class StepBar(TQDMProgressBar):
    """A bar over the batches of an epoch, of which `max_steps` may leave some out.

    Without a terminal it is written every 50 batches, as in the log of `nohup`.
    """

    def __init__(self) -> None:
        super().__init__(refresh_rate=1 if sys.stderr.isatty() else 50)

    @property
    def total_train_batches(self) -> int | float:
        """The number of batches of the current epoch."""
        trainer = self.trainer
        if trainer.max_steps == -1:
            return trainer.num_training_batches
        left = (trainer.max_steps - trainer.global_step) * trainer.accumulate_grad_batches
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready  # by a resumed run
        return min(trainer.num_training_batches, done + left)
