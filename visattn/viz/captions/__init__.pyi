from .animation import (
    caption_animation as caption_animation,
)
from .animation import (
    frame_size as frame_size,
)
from .panel import (
    caption_panel as caption_panel,
)
