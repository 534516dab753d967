"""More tiny vision-language models of transformers, beside those whose rows other tests compare."""

from collections.abc import Callable
from typing import Any

import tiny_vlms
from tiny_vlms import IDS, IMAGE, LLAMA, PROMPT, SMALL, TILES, VOCABULARY, hf, tokenizer

Pair = tuple[Any, Any]
SIG: dict[str, Any] = {
    **SMALL, **TILES, "model_type": "siglip_vision_model", "vision_use_head": False,
}  # fmt: skip
GLM_IDS = {
    "image_token_id": 4, "video_token_id": 5, "image_start_token_id": 6, "image_end_token_id": 7,
    "video_start_token_id": 8, "video_end_token_id": 9,
}  # fmt: skip
_BEGIN = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}"
)
_END = "{% else %} {{ part.text }}{% endif %}{% endfor %}{% endfor %}"


ROPE = {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}


def cohere2_vision() -> Pair:
    c = hf.Cohere2VisionConfig(vision_config=SIG, text_config={**LLAMA, "model_type": "cohere2"},
        downsample_factor=2, image_token_id=4, alignment_intermediate_size=16)  # fmt: skip
    im = hf.Cohere2VisionImageProcessor(size={"height": 32, "width": 32}, max_patches=6,
        patch_size=2)  # fmt: skip
    t = tokenizer(image_token="<img>", boi_token="<boi>", eoi_token="<eoi>",
        img_line_break_token="<lb>")  # fmt: skip
    return hf.Cohere2VisionForConditionalGeneration(c), hf.Cohere2VisionProcessor(im, t)


def _qwenlike(
    model: Any, config: Any, processor: Any, images: Any, vision: Any, text: Any, names: Any, *,
    patch: int = 4, merge: int = 2, ids: Any = None, videos: Any = None, **extra: Any,
) -> Pair:  # fmt: skip
    ids = ids or {"image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6,
        "vision_end_token_id": 7}  # fmt: skip
    cfg = config(text_config={**LLAMA, **text}, vision_config=vision, **ids)
    im = images(patch_size=patch, merge_size=merge, size={"shortest_edge": 16 * (2 * patch) ** 2,
        "longest_edge": 30 * (2 * patch) ** 2}, **extra)  # fmt: skip
    t = tokenizer(**names)
    a, _b, c_, d = (list(names.values()) + [""] * 4)[:4]
    tpl = _BEGIN + f"{c_}{a}{d}" + _END
    args = [im, t] + ([videos()] if videos else [])
    return model(cfg), processor(*args, chat_template=tpl)


QN = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
    "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}  # fmt: skip


GN = {"image_token": "<|image|>", "video_token": "<|video|>", "bi": "<|begin_of_image|>",
    "ei": "<|end_of_image|>", "bv": "<|begin_of_video|>", "ev": "<|end_of_video|>"}  # fmt: skip


def glm4v() -> Pair:
    v = {"depth": 2, "hidden_size": 16, "num_heads": 2, "image_size": 32, "patch_size": 4,
        "out_hidden_size": 16, "intermediate_size": 16}  # fmt: skip
    return _qwenlike(hf.Glm4vForConditionalGeneration, hf.Glm4vConfig, hf.Glm4vProcessor,
        hf.Glm4vImageProcessor, v, {"rope_parameters": ROPE}, GN, ids=GLM_IDS,
        videos=hf.Glm4vVideoProcessor)  # fmt: skip


def glm46v() -> Pair:
    v = {"model_type": "glm4v_vision", "depth": 2, "hidden_size": 16, "num_heads": 2,
        "image_size": 32, "patch_size": 4, "out_hidden_size": 16,
        "intermediate_size": 16}  # fmt: skip
    return _qwenlike(hf.Glm46VForConditionalGeneration, hf.Glm46VConfig, hf.Glm46VProcessor,
        hf.Glm46VImageProcessor, v, {"model_type": "glm4v_text", "rope_parameters": ROPE}, GN,
        ids=GLM_IDS, videos=hf.Glm46VVideoProcessor)  # fmt: skip


def glm4v_moe() -> Pair:
    v = {"depth": 2, "hidden_size": 16, "num_heads": 2, "image_size": 32, "patch_size": 4,
        "out_hidden_size": 16, "intermediate_size": 16}  # fmt: skip
    return _qwenlike(hf.Glm4vMoeForConditionalGeneration, hf.Glm4vMoeConfig, hf.Glm4vProcessor,
        hf.Glm4vImageProcessor, v, {"head_dim": 4, "rope_parameters": {**ROPE,
        "partial_rotary_factor": 1.0}, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
        GN, ids=GLM_IDS, videos=hf.Glm4vVideoProcessor)  # fmt: skip


def glm_ocr() -> Pair:
    v = {"depth": 2, "hidden_size": 16, "num_heads": 2, "image_size": 32, "patch_size": 4,
        "out_hidden_size": 16, "intermediate_size": 16}  # fmt: skip
    return _qwenlike(hf.GlmOcrForConditionalGeneration, hf.GlmOcrConfig, hf.Glm46VProcessor,
        hf.Glm46VImageProcessor, v, {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.0},
        "head_dim": 4}, GN, ids=GLM_IDS, videos=hf.Glm46VVideoProcessor)  # fmt: skip


V3 = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "patch_size": 4,
    "out_hidden_size": 16, "num_position_embeddings": 16}  # fmt: skip


def qwen3_vl_moe() -> Pair:
    return _qwenlike(hf.Qwen3VLMoeForConditionalGeneration, hf.Qwen3VLMoeConfig,
        hf.Qwen3VLProcessor, hf.Qwen2VLImageProcessor, {**V3, "deepstack_visual_indexes": [0]},
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}}, QN,
        videos=hf.Qwen2VLVideoProcessor)  # fmt: skip


def qwen3_5() -> Pair:
    return _qwenlike(hf.Qwen3_5ForConditionalGeneration, hf.Qwen3_5Config, hf.Qwen3VLProcessor,
        hf.Qwen2VLImageProcessor, V3, {"head_dim": 8, "layer_types": ["linear_attention",
        "full_attention"], "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "rope_parameters": {**ROPE,
        "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}}, QN,
        videos=hf.Qwen2VLVideoProcessor)  # fmt: skip


def qwen3_5_moe() -> Pair:
    return _qwenlike(hf.Qwen3_5MoeForConditionalGeneration, hf.Qwen3_5MoeConfig,
        hf.Qwen3VLProcessor, hf.Qwen2VLImageProcessor, V3, {"head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8, "rope_parameters": {**ROPE, "mrope_section": [2, 1,
        1], "partial_rotary_factor": 1.0}}, QN, videos=hf.Qwen2VLVideoProcessor)  # fmt: skip


def paddleocr_vl() -> Pair:
    v = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 32, "patch_size": 4}  # fmt: skip
    return _qwenlike(hf.PaddleOCRVLForConditionalGeneration, hf.PaddleOCRVLConfig,
        hf.PaddleOCRVLProcessor, hf.PaddleOCRVLImageProcessor, v, {"head_dim": 8,
        "rope_parameters": {**ROPE, "mrope_section": [2, 1, 1]}}, QN)  # fmt: skip


def llama4() -> Pair:
    c = hf.Llama4Config(vision_config={"hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 16 * 4, "vision_output_dim": 16,
        "image_size": 32, "patch_size": 4, "projector_input_dim": 16, "projector_output_dim": 16,
        "pixel_shuffle_ratio": 0.5}, text_config={**LLAMA, "intermediate_size_mlp": 16,
        "head_dim": 4, "num_local_experts": 2, "attention_chunk_size": 4096}, boi_token_index=5,
        eoi_token_index=6, image_token_index=4)  # fmt: skip
    im = hf.Llama4ImageProcessor(size={"height": 32, "width": 32}, max_patches=6)
    t = tokenizer(patch="<|patch|>", i="<|image|>", s="<|image_start|>", e="<|image_end|>",
        x="<|tile_x_separator|>", y="<|tile_y_separator|>")  # fmt: skip
    tpl = _BEGIN + "<|image|>" + _END
    return (hf.Llama4ForConditionalGeneration(c), hf.Llama4Processor(im, t, patch_size=4,
        chat_template=tpl))  # fmt: skip


def janus() -> Pair:
    c = hf.JanusConfig(text_config={**LLAMA, "model_type": "llama"},
        vision_config={"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 32, "patch_size": 8, "mlp_ratio": 1.0, "projection_dim": 16,
        "num_image_tokens": 16}, vq_config={"embed_dim": 8, "num_embeddings": 16,
        "latent_channels": 32, "base_channels": 32, "channel_multiplier": [1, 1],
        "num_res_blocks": 1, "num_patches": 4, "projection_dim": 16, "image_token_embed_dim": 16},
        image_token_id=4)  # fmt: skip
    im = hf.JanusImageProcessor(size={"height": 32, "width": 32}, min_size=8)
    t = tokenizer(image_token="<image_placeholder>", boi_token="<begin_of_image>",
        eoi_token="<end_of_image>")  # fmt: skip
    return hf.JanusForConditionalGeneration(c), hf.JanusProcessor(im, t, num_image_tokens=16)


def aria() -> Pair:
    c = hf.AriaConfig(vision_config={**SMALL, "image_size": 980, "patch_size": 49,
        "model_type": "idefics3_vision"}, text_config={**LLAMA, "moe_num_experts": 4,
        "moe_topk": 2, "moe_num_shared_experts": 1, "model_type": "aria_text"},
        projector_patch_to_query_dict={400: 9, 4900: 9, 100: 9}, image_token_index=4)  # fmt: skip
    im = hf.AriaImageProcessor(max_image_size=980, min_image_size=336)
    return (hf.AriaForConditionalGeneration(c), hf.AriaProcessor(im, tokenizer(**IMAGE),
        size_conversion={980: 9}))  # fmt: skip


def vipllava() -> Pair:
    c = hf.VipLlavaConfig(vision_config={**SMALL, **TILES, "model_type": "clip_vision_model",
        "num_hidden_layers": 3, "projection_dim": 16}, text_config={**LLAMA,
        "model_type": "llama"}, image_token_index=4, image_seq_length=16, vision_feature_layers=[-
        2, -1])  # fmt: skip
    im = hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return (hf.VipLlavaForConditionalGeneration(c), hf.LlavaProcessor(im, tokenizer(**IMAGE),
        patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1))  # fmt: skip


def pixtral() -> Pair:
    c = hf.LlavaConfig(vision_config={**SMALL, "model_type": "pixtral", "image_size": 64,
        "patch_size": 8, "head_dim": 8}, text_config={**LLAMA, "model_type": "mistral",
        "head_dim": 4}, image_token_index=4, vision_feature_layer=-1,
        vision_feature_select_strategy="full")  # fmt: skip
    im = hf.PixtralImageProcessor(size={"longest_edge": 64}, patch_size=8)
    t = tokenizer(image_token="[IMG]", b="[IMG_BREAK]", e="[IMG_END]")
    return (hf.LlavaForConditionalGeneration(c), hf.PixtralProcessor(im, t, patch_size=8,
        spatial_merge_size=1))  # fmt: skip


def lighton_ocr() -> Pair:
    c = hf.LightOnOcrConfig(spatial_merge_size=2, image_token_id=4, vision_config={**SMALL,
        "model_type": "pixtral", "image_size": 64, "patch_size": 8, "head_dim": 8},
        text_config={**LLAMA, "model_type": "qwen3", "head_dim": 4})  # fmt: skip
    im = hf.PixtralImageProcessor(size={"longest_edge": 64}, patch_size=16)
    t = tokenizer(image_token="<|image_pad|>", image_break_token="<|vision_pad|>",
        image_end_token="<|vision_end|>")  # fmt: skip
    return (hf.LightOnOcrForConditionalGeneration(c), hf.LightOnOcrProcessor(im, t, patch_size=8,
        spatial_merge_size=2))  # fmt: skip


def molmo2() -> Pair:
    c = hf.Molmo2Config(vision_config={**SMALL, "num_key_value_heads": 2, "head_dim": 8,
        "image_size": [32, 32], "patch_size": 8}, adapter_config={"hidden_size": 16,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 16, "text_hidden_size": 16, "vision_feature_layer": [-1, 0]},
        text_config={**LLAMA, "head_dim": 4, "additional_vocab_size": 8}, image_start_token_id=6,
        low_res_image_start_token_id=7, image_end_token_id=8, image_patch_id=4,
        frame_start_token_id=9, frame_end_token_id=10)  # fmt: skip
    im = hf.Molmo2ImageProcessor(size={"height": 32, "width": 32}, patch_size=8, max_crops=4,
        overlap_margins=[1, 1], pooling_size=[2, 2])  # fmt: skip
    t = tokenizer(p="<im_patch>", c="<im_col>", s="<im_start>", l="<low_res_im_start>",
        e="<im_end>", fs="<frame_start>", fe="<frame_end>", lo="<im_low>",
        image_token="<|image|>", video_token="<|video|>")  # fmt: skip
    return (hf.Molmo2ForConditionalGeneration(c), hf.Molmo2Processor(im,
        hf.Molmo2VideoProcessor(), t))  # fmt: skip


def video_llama_3() -> Pair:
    c = hf.VideoLlama3Config(text_config={**LLAMA, "model_type": "qwen2"}, vision_config={**SMALL,
        "patch_size": 4}, image_token_id=4, video_token_id=5)  # fmt: skip
    im = hf.VideoLlama3ImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 64,
        "longest_edge": 30 * 64})  # fmt: skip
    t = tokenizer(**QN)
    return (hf.VideoLlama3ForConditionalGeneration(c), hf.VideoLlama3Processor(im, t,
        hf.VideoLlama3VideoProcessor()))  # fmt: skip


def llava_next_video() -> Pair:
    c = hf.LlavaNextVideoConfig(vision_config={**SMALL, **TILES,
        "model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 16},
        text_config={**LLAMA, "model_type": "llama"}, image_token_index=4, video_token_index=5,
        image_seq_length=16, image_grid_pinpoints=tiny_vlms._PINPOINTS)  # fmt: skip
    im = hf.LlavaNextImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32,
        "width": 32}, image_grid_pinpoints=tiny_vlms._PINPOINTS)  # fmt: skip
    return (hf.LlavaNextVideoForConditionalGeneration(c),
        hf.LlavaNextVideoProcessor(hf.LlavaNextVideoVideoProcessor(), im,
        tokenizer(image_token="<image>", video_token="<video>"), patch_size=8,
        vision_feature_select_strategy="default", num_additional_image_tokens=1))  # fmt: skip


def gemma4() -> Pair:
    c = hf.Gemma4Config(vision_config={**SMALL, "num_key_value_heads": 2, "head_dim": 8,
        "patch_size": 8, "pooling_kernel_size": 2, "position_embedding_size": 64},
        text_config={**LLAMA, "head_dim": 8, "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4},
        audio_config=None, boi_token_id=5, eoi_token_id=6, image_token_id=4, video_token_id=9,
        boa_token_id=7, eoa_token_index=8, audio_token_id=10)  # fmt: skip
    im = hf.Gemma4ImageProcessor(patch_size=8, max_soft_tokens=70, pooling_kernel_size=2)
    t = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>", boa_token="<boa>",
        eoa_token="<eoa>", v="<|video|>", audio_token="<audio>")  # fmt: skip
    return (hf.Gemma4ForConditionalGeneration(c),
        hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), im, t, hf.Gemma4VideoProcessor(),
        image_seq_length=70))  # fmt: skip


def gemma3n() -> Pair:
    c = hf.Gemma3nConfig(vision_config={"architecture": "mobilenetv5_base", "hidden_size": 2048,
        "vocab_size": 8, "vocab_offset": 180, "do_pooling": False,
        "model_args": {"channel_multiplier": 0.1}}, audio_config={"hidden_size": 16,
        "vocab_size": 8, "vocab_offset": 190, "conf_num_attention_heads": 2,
        "conf_num_hidden_layers": 1, "input_feat_size": 16, "sscp_conv_channel_size": [8, 8]},
        text_config={**LLAMA, "intermediate_size": [16, 16], "vocab_size_per_layer_input": 180,
        "head_dim": 8, "hidden_size_per_layer_input": 4, "laurel_rank": 4, "altup_num_inputs": 2,
        "num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0],
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 512},
        image_token_id=4, boi_token_id=5, eoi_token_id=6, audio_token_id=7, boa_token_id=8,
        eoa_token_id=9, vision_soft_tokens_per_image=256)  # fmt: skip
    im = hf.SiglipImageProcessor(size={"height": 256, "width": 256})
    t = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>", audio_token="<a>",
        boa_token="<boa>", eoa_token="<eoa>")  # fmt: skip
    return (hf.Gemma3nForConditionalGeneration(c),
        hf.Gemma3nProcessor(hf.Gemma3nAudioFeatureExtractor(feature_size=16), im, t,
        image_seq_length=256))  # fmt: skip


def kimi_k25() -> Pair:
    c = hf.Kimi_K25Config(vision_config={"patch_size": 4, "pos_emb_height": 8, "pos_emb_width": 8,
        "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 16,
        "intermediate_size": 16}, text_config={**LLAMA, "model_type": "llama"},
        projection_hidden_size=16, image_token_id=4, video_token_id=5, vision_start_token_id=6,
        vision_end_token_id=7)  # fmt: skip
    im = hf.Kimi_K25ImageProcessor(patch_size=4, merge_size=2)
    return (hf.Kimi_K25ForConditionalGeneration(c), hf.Kimi_K25Processor(im, tokenizer(**QN),
        hf.Kimi_K25VideoProcessor()))  # fmt: skip


def hunyuan_vl() -> Pair:
    c = hf.HunYuanVLConfig(vision_config={"hidden_size": 16, "intermediate_size": 16,
        "num_attention_heads": 2, "num_hidden_layers": 2, "out_hidden_size": 16, "patch_size": 4,
        "text_hidden_size": 16, "max_image_size": 64}, text_config={**LLAMA, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "xdrope_section": [1,
        1, 1, 1]}}, image_token_id=4, im_start_id=6, im_end_id=7, im_newline_id=8)  # fmt: skip
    im = hf.HunYuanVLImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 64,
        "longest_edge": 30 * 64})  # fmt: skip
    t = tokenizer(image_token="<img_pad>", video_token="<v>", image_start_token="<is>",
        image_end_token="<ie>", nl="<nl>")  # fmt: skip
    return hf.HunYuanVLForConditionalGeneration(c), hf.HunYuanVLProcessor(im, t)


def lfm3_vl() -> Pair:
    c = hf.Lfm3VlConfig(vision_config={**SMALL, "num_key_value_heads": 2, "patch_size": 4,
        "layer_types": None}, text_config={**LLAMA, "model_type": "lfm2", "layer_types": ["conv",
        "full_attention"]}, image_token_id=4, video_token_id=5, vision_start_token_id=6,
        vision_end_token_id=7, projector_hidden_size=16)  # fmt: skip
    im = hf.Qwen2VLImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 64,
        "longest_edge": 30 * 64})  # fmt: skip
    return (hf.Lfm3VlForConditionalGeneration(c), hf.Lfm3VlProcessor(im, tokenizer(**QN),
        hf.Qwen2VLVideoProcessor()))  # fmt: skip


def ernie4_5_vl_moe() -> Pair:
    c = hf.Ernie4_5_VLMoeConfig(vision_config={"depth": 2, "hidden_size": 16, "num_heads": 2,
        "patch_size": 4, "intermediate_size": 16}, text_config={**LLAMA,
        "moe_intermediate_size": [8, 8], "moe_k": 2, "moe_num_experts": 4,
        "moe_num_shared_experts": 1, "mlp_layer_types": ["dense", "sparse"], "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1,
        2]}}, image_start_token_id=6, image_end_token_id=7, image_token_id=4,
        video_start_token_id=8, video_end_token_id=9, video_token_id=5)  # fmt: skip
    im = hf.Ernie4_5_VLMoeImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16
        * 64, "longest_edge": 30 * 64})  # fmt: skip
    t = tokenizer(image_token="<I>", video_token="<V>", image_start_token="<is>",
        image_end_token="<ie>", video_start_token="<vs>", video_end_token="<ve>")  # fmt: skip
    return (hf.Ernie4_5_VLMoeForConditionalGeneration(c), hf.Ernie4_5_VLMoeProcessor(im, t,
        hf.Ernie4_5_VLMoeVideoProcessor()))  # fmt: skip


def exaone4_5() -> Pair:
    c = hf.Exaone4_5_Config(vision_config={"depth": 2, "hidden_size": 16, "intermediate_size": 16,
        "num_heads": 2, "num_key_value_heads": 2, "patch_size": 4, "window_size": 16,
        "out_hidden_size": 16, "fullatt_block_indexes": [1]}, text_config={**LLAMA,
        "model_type": "exaone4"}, image_token_id=4, video_token_id=5)  # fmt: skip
    im = hf.Qwen2VLImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 64,
        "longest_edge": 30 * 64})  # fmt: skip
    return (hf.Exaone4_5_ForConditionalGeneration(c), hf.Exaone4_5_Processor(im, tokenizer(**QN),
        hf.Qwen2VLVideoProcessor()))  # fmt: skip


def perception_lm() -> Pair:
    c = hf.PerceptionLMConfig(vision_config={"model_type": "timm_wrapper",
        "architecture": "vit_pe_core_tiny_patch16_384", "num_classes": 0, "do_pooling": False,
        "model_args": {"embed_dim": 16, "img_size": [64, 64], "depth": 2, "global_pool": "",
        "use_post_transformer_norm": False, "init_values": 0.1, "ref_feat_shape": [4, 4],
        "num_heads": 2, "patch_size": [16, 16]}}, text_config={**LLAMA, "model_type": "llama"},
        vision_use_cls_token=True, projector_pooling_ratio=2, image_token_id=4,
        video_token_id=5)  # fmt: skip
    im = hf.PerceptionLMImageProcessor(tile_size=64, max_num_tiles=4)
    return (hf.PerceptionLMForConditionalGeneration(c),
        hf.PerceptionLMProcessor(hf.PerceptionLMVideoProcessor(), im,
        tokenizer(image_token="<image>", video_token="<video>"), patch_size=16,
        pooling_ratio=2))  # fmt: skip


def fast_vlm() -> Pair:
    c = hf.FastVlmConfig(vision_config={"hidden_size": 64, "model_type": "timm_wrapper",
        "architecture": "fastvit_mci3", "do_pooling": True, "global_pool": "avg",
        "num_classes": 0, "model_args": {"inference_mode": True, "layers": [1, 1, 1, 1, 1],
        "embed_dims": [8, 8, 16, 16, 32], "mlp_ratios": [1, 1, 1, 1, 1], "se_downsamples": [False]
        * 5, "downsamples": [False, True, True, True, True], "pos_embs": [None] * 5,
        "token_mixers": ["repmixer"] * 5, "lkc_use_act": True, "stem_use_scale_branch": False}},
        text_config={**LLAMA, "model_type": "qwen2"}, image_token_id=4, image_seq_length=16,
        vision_feature_select_strategy="full", vision_feature_layer=-1)  # fmt: skip
    im = hf.CLIPImageProcessor(size={"shortest_edge": 256}, crop_size={"height": 256, "width": 256})
    return (hf.FastVlmForConditionalGeneration(c), hf.LlavaProcessor(im, tokenizer(**IMAGE),
        patch_size=64, vision_feature_select_strategy="full",
        num_additional_image_tokens=0))  # fmt: skip


def idefics() -> Pair:
    c = hf.IdeficsConfig(vocab_size=VOCABULARY, additional_vocab_size=0, **SMALL,
        vision_config={"embed_dim": 16, "image_size": 32, "intermediate_size": 16,
        "patch_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
        perceiver_config={"use_resampler": False}, pad_token_id=0)  # fmt: skip
    im = hf.IdeficsImageProcessor(image_size=32)
    t = tokenizer(image_token="<image>", f="<fake_token_around_image>", e="<end_of_utterance>")
    return hf.IdeficsForVisionText2Text(c), hf.IdeficsProcessor(im, t)


def chameleon() -> Pair:
    c = hf.ChameleonConfig(**LLAMA, vq_config={"embed_dim": 8, "num_embeddings": 10,
        "latent_channels": 32, "resolution": 32, "base_channels": 32, "channel_multiplier": [1,
        2], "num_res_blocks": 1}, vocabulary_map={"<image>": 4, **{"IMGIMG" + "ABCDEFGHIJ"[i] +
        "Z": 100 + i for i in range(10)}})  # fmt: skip
    im = hf.ChameleonImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32,
        "width": 32})  # fmt: skip
    t = tokenizer(image_token="<image>", boi_token="<racm3:break>", eoi_token="<eoss>", sep="<sep>")
    t.sep_token = "<sep>"
    return (hf.ChameleonForConditionalGeneration(c), hf.ChameleonProcessor(im, t,
        image_seq_length=256))  # fmt: skip


def emu3() -> Pair:
    c = hf.Emu3Config(vq_config={"codebook_size": 16, "embed_dim": 4, "latent_channels": 4,
        "base_channels": 32, "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1,
        "hidden_size": 32, "attn_resolutions": []}, text_config={**LLAMA, "vocab_size": 300},
        vocabulary_map={"<image>": 4, "<|extra_200|>": 8, **{f"<|visual token {i:06}|>": 100 + i
        for i in range(16)}})  # fmt: skip
    im = hf.Emu3ImageProcessor(min_pixels=64 * 64, max_pixels=128 * 128)
    t = tokenizer(image_token="<image>", boi_token="<|image start|>", eoi_token="<|image end|>",
        image_wrapper_token="<|image token|>", eof_token="<|extra_201|>")  # fmt: skip
    return hf.Emu3ForConditionalGeneration(c), hf.Emu3Processor(im, t)


def kosmos2_5() -> Pair:
    c = hf.Kosmos2_5Config(vision_config={"hidden_size": 16, "patch_embed_hidden_size": 48 * 4,
        "intermediate_size": 16, "head_dim": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
        "max_num_patches": 128}, text_config={**IDS, "vocab_size": VOCABULARY, "embed_dim": 16,
        "layers": 2, "ffn_dim": 16, "attention_heads": 2}, latent_query_num=4)  # fmt: skip
    im = hf.Kosmos2_5ImageProcessor(patch_size={"height": 8, "width": 8}, max_patches=32)
    t = tokenizer(image_token="<im>", boi_token="<image>", eoi_token="</image>")
    return hf.Kosmos2_5ForConditionalGeneration(c), hf.Kosmos2_5Processor(im, t, num_image_tokens=4)


def qianfan_ocr() -> Pair:
    c = hf.QianfanOCRConfig(vision_config={**SMALL, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config={**LLAMA, "model_type": "qwen3", "head_dim": 4}, image_token_id=4,
        image_seq_length=4)  # fmt: skip
    im = hf.GotOcr2ImageProcessor(size={"height": 32, "width": 32}, crop_to_patches=True,
        max_patches=6)  # fmt: skip
    t = tokenizer(context_image_token="<IMG_CONTEXT>", start_image_token="<img>",
        end_image_token="</img>", video_token="<video>")  # fmt: skip
    return (hf.QianfanOCRForConditionalGeneration(c), hf.QianfanOCRProcessor(im, t,
        image_seq_length=4))  # fmt: skip


def deepseek_vl_hybrid() -> Pair:
    c = hf.DeepseekVLHybridConfig(vision_config={**SIG}, text_config={**LLAMA,
        "model_type": "llama"}, high_res_vision_config={**SMALL, "model_type": "sam_vision_model",
        "image_size": 64, "patch_size": 8, "output_channels": 8, "window_size": 4,
        "global_attn_indexes": [1], "mlp_dim": 16}, image_token_id=4)  # fmt: skip
    im = hf.DeepseekVLHybridImageProcessor(size={"height": 32, "width": 32},
        high_res_size={"height": 64, "width": 64}, min_size=8)  # fmt: skip
    return (hf.DeepseekVLHybridForConditionalGeneration(c), hf.DeepseekVLHybridProcessor(im,
        tokenizer(**IMAGE), num_image_tokens=16))  # fmt: skip


def instructblipvideo() -> Pair:
    c = hf.InstructBlipVideoConfig(text_config=tiny_vlms._opt(),
        qformer_config=tiny_vlms._qformer_config(), vision_config={**SMALL, **TILES},
        num_query_tokens=5, video_token_index=64)  # fmt: skip
    im = hf.InstructBlipVideoVideoProcessor(size={"height": 32, "width": 32})
    return (hf.InstructBlipVideoForConditionalGeneration(c), hf.InstructBlipVideoProcessor(im,
        tokenizer(), tokenizer(), num_query_tokens=5))  # fmt: skip


def gemma4_unified() -> Pair:
    c = hf.Gemma4UnifiedConfig(vision_config={"patch_size": 8, "pooling_kernel_size": 2,
        "mm_embed_dim": 16, "mm_posemb_size": 64, "output_proj_dims": 16}, text_config={**LLAMA,
        "head_dim": 8, "sliding_window": 512, "layer_types": ["sliding_attention",
        "full_attention"]}, audio_config=None, boi_token_id=5, eoi_token_id=6, image_token_id=4,
        video_token_id=9, boa_token_id=7, eoa_token_index=8, audio_token_id=10)  # fmt: skip
    im = hf.Gemma4UnifiedImageProcessor(patch_size=8, max_soft_tokens=70, pooling_kernel_size=2)
    t = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>", boa_token="<boa>",
        eoa_token="<eoa>", v="<|video|>", audio_token="<audio>")  # fmt: skip
    return (hf.Gemma4UnifiedForConditionalGeneration(c),
        hf.Gemma4UnifiedProcessor(hf.Gemma4UnifiedAudioFeatureExtractor(), im, t,
        hf.Gemma4UnifiedVideoProcessor(), image_seq_length=70))  # fmt: skip


def minicpmv4_6() -> Pair:
    c = hf.MiniCPMV4_6Config(vision_config={**SMALL, "num_hidden_layers": 3, "image_size": 64,
        "patch_size": 4, "insert_layer_id": 1}, text_config={**LLAMA, "model_type": "qwen2"},
        insert_layer_id=1, image_size=64, image_token_id=4, video_token_id=5)  # fmt: skip
    im = hf.MiniCPMV4_6ImageProcessor(max_slice_nums=4, scale_resolution=64, patch_size=4)
    t = tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>",
        image_start_token="<image>", image_end_token="</image>", slice_start_token="<slice>",
        slice_end_token="</slice>", image_id_start_token="<image_id>",
        image_id_end_token="</image_id>")  # fmt: skip
    return (hf.MiniCPMV4_6ForConditionalGeneration(c), hf.MiniCPMV4_6Processor(im,
        hf.MiniCPMV4_6VideoProcessor(), t))  # fmt: skip


def granite_docling() -> Pair:
    c = hf.GraniteDoclingConfig(vision_config={**SMALL, "image_size": 32, "patch_size": 8,
        "out_hidden_size": 16, "scale_factor": 2, "deepstack_visual_indexes": [0],
        "use_fine_route": False}, text_config=dict(LLAMA), image_token_id=4,
        pad_token_id=0)  # fmt: skip
    im = hf.GraniteDoclingImageProcessor(size={"height": 32, "width": 32}, max_patches=6)
    return (hf.GraniteDoclingForConditionalGeneration(c), hf.GraniteDoclingProcessor(im,
        tiny_vlms._idefics_tokens(), image_seq_len=4))  # fmt: skip


def granite4_vision() -> Pair:
    c = hf.Granite4VisionConfig(vision_config={**SIG, "hidden_size": 64, "num_attention_heads": 1,
        "image_size": 32}, text_config={**LLAMA, "model_type": "granite4_vision_text"},
        image_token_index=4, image_seq_length=4, image_grid_pinpoints=tiny_vlms._PINPOINTS,
        downsample_rate="1/2", vision_feature_layer=-1, vision_feature_select_strategy="full",
        deepstack_layer_map=[[-1, 0]], spatial_target_layers=[],
        qformer_config={"model_type": "blip_2_qformer", **SMALL, "hidden_size": 64,
        "num_attention_heads": 1, "num_hidden_layers": 1, "encoder_hidden_size": 64,
        "cross_attention_frequency": 1, "vocab_size": VOCABULARY})  # fmt: skip
    im = hf.LlavaNextImageProcessor(size={"height": 32, "width": 32}, crop_size={"height": 32,
        "width": 32}, image_grid_pinpoints=tiny_vlms._PINPOINTS)  # fmt: skip
    return (hf.Granite4VisionForConditionalGeneration(c), hf.Granite4VisionProcessor(im,
        tokenizer(**IMAGE), patch_size=8, vision_feature_select_strategy="full",
        downsample_rate="1/2"))  # fmt: skip


def deepseek_ocr2() -> Pair:
    c = hf.DeepseekOcr2Config(vision_config={"sam_config": {"hidden_size": 16,
        "output_channels": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 1024, "patch_size": 16, "window_size": 4, "global_attn_indexes": [],
        "mlp_dim": 16, "downsample_channels": [16, 16]}, "encoder_config": {**LLAMA,
        "hidden_size": 16}}, text_config={**LLAMA, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 8, "mlp_layer_types": ["dense",
        "sparse"], "n_group": 1, "topk_group": 1, "max_position_embeddings": 4096},
        image_token_id=4)  # fmt: skip
    im = hf.DeepseekOcr2ImageProcessor(size={"height": 1024, "width": 1024}, tile_size=768)
    return (hf.DeepseekOcr2ForConditionalGeneration(c), hf.DeepseekOcr2Processor(im,
        tokenizer(**IMAGE), patch_size=16, downsample_ratio=4))  # fmt: skip


def phi4_multimodal() -> Pair:
    c = hf.Phi4MultimodalConfig(**{**LLAMA, "vocab_size": VOCABULARY},
        original_max_position_embeddings=4096, max_position_embeddings=4096,
        vision_config={**SMALL, "image_size": 448, "patch_size": 14, "crop_size": 448,
        "image_token_id": 4}, audio_config={"hidden_size": 16, "intermediate_size": 16,
        "num_blocks": 1, "num_attention_heads": 2, "ext_pw_out_channel": 16,
        "nemo_conv_channels": 16, "input_size": 8, "audio_token_id": 5})  # fmt: skip
    im = hf.Phi4MultimodalImageProcessor(size={"height": 448, "width": 448}, patch_size=14,
        dynamic_hd=2)  # fmt: skip
    t = tokenizer(image_token="<|image|>", audio_token="<|audio|>")
    return (hf.Phi4MultimodalForCausalLM(c), hf.Phi4MultimodalProcessor(im,
        hf.Phi4MultimodalFeatureExtractor(feature_size=8), t))  # fmt: skip


def qwen2_5_omni_thinker() -> Pair:
    c = hf.Qwen2_5OmniThinkerConfig(vision_config={"depth": 2, "hidden_size": 16,
        "intermediate_size": 16, "num_heads": 2, "patch_size": 4, "out_hidden_size": 16,
        "window_size": 16, "fullatt_block_indexes": [1]}, text_config={**LLAMA,
        "rope_parameters": ROPE}, audio_config={"d_model": 16, "encoder_layers": 1,
        "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 16, "num_mel_bins": 8},
        image_token_id=4, video_token_id=5, vision_start_token_id=6, vision_end_token_id=7,
        audio_token_id=8, audio_start_token_id=9, audio_end_token_id=10)  # fmt: skip
    im = hf.Qwen2VLImageProcessor(patch_size=4, merge_size=2, size={"shortest_edge": 16 * 64,
        "longest_edge": 30 * 64})  # fmt: skip
    t = tokenizer(image_token="<|IMAGE|>", video_token="<|VIDEO|>", vision_bos_token="<vb>",
        vision_eos_token="<ve>", audio_token="<|AUDIO|>", audio_bos_token="<ab>",
        audio_eos_token="<ae>")  # fmt: skip
    return (hf.Qwen2_5OmniThinkerForConditionalGeneration(c), hf.Qwen2_5OmniProcessor(im,
        hf.Qwen2VLVideoProcessor(), hf.WhisperFeatureExtractor(feature_size=8), t))  # fmt: skip


def step3p7() -> Pair:
    c = hf.Step3p7Config(vision_config={**SMALL, "image_size": 728, "patch_size": 14,
        "mlp_ratio": 1.0, "max_position_embeddings": 64}, text_config={**LLAMA, "head_dim": 8,
        "n_routed_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "share_expert_dim": 8, "sliding_window": 512,
        "mlp_layer_types": ["dense", "sparse"], "layer_types": ["full_attention"] * 2},
        image_token_id=4)  # fmt: skip
    im = hf.Step3p7ImageProcessor()
    t = tokenizer(image_token="<im_patch>", a="<patch_start>", b="<patch_end>",
        c="<patch_newline>", d="<im_start>", e="<im_end>")  # fmt: skip
    return hf.Step3p7ForConditionalGeneration(c), hf.Step3p7Processor(im, t)


def pp_formulanet() -> Pair:
    c = hf.PPFormulaNetConfig(vision_config={"hidden_size": 16, "output_channels": 8,
        "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 4,
        "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 16, "post_conv_in_channels": 8,
        "post_conv_out_channels": 16, "post_conv_mid_channels": 8, "decoder_hidden_size": 16},
        text_config={**IDS, "vocab_size": VOCABULARY, "encoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_layers": 2, "decoder_ffn_dim": 16,
        "decoder_attention_heads": 2, "d_model": 16, "decoder_start_token_id": 2,
        "forced_eos_token_id": None, "max_position_embeddings": 64})  # fmt: skip
    im = hf.PPFormulaNetImageProcessor(size={"height": 64, "width": 64})
    return hf.PPFormulaNetForConditionalGeneration(c), hf.PPFormulaNetProcessor(im, tokenizer())


PROMPTS: dict[str, Any] = {
    **dict.fromkeys(("instructblip", "llava", "internvl", "llava_next", "t5gemma2"), PROMPT),
    "hunyuan_vl": "<is><img_pad><ie> w1 w2", "video_llava": "w1",
}  # fmt: skip
"""Prompts of families that need another one than others."""
SIZES = {"deepseek_ocr2": (900, 1500), "step3p7": (900, 1500)}
"""Sizes of photos that have tiles."""
FAMILIES: dict[str, Callable[[], Pair]] = {
    each.__name__: each
    for each in (
        cohere2_vision, glm4v, glm46v, glm4v_moe, glm_ocr, qwen3_vl_moe, qwen3_5, qwen3_5_moe,
        paddleocr_vl, llama4, janus, aria, vipllava, pixtral, lighton_ocr, molmo2,
        video_llama_3, llava_next_video, gemma4, gemma3n, kimi_k25, hunyuan_vl, lfm3_vl,
        ernie4_5_vl_moe, exaone4_5, perception_lm, fast_vlm, idefics, chameleon, emu3, kosmos2_5,
        qianfan_ocr, deepseek_vl_hybrid, instructblipvideo, gemma4_unified, minicpmv4_6,
        granite_docling, granite4_vision, deepseek_ocr2, phi4_multimodal, qwen2_5_omni_thinker,
        step3p7, pp_formulanet,
    )
}  # fmt: skip
