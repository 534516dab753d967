"""Tiny vision-language models of transformers with random weights, and their processors.

transformers knows the classes of a `model_type`. Their defaults are made small by the names of
their fields, so that a row of `FAMILIES` says only what is special about a family.
"""

import inspect
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.auto import auto_mappings, modeling_auto
from transformers.models.smolvlm import processing_smolvlm

hf: Any = transformers  # its signatures lack arguments that it passes on
library: Any = processing_smolvlm
library.num2words = str  # a package that only videos need
Row = dict[str, Any]
WORDS = tuple(f"w{number}" for number in range(60))
VOCABULARY = 200
PROMPT = "w1 w2"
SIZES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (32, ("latent_channels", "base_channels")),
    (16, (
        "hidden_size", "intermediate_size", "d_model", "n_embd", "embed_dim", "ffn_dim", "d_ff",
        "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "output_channels", "out_hidden_size",
        "projection_dim", "encoder_hidden_size", "cross_attention_hidden_size", "text_hidden_size",
        "word_embed_proj_dim", "image_text_hidden_size", "alignment_intermediate_size",
        "projection_hidden_size", "projector_hidden_size", "projector_input_dim", "num_patches",
        "projector_output_dim", "intermediate_size_mlp", "num_position_embeddings", "output_dim",
        "vision_output_dim", "num_embeddings", "ext_pw_out_channel", "nemo_conv_channels",
        "output_proj_dims", "mm_embed_dim", "decoder_hidden_size", "post_conv_out_channels",
    )),
    (8, (
        "head_dim", "d_kv", "resampler_head_dim", "linear_key_head_dim", "linear_value_head_dim",
        "moe_intermediate_size", "shared_expert_intermediate_size", "share_expert_dim",
        "query_pre_attn_scalar", "pos_emb_height", "pos_emb_width", "num_mel_bins", "input_size",
        "post_conv_in_channels", "post_conv_mid_channels",
    )),
    (4, (
        "window_size", "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts",
        "hidden_size_per_layer_input", "laurel_rank", "max_temporal_embeddings",
    )),
    (2, (
        "num_hidden_layers", "num_layers", "n_layer", "layers", "depth", "encoder_layers",
        "decoder_layers", "num_attention_heads", "num_heads", "n_head", "attention_heads",
        "encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads",
        "linear_num_key_heads", "linear_num_value_heads", "resampler_n_heads", "moe_topk", "moe_k",
        "num_experts_per_tok", "eos_token_id", "sep_token_id", "conf_num_attention_heads",
        "scale_factor", "downsample_factor", "altup_num_inputs", "pooling_kernel_size",
    )),
    (1, (
        "resampler_depth", "cross_attention_frequency", "n_group", "topk_group", "num_blocks",
        "n_shared_experts", "moe_num_shared_experts", "num_res_blocks", "bos_token_id",
        "first_k_dense_replace", "conf_num_hidden_layers", "num_global_layers", "insert_layer_id",
    )),
    (0, ("pad_token_id", "num_kv_shared_layers")),
    (VOCABULARY, ("vocab_size", "vocab_size_per_layer_input")),
    (False, ("vision_use_head",)),
    ([1], ("global_attn_indexes", "fullatt_block_indexes")),
    ([0], ("deepstack_visual_indexes", "intermediate_layers_indices")),
)  # fmt: skip
"""What makes a model small, and the fields of configs that say it."""
COUNTS = (
    "image_seq_length", "image_seq_len", "mm_tokens_per_image", "num_image_tokens",
    "num_query_tokens", "resampler_n_latents", "vision_soft_tokens_per_image", "latent_query_num",
    "max_soft_tokens",
)  # fmt: skip
"""Names of the number of tokens of a photo or tile."""


def shrink(kind: Any, shared: Row, own: Row) -> Any:
    """Return a small config.

    Args:
        kind: Its class.
        shared: Fields of it and of its parts, where they have them.
        own: Its fields; those of a part are a dictionary, with its `model_type` if it is another.
    """
    default, known = kind(), {each.name for each in fields(kind)}
    small: Row = {name: size for size, names in SIZES for name in names}
    if "num_key_value_heads" in known:
        small["num_attention_heads"] = 4
    small = {name: value for name, value in {**small, **shared}.items() if name in known}
    for name, value in small.items():
        if isinstance(vars(default).get(name), list | tuple) and not isinstance(value, list):
            small[name] = [value] * 2  # one for each side, or layer
    for name in ("layer_types", "mlp_layer_types"):
        if len(kinds := list(dict.fromkeys(getattr(default, name, None) or ()))) > 1:
            small[name] = kinds[:2][-small["num_hidden_layers"] :]
    small |= own
    if "mrope_section" in getattr(kind, "ignore_keys_at_rope_validation", ()):
        small.setdefault("rope_parameters", {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
            "mrope_section": [1, 1, small.get("head_dim", 4) // 2 - 2],
        })  # fmt: skip
    for name, declared in kind.sub_configs.items():
        if (part := small.get(name, {})) is not None:
            usual = getattr(default, name)
            chosen = declared if usual is None else type(usual)
            if "model_type" in part:
                chosen = hf.CONFIG_MAPPING[part["model_type"]]
            rest = {key: value for key, value in part.items() if key != "model_type"}
            small[name] = shrink(chosen, shared, rest)
    return kind(**small)


def tokenizer(**named: str) -> Any:
    """Return a tokenizer that splits at white space; named tokens are special."""
    special = ("<pad>", "<s>", "</s>", "<unk>", *named.values())
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys((*special, *WORDS)))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", extra_special_tokens=named,
    )  # fmt: skip


def _asked_for(processor: Any) -> dict[str, str]:
    """Return the special tokens that the code of a processor reads by name, or holds."""
    code = inspect.getsource(inspect.getmodule(processor) or processor)
    names = re.findall(r'tokenizer(?:\.|, ")(?!pad|bos|eos|unk|sep|add)(\w+_token)\b', code)
    held = re.findall(r"<[\w|/-]+>|\[IMG\w*\]|\bTILE\w*", code)
    named = {each: f"<{each.removesuffix('_token')}>" for each in names}
    return named | {each: each for each in held}


def _class(mapping: Any, kind: str) -> Any:
    """Return the class of a `model_type`, None if there is none."""
    name = mapping.get(kind)
    if isinstance(name, dict):
        name = name.get("torchvision") or name["pil"]
    return getattr(hf, name) if name else None


def _small_images(kind: Any, fields: Row, own: Row) -> Any:
    """Return an image processor whose output is small."""
    usual, side = kind(), fields["image_size"]
    size, square = dict(usual.size or {}), {"height": side, "width": side}
    options = {"crop_size": square, **fields}
    if getattr(usual, "merge_size", None) and "shortest_edge" in size:  # its sizes count pixels
        merged = (2 * fields["patch_size"]) ** 2
        options["size"] = {"shortest_edge": 16 * merged, "longest_edge": 30 * merged}
    elif size.get("height"):
        options["size"] = square
    elif size.get("shortest_edge"):
        options["size"] = {"shortest_edge": side}
    known = {
        name: value for name, value in options.items()
        if isinstance(value, type(getattr(usual, name, None)))
        or (name.endswith("size") and isinstance(value, dict) and getattr(usual, name, None))
    }  # fmt: skip
    return kind(**{**known, **own})


def tiny(
    kind: str, *, side: int = 32, patch: int = 8, count: int | None = None, template: str = "",
    tokens: dict[str, str] | None = None, shared: Row | None = None, images: Row | None = None,
    processing: Row | None = None, audio: Row | None = None, classes: Row | None = None,
    **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Return a tiny model, and its processor.

    Args:
        kind: Its `model_type`.
        side: Height and width of a photo or tile for the model, in pixels.
        patch: Height and width of its patches.
        count: Number of tokens of each; one a patch by default.
        template: What a chat template writes for a photo.
        tokens: Special tokens by name, beyond those that the processor asks for. The config has
            the ids of its names.
        shared: Fields of all configs.
        images: Arguments of the image processor.
        processing: Arguments of the processor.
        audio: Arguments of the feature extractor for sound, where a processor needs one.
        classes: Classes of `model`, `processor` and `images` by name, where they are not those
            that transformers lists.
        **config: Fields of the config, and of its parts as dictionaries.
    """
    sides = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
    common: Row = {
        "image_size": side, "patch_size": patch,
        "image_grid_pinpoints": [[side * y, side * x] for y, x in sides],
        **dict.fromkeys(COUNTS, (side // patch) ** 2 if count is None else count),
    }  # fmt: skip
    chosen = {
        "model": _class(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, kind),
        "processor": _class(auto_mappings.PROCESSOR_MAPPING_NAMES, kind),
        "images": _class(auto_mappings.IMAGE_PROCESSOR_MAPPING_NAMES, kind),
        "video": _class(auto_mappings.VIDEO_PROCESSOR_MAPPING_NAMES, kind)
        or hf.Qwen2VLVideoProcessor,
        "audio": _class(auto_mappings.FEATURE_EXTRACTOR_MAPPING_NAMES, kind)
        or hf.WhisperFeatureExtractor,
        **{name: getattr(hf, each) for name, each in (classes or {}).items()},
    }  # fmt: skip
    named = {**(tokens or {}), **_asked_for(chosen["processor"]), **(tokens or {})}  # these first
    named = {name: token for name, token in named.items() if token}
    words = tokenizer(**named)
    accepted = inspect.signature(chosen["processor"]).parameters
    arguments: Row = {
        **common, "tokenizer": words, "qformer_tokenizer": words, "img_size": side,
        "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
    }  # fmt: skip
    if chosen["images"]:
        arguments["image_processor"] = _small_images(chosen["images"], common, images or {})
    if "video_processor" in accepted:
        arguments["video_processor"] = chosen["video"]()
    for name in {"feature_extractor", "audio_processor"} & set(accepted):
        arguments[name] = chosen["audio"](**audio or {})
    if template:
        arguments["chat_template"] = (
            "{% for message in messages %}{% for part in message.content %}{% if part.type == "
            f"'image' %}}{template}{{% else %}} {{{{ part.text }}}}{{% endif %}}{{% endfor %}}"
            "{% endfor %}"
        )
    arguments = {name: value for name, value in arguments.items() if name in accepted}
    processor = chosen["processor"](**{**arguments, **(processing or {})})
    for each in filter(None, (processor, arguments.get("image_processor"))):
        for name in {"num_image_tokens", "image_seq_length"} - set(accepted):
            setattr(each, name, common[name])  # some have no argument for it
    if own := getattr(processor, "image_token", None):
        named = {"image_token": str(own), **named}
    ids = {
        f"{name.removesuffix('_token')}{end}": words.convert_tokens_to_ids(token)
        for name, token in named.items() for end in ("_token_id", "_token_index", "_id")
    }  # fmt: skip
    built = shrink(hf.CONFIG_MAPPING[kind], {**common, **ids, **(shared or {})}, config)
    return chosen["model"](built), processor


def _pair(encoder: Any, decoder: Any, processor: Any) -> tuple[Any, Any]:
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = hf.VisionEncoderDecoderModel(config)
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    return model, processor


def ved() -> tuple[Any, Any]:
    encoder = shrink(hf.ViTConfig, {"image_size": [24, 40], "patch_size": 8}, {})
    decoder = shrink(hf.GPT2Config, {"n_positions": 64, "add_cross_attention": True}, {})
    images = hf.ViTImageProcessor(size={"height": 24, "width": 40})
    return _pair(encoder, decoder, (images, tokenizer()))


def trocr() -> tuple[Any, Any]:
    encoder = shrink(hf.DeiTConfig, {"image_size": 32, "patch_size": 8}, {})
    images = hf.DeiTImageProcessor(size=SQUARE, do_center_crop=False)
    return _pair(encoder, shrink(hf.TrOCRConfig, {}, {}), hf.TrOCRProcessor(images, tokenizer()))


def donut(processor: str = "Donut") -> tuple[Any, Any]:
    encoder = hf.DonutSwinConfig(image_size=[64, 48], patch_size=4, embed_dim=8, depths=[1, 1],
                                 num_heads=[2, 2], window_size=4)  # fmt: skip
    decoder = shrink(hf.MBartConfig, {}, {"is_decoder": True, "is_encoder_decoder": False,
                                          "add_cross_attention": True})  # fmt: skip
    images = getattr(hf, f"{processor}ImageProcessor")(size={"height": 64, "width": 48})
    return _pair(encoder, decoder, getattr(hf, f"{processor}Processor")(images, tokenizer()))


SQUARE = {"height": 32, "width": 32}
WHOLE: Row = {"images": {"size": SQUARE, "do_center_crop": False}}
TILED: Row = {"images": {"crop_to_patches": True, "max_patches": 6}, "count": 4}
BOUNDARY = "<fake_token_around_image>"
IDEFICS: Row = {"count": 4, "tokens": {
    "image_token": "<image>", "fake_image_token": BOUNDARY, "image_boundary_token": BOUNDARY,
    "global_image_token": "<global-img>",
    **{f"cell{y}{x}": f"<row_{y}_col_{x}>" for y in range(1, 7) for x in range(1, 7)},
}}  # fmt: skip
IDEFICS_3: Row = {**IDEFICS, "images": {
    "size": {"longest_edge": 96}, "max_image_size": {"longest_edge": 32}}}  # fmt: skip
QWEN: Row = {"patch": 4, "template": "<|vision_start|><|image_pad|><|vision_end|>", "tokens": {
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>",
}}  # fmt: skip
GLM: Row = {"patch": 4, "template": "<|begin_of_image|><|image|><|end_of_image|>", "tokens": {
    "image_token": "<|image|>", "video_token": "<|video|>", "image_start": "<|begin_of_image|>",
    "image_end": "<|end_of_image|>", "video_start": "<|begin_of_video|>",
    "video_end": "<|end_of_video|>",
}}  # fmt: skip
PIXTRAL: Row = {"shared": {"image_size": 64}, "spatial_merge_size": 2,
                "images": {"size": {"longest_edge": 64}, "patch_size": 16}}  # fmt: skip
FULL = {"vision_feature_select_strategy": "full"}
GEMMA_4: Row = {"count": 70, "audio_config": None, "tokens": {"video_token": "<|video|>"},
                "images": {"pooling_kernel_size": 2}}  # fmt: skip

FAMILIES: dict[str, Row | Callable[[], tuple[Any, Any]]] = {
    "ved": ved, "trocr": trocr, "donut": donut, "nougat": lambda: donut("Nougat"),
    "blip": {},
    "blip2": {"kind": "blip-2", "count": 5, "tokens": {"image_token": ""}},
    "instructblip": {"count": 5, "tokens": {"image_token": ""}},
    "git": WHOLE,
    "llava": {"classes": {"images": "CLIPImageProcessor"}},
    "llava_next": {},
    "llava_onevision": {"vision_feature_layer": -1, "processing": FULL},
    "qwen2_vl": {**QWEN, "vision_config": {"mlp_ratio": 1}},
    "qwen2_5_vl": {**QWEN, "vision_config": {"window_size": 16}},
    "qwen3_vl": QWEN,
    "paligemma": {"shared": {"vocab_size": 1600}},
    "gemma3": {"count": 4, "text_config": {"sliding_window": 12}},
    "idefics2": {**IDEFICS, "count": 3, "images": {
        "size": {"shortest_edge": 24, "longest_edge": 32}, "do_image_splitting": False}},
    "idefics3": IDEFICS_3,
    "smolvlm": IDEFICS_3,
    "internvl": {**TILED, "tokens": {"image_token": "<context_image>"}},
    "florence2": {
        **WHOLE, "count": 17, "text_config": {"encoder_layers": 1}, "vision_config": {
            "depths": [1, 1], "embed_dim": [8, 16], "num_heads": [2, 2], "num_groups": [2, 2],
            "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
            "patch_prenorm": [False, True], "max_position_embeddings": 16,
        },
    },
    "kosmos2": {
        **WHOLE, "kind": "kosmos-2", "classes": {"processor": "Kosmos2Processor"}, "count": 64,
        "shared": {"vocab_size": 1400}, "processing": {"num_patch_index_tokens": 16},
    },
    "pix2struct": {
        "images": {"max_patches": 32, "patch_size": {"height": 8, "width": 8}},
        "vision_config": {"patch_embed_hidden_size": 192, "seq_len": 32},
        "decoder_start_token_id": 0,
    },
    "mllama": {
        "text_config": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
        "vision_config": {"vision_output_dim": 32},
    },
    "deepseek_vl": {"images": {"min_size": 8}},
    "ovis2": {
        "count": 4, "images": {"max_patches": 4}, "hidden_size": 16,
        "vision_config": {"vocab_size": 40, "num_visual_indicator_tokens": 5, "hidden_stride": 2},
        "tokens": {"image": "<IMG_ATOM>", "start": "<IMG_START>", "grid": "<IMG_GRID>",
                   "column": "<IMG_COL>", "row": "<IMG_ROW>", "end": "<IMG_END>"},
        "visual_indicator_token_ids": [5, 6, 7, 8, 9],
    },
    "mistral3": {**PIXTRAL, "processing": {"spatial_merge_size": 2}},
    "aya_vision": {
        **TILED, "processing": {"downsample_factor": 2}, "tokens": {"image": "<|IMG_PATCH|>"},
    },
    "got_ocr2": {
        "side": 96, "patch": 4, "count": 36, "vision_config": {"initializer_range": 0.02},
        "tokens": {"image": "<imgpad>"},
    },
    "lfm2_vl": {
        "patch": 4, "text_config": {"model_type": "lfm2"}, "images": {
            "tile_size": 32, "encoder_patch_size": 4, "min_image_tokens": 4,
            "max_image_tokens": 16, "max_tiles": 4, "max_num_patches": 64, "use_thumbnail": True,
        },
    },
    "video_llava": {},
    "t5gemma2": {"count": 4, "shared": {"sliding_window": 16}},
    "cohere2_vision": {"images": {"max_patches": 6, "patch_size": 2}},
    "glm4v": GLM,
    "glm46v": {**GLM, "vision_config": {"model_type": "glm4v_vision"},
               "text_config": {"model_type": "glm4v_text"}},
    "glm4v_moe": {**GLM, "classes": {"images": "Glm4vImageProcessor"}},
    "glm_ocr": {**GLM, "classes": {
        "images": "Glm46VImageProcessor", "processor": "Glm46VProcessor"}},
    "qwen3_vl_moe": {**QWEN, "classes": {"images": "Qwen2VLImageProcessor"}},
    "qwen3_5": QWEN,
    "qwen3_5_moe": QWEN,
    "paddleocr_vl": {**QWEN, "text_config": {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}},
    "llama4": {
        "patch": 4, "template": "<|image|>", "images": {"max_patches": 6},
        "vision_config": {"intermediate_size": 64}, "text_config": {"attention_chunk_size": 4096},
        "tokens": {"image": "<|patch|>"},
    },
    "janus": {
        "images": {"min_size": 8}, "vision_config": {"mlp_ratio": 1.0},
        "vq_config": {"embed_dim": 8, "channel_multiplier": [1, 1], "num_patches": 4},
    },
    "aria": {
        "side": 980, "patch": 49, "processing": {"size_conversion": {980: 9}},
        "projector_patch_to_query_dict": {400: 9, 4900: 9, 100: 9},
    },
    "vipllava": {"vision_feature_layers": [-2, -1]},
    "pixtral": {
        **FULL, "kind": "llava", "shared": {"image_size": 64}, "vision_feature_layer": -1,
        "classes": {"processor": "PixtralProcessor", "images": "PixtralImageProcessor"},
        "images": {"size": {"longest_edge": 64}}, "vision_config": {"model_type": "pixtral"},
        "text_config": {"model_type": "mistral"},
    },
    "lighton_ocr": PIXTRAL,
    "molmo2": {
        "images": {"max_crops": 4, "overlap_margins": [1, 1], "pooling_size": [2, 2]},
        "text_config": {"additional_vocab_size": 8},
        "adapter_config": {"vision_feature_layer": [-1, 0]},
        "tokens": {
            "image_patch": "<im_patch>", "image_start": "<im_start>", "image_end": "<im_end>",
            "low_res_image_start": "<low_res_im_start>", "frame_start": "<frame_start>",
            "frame_end": "<frame_end>", "image_token": "<|image|>",
        },
    },
    "video_llama_3": {"patch": 4, "tokens": QWEN["tokens"], "images": {"merge_size": 2}},
    "llava_next_video": {},
    "gemma4": {**GEMMA_4, "vision_config": {"position_embedding_size": 64}},
    "gemma3n": {
        "side": 256, "patch": 16, "audio": {"feature_size": 16},
        "vision_config": {
            "architecture": "mobilenetv5_base", "hidden_size": 2048, "vocab_size": 8,
            "vocab_offset": 180, "do_pooling": False, "model_args": {"channel_multiplier": 0.1},
        },
        "audio_config": {
            "vocab_size": 8, "vocab_offset": 190, "input_feat_size": 16,
            "sscp_conv_channel_size": [8, 8],
        },
        "text_config": {
            "vocab_size_per_layer_input": 180, "sliding_window": 512,
            "activation_sparsity_pattern": [0.0, 0.0],
        },
    },
    "kimi_k25": {"patch": 4, "tokens": QWEN["tokens"], "text_config": {"model_type": "llama"}},
    "hunyuan_vl": {
        "patch": 4, "vision_config": {"max_image_size": 64}, "text_config": {"rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "xdrope_section": [1, 1, 1, 1],
        }},
        "tokens": {"im_start": "<image_start>", "im_end": "<image_end>", "im_newline": "<nl>"},
    },
    "lfm3_vl": {
        "patch": 4, "tokens": QWEN["tokens"], "vision_config": {"layer_types": None},
        "text_config": {"model_type": "lfm2"},
    },
    "ernie4_5_vl_moe": {
        "patch": 4, "text_config": {"head_dim": 8, "moe_intermediate_size": [8, 8]},
    },
    "exaone4_5": {"patch": 4, "tokens": QWEN["tokens"], "vision_config": {"window_size": 16}},
    "perception_lm": {
        "processing": {"patch_size": 16, "pooling_ratio": 2}, "projector_pooling_ratio": 2,
        "images": {"tile_size": 64, "max_num_tiles": 4}, "vision_use_cls_token": True,
        "vision_config": {
            "architecture": "vit_pe_core_tiny_patch16_384", "num_classes": 0, "do_pooling": False,
            "model_args": {
                "embed_dim": 16, "img_size": [64, 64], "depth": 2, "global_pool": "",
                "use_post_transformer_norm": False, "init_values": 0.1, "ref_feat_shape": [4, 4],
                "num_heads": 2, "patch_size": [16, 16],
            },
        },
    },
    "fast_vlm": {
        **FULL, "side": 256, "patch": 64, "vision_feature_layer": -1,
        "classes": {"processor": "LlavaProcessor", "images": "CLIPImageProcessor"},
        "processing": {**FULL, "num_additional_image_tokens": 0},
        "vision_config": {
            "hidden_size": 64, "architecture": "fastvit_mci3", "do_pooling": True,
            "global_pool": "avg", "num_classes": 0,
            "model_args": {
                "inference_mode": True, "layers": [1] * 5, "embed_dims": [8, 8, 16, 16, 32],
                "mlp_ratios": [1] * 5, "se_downsamples": [False] * 5, "pos_embs": [None] * 5,
                "downsamples": [False, True, True, True, True], "lkc_use_act": True,
                "token_mixers": ["repmixer"] * 5, "stem_use_scale_branch": False,
            },
        },
    },
    "idefics": {
        "images": {"image_size": 32}, "additional_vocab_size": 0,
        "perceiver_config": {"use_resampler": False},
    },
    "chameleon": {
        "count": 256, "tokens": {"image_token": "<image>"},
        "vq_config": {"embed_dim": 8, "num_embeddings": 10, "resolution": 32,
                      "channel_multiplier": [1, 2]},
        "vocabulary_map": {
            "<image>": 4, **{f"IMGIMG{letter}Z": 100 + n for n, letter in enumerate("ABCDEFGHIJ")},
        },
    },
    "emu3": {
        "shared": {"vocab_size": 300}, "images": {"min_pixels": 64 * 64, "max_pixels": 128 * 128},
        "tokens": {"image_token": "<image>"},
        "vq_config": {
            "codebook_size": 16, "embed_dim": 4, "latent_channels": 4, "hidden_size": 32,
            "channel_multiplier": [1, 1, 1, 1], "attn_resolutions": [],
        },
        "vocabulary_map": {
            "<image>": 4, "<|extra_200|>": 8,
            **{f"<|visual token {n:06}|>": 100 + n for n in range(16)},
        },
    },
    "kosmos2_5": {
        "kind": "kosmos-2.5", "classes": {"processor": "Kosmos2_5Processor"}, "count": 4,
        "vision_config": {"patch_embed_hidden_size": 192, "max_num_patches": 128},
        "images": {"patch_size": {"height": 8, "width": 8}, "max_patches": 32},
    },
    "qianfan_ocr": {**TILED, "tokens": {"image_token": "<context_image>"}},
    "deepseek_vl_hybrid": {
        "images": {"high_res_size": {"height": 64, "width": 64}, "min_size": 8},
        "high_res_vision_config": {"image_size": 64, "output_channels": 8},
    },
    "instructblipvideo": {"count": 5},
    "gemma4_unified": {**GEMMA_4, "vision_config": {"mm_posemb_size": 64}},
    "minicpmv4_6": {
        "side": 64, "patch": 4, "vision_config": {"num_hidden_layers": 3},
        "images": {"max_slice_nums": 4, "scale_resolution": 64},
        "text_config": {"model_type": "qwen2"},
    },
    "granite_docling": {
        **IDEFICS, "images": {"max_patches": 6}, "vision_config": {"use_fine_route": False},
    },
    "granite4_vision": {
        **FULL, "count": 4, "downsample_rate": "1/2", "vision_feature_layer": -1,
        "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [],
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 64,
                          "num_attention_heads": 1},
        "qformer_config": {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1,
                           "encoder_hidden_size": 64},
        "processing": {**FULL, "num_additional_image_tokens": 0, "downsample_rate": "1/2"},
    },
    "deepseek_ocr2": {
        "side": 1024, "patch": 16, "images": {"tile_size": 768}, "text_config": {
            "mlp_layer_types": ["dense", "sparse"], "max_position_embeddings": 4096},
        "vision_config": {"sam_config": {"output_channels": 8, "downsample_channels": [16, 16]}},
    },
    "phi4_multimodal": {
        "side": 448, "patch": 14, "classes": {"model": "Phi4MultimodalForCausalLM"},
        "audio": {"feature_size": 8}, "images": {"dynamic_hd": 2},
        "vision_config": {"crop_size": 448},
        "shared": {"original_max_position_embeddings": 4096, "max_position_embeddings": 4096},
    },
    "qwen2_5_omni_thinker": {
        "patch": 4, "audio": {"feature_size": 8}, "vision_config": {"window_size": 16},
        "classes": {"processor": "Qwen2_5OmniProcessor", "images": "Qwen2VLImageProcessor"},
        "vision_start_token_id": 6,
    },
    "step3p7": {
        "side": 728, "patch": 14, "tokens": {"image": "<im_patch>"},
        "vision_config": {"mlp_ratio": 1.0, "max_position_embeddings": 64},
        "text_config": {"layer_types": ["full_attention"] * 2},
    },
    "pp_formulanet": {
        "side": 64, "patch": 4, "vision_config": {"output_channels": 8},
        "text_config": {
            "decoder_start_token_id": 2, "forced_eos_token_id": None, "max_position_embeddings": 64,
        },
    },
}  # fmt: skip


def build(name: str, **more: Any) -> tuple[Any, Any]:
    """Return a tiny model of a family in evaluation mode, and its processor."""
    row = FAMILIES[name]
    torch.manual_seed(5)
    model, processor = row() if callable(row) else tiny(**deepcopy({"kind": name, **row, **more}))
    for key, weight in model.named_parameters():
        if "mm_input_projection_weight" in key:  # zeros
            torch.nn.init.normal_(weight)
    if name in ("pix2struct", "t5gemma2"):
        start = 0 if name == "pix2struct" else 1
        model.generation_config.update(decoder_start_token_id=start, pad_token_id=0, eos_token_id=2)
    return model.eval(), processor
