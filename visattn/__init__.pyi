from .blocks.registry import (
    create_block as create_block,
)
from .blocks.registry import (
    block_info as block_info,
)
from .blocks.registry import (
    list_blocks as list_blocks,
)
from .blocks.registry import (
    register_block as register_block,
)
from .data.images.reader import (
    read_image as read_image,
)
from .data.scenes.dataset import (
    Scenes as Scenes,
)
from .geometry.affine import (
    Geometry as Geometry,
)
from .insertion.baking import (
    bake as bake,
)
from .insertion.baking import (
    remove as remove,
)
from .insertion.insertion import (
    insert as insert,
)
from .insertion.cost import (
    summary as summary,
)
from .pipelines.captioning import (
    caption as caption,
)
from .pipelines.draw_captions import (
    overlay as overlay,
)
from .pipelines.explainer import (
    Explainer as Explainer,
)
from .pipelines.explainer import (
    explain as explain,
)
from .pipelines.explainer import (
    methods_for as methods_for,
)
from .pipelines.model_io import (
    load as load,
)
from .pipelines.model_io import (
    load_model as load_model,
)
from .pipelines.model_io import (
    save as save,
)
from .recording.attention_map import (
    AttentionMap as AttentionMap,
)
from .recording.recorder import (
    record as record,
)

__version__: str
