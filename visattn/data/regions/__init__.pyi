from .coco_instances import (
    CocoImage as CocoImage,
    CocoObject as CocoObject,
    read_instance_file as read_instance_file,
)
from .dataset import (
    AnnotatedImage as AnnotatedImage,
    AnnotatedObject as AnnotatedObject,
    read_annotated_images as read_annotated_images,
    read_coco_images as read_coco_images,
    read_images_with_masks as read_images_with_masks,
)
from .imagenet_to_coco import (
    matching_classes as matching_classes,
)
from .masks import (
    boxes_mask as boxes_mask,
    polygon_mask as polygon_mask,
    rle_mask as rle_mask,
    segmentation_mask as segmentation_mask,
)
from .saved_maps import (
    SavedMaps as SavedMaps,
    read_saved_maps as read_saved_maps,
    reshape_maps as reshape_maps,
)
