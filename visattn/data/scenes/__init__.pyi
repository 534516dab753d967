from .dataset import (
    EachCaptionOnce as EachCaptionOnce,
)
from .dataset import (
    Scenes as Scenes,
)
from .grammar import (
    SceneCaption as SceneCaption,
)
from .grammar import (
    grammar_words as grammar_words,
)
from .grammar import (
    holds as holds,
)
from .grammar import (
    tell as tell,
)
from .render import (
    draw as draw,
)
from .render import (
    masks as masks,
)
from .single_object import (
    SingleObjectScenes as SingleObjectScenes,
)
from .single_object import (
    lone_things as lone_things,
)
from .single_object import (
    lone_world as lone_world,
)
from .verify import (
    Claim as Claim,
)
from .verify import (
    Judgment as Judgment,
)
from .verify import (
    Mention as Mention,
)
from .verify import (
    Verdict as Verdict,
)
from .verify import (
    check as check,
)
from .verify import (
    judge as judge,
)
from .verify import (
    parse as parse,
)
from .world import (
    Kinds as Kinds,
)
from .world import (
    SceneObject as SceneObject,
)
from .world import (
    World as World,
)
from .world import (
    sample_world as sample_world,
)
