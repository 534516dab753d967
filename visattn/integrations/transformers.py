"""A callback of Hugging Face's Trainer that follows attention maps during training."""

from typing import TYPE_CHECKING, Any

from visattn.pipelines.attention_panels import AttentionPanels

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

    They are written to the folder of the panels, by the main process; nothing is sent to other
    loggers.

    Args:
        panels: Images, method, folder and interval.

    Example:
        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> import torch
        >>> config = ViTConfig(hidden_size=12, num_hidden_layers=2, num_attention_heads=2,
        ...     intermediate_size=24, image_size=32, patch_size=8)
        >>> model = ViTForImageClassification(config)
        >>> photo = torch.randint(0, 255, (40, 50, 3), dtype=torch.uint8).numpy()
        >>> folder = getfixture("tmp_path")
        >>> callback = AttentionCallback(AttentionPanels(photo, folder, method="rollout"))
        >>> # Trainer(..., callbacks=[callback])
        >>> class State: global_step, is_world_process_zero = 0, True
        >>> _ = callback.on_train_begin(None, State, None, model=model)
        >>> [file.parent.name for file in folder.glob("*/*.jpg")]
        ['step-0000000']
    """

    def __init__(self, panels: AttentionPanels) -> None:
        self.panels = panels

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps before the first step, so that invalid arguments fail at once."""
        self._draw(state, kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps if they are due."""
        if self.panels.is_due(state.global_step):
            self._draw(state, kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Draw the maps after the last step."""
        self._draw(state, kwargs)

    def _draw(self, state: Any, kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.panels.draw(kwargs["model"], state.global_step)
