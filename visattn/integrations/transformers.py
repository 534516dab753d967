"""A callback of Hugging Face's Trainer that follows attention maps during training."""

from typing import TYPE_CHECKING, Any

from visattn.pipelines.attention_history import AttentionHistory

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError(
            "AttentionCallback needs transformers: pip install 'visattn[hf]'"
        ) from error


class AttentionCallback(TrainerCallback):
    """Draws attention maps of the same images while a Trainer trains a model.

    The maps lie in the folder of the history, with a page; nothing is sent to other loggers. The
    main process draws them.

    Args:
        history: Images, method, folder and interval.

    Example:
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> import torch
        >>> config = ViTConfig(hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
        ...     intermediate_size=24, image_size=32, patch_size=8)
        >>> model = ViTForImageClassification(config)
        >>> photo = torch.randint(0, 255, (40, 50, 3), dtype=torch.uint8).numpy()
        >>> history = AttentionHistory(photo, getfixture("tmp_path"), method="rollout")
        >>> callback = AttentionCallback(history)  # Trainer(..., callbacks=[callback])
        >>> class State: global_step, is_world_process_zero = 0, True
        >>> _ = callback.on_train_begin(None, State, None, model=model)
        >>> [record.step for record in history.records]
        [0]
    """

    def __init__(self, history: AttentionHistory) -> None:
        self.history = history

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps before the first step, so that a wrong argument stops the run here."""
        self._log(state, kwargs, force=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps if they are due."""
        self._log(state, kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps after the last step."""
        self._log(state, kwargs, force=True)

    def _log(self, state: Any, kwargs: Any, *, force: bool = False) -> None:
        if state.is_world_process_zero:
            self.history.log(kwargs["model"], state.global_step, force=force)
