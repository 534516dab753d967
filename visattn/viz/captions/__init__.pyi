from .animation import (
    animation_frame_size as animation_frame_size,
    caption_animation as caption_animation,
)
from .panel import (
    caption_panel as caption_panel,
)
