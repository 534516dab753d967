from .blocks.registry import (
    create as create,
)
from .blocks.registry import (
    info as info,
)
from .blocks.registry import (
    names as names,
)
from .blocks.registry import (
    register as register,
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
from .insertion.summary import (
    table as table,
)
from .pipelines.captioning import (
    caption as caption,
)
from .pipelines.draw_captions import (
    overlay as overlay,
)
from .pipelines.explanation import (
    explain as explain,
)
from .pipelines.explanation import (
    methods_for as methods_for,
)
from .pipelines.save_load import (
    load as load,
)
from .pipelines.save_load import (
    save as save,
)
from .recording.attention_map import (
    AttentionMap as AttentionMap,
)
from .recording.recorder import (
    record as record,
)

__version__: str
