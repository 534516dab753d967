from .attribution.dense_targets import (
    BoxTarget as BoxTarget,
    PixelTarget as PixelTarget,
    QueryTarget as QueryTarget,
    RegionTarget as RegionTarget,
)
from .blocks.registry import (
    create_block as create_block,
    list_blocks as list_blocks,
    register_block as register_block,
)
from .data.scenes.dataset import (
    Scenes as Scenes,
)
from .geometry.affine import (
    Geometry as Geometry,
)
from .images.reader import (
    ImageError as ImageError,
    read_image as read_image,
)
from .images.sources import (
    sample_photos as sample_photos,
)
from .insertion.cost import (
    summary as summary,
)
from .insertion.insertion import (
    insert as insert,
    remove as remove,
)
from .models.saving import (
    load as load,
    load_blocks as load_blocks,
    save as save,
    save_blocks as save_blocks,
)
from .pipelines.answering import (
    ask as ask,
)
from .pipelines.captioning import (
    caption as caption,
)
from .pipelines.detection import (
    detect as detect,
)
from .pipelines.explainer import (
    Explainer as Explainer,
    explain as explain,
    methods_for as methods_for,
)
from .pipelines.image_functions import (
    CaptionImages as CaptionImages,
    MapImages as MapImages,
)
from .pipelines.segmentation import (
    segment as segment,
)
from .recording.recorder import (
    record as record,
)
from .results.attention_map import (
    AttentionMap as AttentionMap,
)
from .results.captions import (
    word_table as word_table,
)
from .viz.figures import (
    figure as figure,
)
from .viz.maps import (
    overlay as overlay,
)

__all__: list[str]
__version__: str
