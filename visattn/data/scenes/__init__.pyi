from .dataset import (
    Scenes as Scenes,
    SingleCaptionScenes as SingleCaptionScenes,
)
from .grammar import (
    SceneCaption as SceneCaption,
    describe_world as describe_world,
    grammar_words as grammar_words,
    relation_holds as relation_holds,
)
from .render import (
    draw_world as draw_world,
    object_masks as object_masks,
)
from .single_object import (
    SingleObjectScenes as SingleObjectScenes,
    single_object_scenes as single_object_scenes,
    single_object_world as single_object_world,
)
from .verify import (
    CaptionScore as CaptionScore,
    Claim as Claim,
    Mention as Mention,
    Verdict as Verdict,
    parse_claim as parse_claim,
    score_caption as score_caption,
    verify_caption as verify_caption,
)
from .world import (
    COLORS as COLORS,
    SHAPES as SHAPES,
    TEXTURES as TEXTURES,
    SceneObject as SceneObject,
    World as World,
    WorldConfig as WorldConfig,
    sample_world as sample_world,
)
