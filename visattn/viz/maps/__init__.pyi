from .colormap import (
    color_table as color_table,
)
from .comparison import (
    ComparedMap as ComparedMap,
)
from .comparison import (
    comparison_panel as comparison_panel,
)
from .contours import (
    isolined as isolined,
)
from .contours import (
    outlined as outlined,
)
from .crops import (
    crop_panel as crop_panel,
)
from .crops import (
    framed_crop as framed_crop,
)
from .heads import (
    LayerRow as LayerRow,
)
from .heads import (
    head_grid as head_grid,
)
from .heads import (
    head_tile_size as head_tile_size,
)
from .heatmap import (
    cold_colors as cold_colors,
)
from .heatmap import (
    colored_map as colored_map,
)
from .heatmap import (
    glowing_colors as glowing_colors,
)
from .heatmap import (
    level_steps as level_steps,
)
from .heatmap import (
    overlay as overlay,
)
from .legend import (
    draw_legend as draw_legend,
)
from .resize import (
    resized_image as resized_image,
)
from .resize import (
    resized_map as resized_map,
)
