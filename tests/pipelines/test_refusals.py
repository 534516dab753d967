"""What is refused: pictures that would be wrong, arguments that would be ignored, lost work."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from dense_models import Segmenter
from image_text_models import hugging_face_vit as vit
from question_models import small_detector, small_mac
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import visattn as va
from tests.helpers.torchvision_dense import detector
from visattn.models import AttentionResNet, RecurrentAttentionModel, ShowAttendTell, SmallEncoder
from visattn.models.loaded import Loaded, mark
from visattn.pipelines import glimpses
from visattn.pipelines.layer_attention import record_layers
from visattn.results.kinds import SPECIAL_TOKENS

SIZE = (40, 56)
PHOTO = np.random.default_rng(0).integers(0, 256, (53, 71, 3), dtype=np.uint8)
BANDS = np.zeros((*SIZE, 5), np.int16)
BANDS[0, 0] = -3000
STEPS = v2.Compose([v2.ToImage(), v2.Resize((48, 48)), v2.ToDtype(torch.float32, scale=True),
                    v2.Normalize([0.1] * 3, [0.2] * 3)])  # fmt: skip
TWICE = v2.Compose([*STEPS.transforms, v2.Normalize([0.0] * 3, [0.2] * 3)])
OWN = "takes no target, transform, input_size or class_names"


def network(first: nn.Module = nn.Conv2d(3, 5, 4, 4), classes: int = 3) -> nn.Module:  # noqa: B008
    pool = nn.AdaptiveAvgPool3d(1) if isinstance(first, nn.Conv3d) else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(first, nn.ReLU(), pool, nn.Flatten(), nn.Linear(5, classes)).eval()


def cnn(img_size: tuple[int, int] = (32, 48)) -> AttentionResNet:
    return AttentionResNet(("cat", "dog", "cow"), depth=8, stem_width=8, img_size=img_size)


def processor() -> Any:
    return transformers.ViTImageProcessor(size={"height": 48, "width": 48})


def ram(bias: float = 0.0) -> RecurrentAttentionModel:
    colors = ((0.5,) * 3, (0.3,) * 3)
    model = RecurrentAttentionModel(("cat", "dog"), (24, 40), *colors, glimpse_size=7).eval()
    nn.init.constant_(model.classifier.bias, bias)
    return model


def captioner(words: tuple[str, ...] = ("red", "dog"), **options: Any) -> ShowAttendTell:
    encoder = SmallEncoder((24, 40), channels=8)
    return ShowAttendTell((*SPECIAL_TOKENS, *words), encoder, hidden_size=11, **options)


def damaged(model: nn.Module, weight: str) -> Any:
    nn.init.constant_(model.get_parameter(weight), torch.nan)
    return model


def resnet_of_6_channels() -> nn.Module:
    sizes = {"num_channels": 6, "embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).eval()


def explained(make: Callable[[], nn.Module], *args: Any, image: Any = PHOTO, **options: Any) -> Any:
    return lambda: va.explain(make(), image, *args, **options)


def cnn_of(first: nn.Module) -> Any:
    return explained(lambda: network(first), "gradcam", input_size=32)


CASES: list[tuple[Callable[[], object], str]] = [
    # methods, arguments and targets
    (explained(cnn, "rollout"), r"rollout does not fit .*; supported methods: gradcam, "),
    (explained(cnn, "glimpses"), "glimpses does not fit a AttentionResNet"),
    (explained(cnn, "gradcam", leyer=2), "has no argument 'leyer'; it takes layers=-1"),
    (explained(cnn, ["gradcam", "occlusion"], strid=3), "gradcam has no argument 'strid'"),
    *((explained(cnn, "gradcam", wrong), "must be a list of classes")
      for wrong in ([], [["dog"], 2], [[]], [["dog"], ["cat"]])),
    (explained(captioner, "rollout"), "does not fit a ShowAttendTell; .*methods: attention"),
    (explained(captioner, "attention", 3), OWN),
    *((explained(ram, "glimpses", **each), OWN) for each in (
        {"processor": processor()}, {"transform": STEPS}, {"input_size": 24},
        {"class_names": ["a", "b"]})),
    (explained(vit, "gradcam", text="a cat", class_names=["a"]), "text= explains .* no target"),
    (explained(vit, "gradcam", text="a cat"), "needs a model with a text tower"),
    (explained(Segmenter, "finercam", va.PixelTarget(0, 1, 1), input_size=(24, 40)),
     "finercam does not fit Segmenter with a PixelTarget"),
    # gradients times input and biases must sum to the output
    (explained(lambda: detector("FCOS"), "fullgrad", va.BoxTarget(None, 2)), "do not sum"),
    (explained(lambda: nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.GroupNorm(1, 5), nn.GELU(),
                                     nn.Conv2d(5, 3, 1)), "fullgrad", va.PixelTarget(1, 20, 20),
               input_size=(96, 128)), "do not sum to its output"),
    # preprocessing
    (explained(vit, "gradcam", processor="anything"), "the transform str is unsupported"),
    (explained(vit, "gradcam", processor=processor(), transform=STEPS), "pass only one of them"),
    (explained(vit, "gradcam", transform=processor(), resize_mode="pad"), "pass only one"),
    (explained(vit, "gradcam", transform=processor(), input_size=32), "pass only one"),
    (lambda: va.Explainer(mark(network(), Loaded(transform=TWICE)), input_size=32),
     r"another way than by one mean and std.*pass transform="),
    (lambda: va.Explainer(network(), mean=0.5), "mean and std belong together"),
    (explained(network, "rise", transform=v1.PILToTensor()), "got torch.uint8; add ToTensor"),
    (explained(network, "rise", transform=v1.Resize(5)), r"float tensors \[c, y, x\], got Image"),
    (explained(lambda: network(classes=1), "rise", input_size=32, class_names=("a", "b", "c")),
     "a name for each of 1 classes, got 3"),
    # tensors, and images of other channels and units
    (explained(network, "rise", image=torch.zeros(1, 3, *SIZE).long()), "must hold floats, got"),
    (explained(network, "rise", image=torch.zeros(2, 3, 5, *SIZE)), "volumes and clips are not"),
    (explained(network, "rise", image=torch.zeros(2, 3, *SIZE), originals=[PHOTO]), "is shorter"),
    (explained(network, "rise", image=torch.zeros(1, 3, *SIZE), originals=PHOTO),
     "without transform= it is 53 x 71"),
    (explained(network, "rise", image=torch.zeros(1, 3, *SIZE), originals=PHOTO,
               transform=v2.Compose([v2.RandomCrop(SIZE)])), "is random"),
    (explained(lambda: network(nn.Conv2d(5, 5, 4, 4)), "rise", image=BANDS, input_size=SIZE),
     r"from -3000 to 0, leave 0 to 1.*mean= and std="),
    (explained(lambda: network(nn.Conv2d(5, 5, 4, 4)), "rise", image=BANDS[..., :4],
               input_size=SIZE),
     "takes 5 channels, but image has 4"),
    (explained(lambda: network(nn.Conv2d(5, 5, 4, 4)), "rise", image=va.read_image(PHOTO)),
     "read as a photo of 3"),
    # networks that take no photos
    (cnn_of(nn.Conv2d(4, 5, 3)), "4 channels, but image has 3: pass arrays .* wrap"),
    (cnn_of(nn.Conv2d(9, 5, 3)), "takes 9 channels"),
    (cnn_of(nn.Conv3d(1, 5, 3)), "only a batch of images with 3 channels"),
    (explained(lambda: nn.Sequential(nn.Conv1d(3, 5, 3)), "gradcam"), "only a batch of images"),
    (explained(lambda: timm.create_model("test_resnet", in_chans=4).eval(), "gradcam"),
     "takes 4 channels"),
    (explained(resnet_of_6_channels, "gradcam", input_size=32), "takes 6 channels"),
    # words and captions
    (explained(captioner, "relevance", heads=[0]), "apply only to attention and gradient_"),
    (explained(captioner, "attention", heads=[3], max_length=2), "heads"),
    (explained(lambda: captioner(attention="hard", places="sample"), "relevance", max_length=2),
     'set its places to "argmax"'),
    (lambda: va.caption(captioner(()), PHOTO), "no caption of these lengths is possible"),
    (lambda: va.caption(damaged(captioner(), "decoder.output.weight"), PHOTO), "NaN"),
    # questions, boxes, glimpses, layers
    (lambda: va.ask(small_mac(), PHOTO, ""), "at least one word, got ''"),
    (lambda: va.ask(small_mac(), PHOTO, " ?! "), "at least one word"),
    (lambda: va.ask(small_mac(), PHOTO, "Wo ist der rote Kreis?"),
     "knows none of the words of 'Wo ist der rote Kreis.'"),
    (lambda: va.ask(nn.Linear(1, 1), PHOTO, "the ring"), "must answer questions, .* got Linear"),
    (lambda: va.ask(damaged(small_mac(), "head.1.0.weight"), PHOTO, "the ring"), "are damaged"),
    (lambda: va.detect(small_detector(), PHOTO, layers=2), "layers must be from -2 to 1"),
    (lambda: va.detect(nn.Linear(1, 1), PHOTO), "must be a detector such as DETR, got Linear"),
    (lambda: va.detect(damaged(small_detector(), "heads.classes.weight"), PHOTO), "are damaged"),
    (lambda: glimpses(SmallEncoder((24, 24)), PHOTO), "got SmallEncoder"),
    (lambda: glimpses(ram(math.nan), PHOTO), "outputs NaN or infinity"),
    (lambda: glimpses(ram(math.inf), PHOTO), "outputs NaN or infinity"),
    (lambda: record_layers(va.Explainer(cnn()).analyze(), torch.zeros(1, 3, 32, 48)),
     "has no attention heads to show"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "reason"), CASES, ids=range(len(CASES)))
def test_refused_with_the_reason(call: Callable[[], object], reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=reason):
        call()
