from .coco_instances import (
    CocoImage as CocoImage,
)
from .coco_instances import (
    CocoObject as CocoObject,
)
from .coco_instances import (
    read_instance_file as read_instance_file,
)
from .dataset import (
    LocatedImage as LocatedImage,
)
from .dataset import (
    LocatedObject as LocatedObject,
)
from .dataset import (
    read_instances as read_instances,
)
from .dataset import (
    read_located as read_located,
)
from .dataset import (
    read_masked as read_masked,
)
from .imagenet_to_coco import (
    classes_of as classes_of,
)
from .masks import (
    boxes_mask as boxes_mask,
)
from .masks import (
    polygon_mask as polygon_mask,
)
from .masks import (
    run_length_mask as run_length_mask,
)
from .masks import (
    segmentation_mask as segmentation_mask,
)
from .saved_maps import (
    MapFile as MapFile,
)
from .saved_maps import (
    read_maps as read_maps,
)
from .saved_maps import (
    shaped_maps as shaped_maps,
)
