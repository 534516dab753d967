"""Tiny vision-language models of transformers with random weights, and their processors."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.smolvlm import processing_smolvlm

hf: Any = transformers  # its signatures lack arguments that it passes on
WORDS = tuple(f"w{number}" for number in range(60))
VOCABULARY = 200
PROMPT = "w1 w2"
TILES: dict[str, Any] = {"patch_size": 8, "image_size": 32}
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
IDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA: dict[str, Any] = {
    **SMALL, **IDS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY,
}  # fmt: skip


def tokenizer(**named: str) -> Any:
    """Return a tokenizer that splits at white space; named tokens are special."""
    special = ("<pad>", "<s>", "</s>", "<unk>", *named.values())
    vocabulary = {word: number for number, word in enumerate((*dict.fromkeys(special), *WORDS))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>", extra_special_tokens=named,
    )  # fmt: skip


IMAGE: dict[str, str] = {"image_token": "<image>"}  # id 4


def _square(kind: Any, **options: Any) -> Any:
    return kind(size={"height": 32, "width": 32}, **options)


def _vision_encoder_decoder(encoder: Any, decoder: Any, processor: Any) -> tuple[Any, Any]:
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    model = hf.VisionEncoderDecoderModel(config)
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    return model, processor


def ved() -> tuple[Any, Any]:
    encoder = hf.ViTConfig(**{**SMALL, "image_size": (24, 40), "patch_size": 8})
    decoder = hf.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64,
                            add_cross_attention=True, bos_token_id=1, eos_token_id=2)  # fmt: skip
    images = hf.ViTImageProcessor(size={"height": 24, "width": 40})
    return _vision_encoder_decoder(encoder, decoder, (images, tokenizer()))


def trocr() -> tuple[Any, Any]:
    encoder = hf.DeiTConfig(**SMALL, **TILES)
    decoder = hf.TrOCRConfig(vocab_size=VOCABULARY, d_model=16, decoder_layers=2,
                             decoder_attention_heads=2, decoder_ffn_dim=16,
                             cross_attention_hidden_size=16, **IDS)  # fmt: skip
    images = _square(hf.DeiTImageProcessor, do_center_crop=False)
    return _vision_encoder_decoder(encoder, decoder, hf.TrOCRProcessor(images, tokenizer()))


def donut() -> tuple[Any, Any]:
    encoder = hf.DonutSwinConfig(image_size=[64, 48], patch_size=4, embed_dim=8, depths=[1, 1],
                                 num_heads=[2, 2], window_size=4)  # fmt: skip
    decoder = hf.MBartConfig(vocab_size=VOCABULARY, d_model=16, decoder_layers=2,
                             decoder_attention_heads=2, decoder_ffn_dim=16, is_decoder=True,
                             is_encoder_decoder=False, add_cross_attention=True, **IDS)  # fmt: skip
    images = hf.DonutImageProcessor(size={"height": 64, "width": 48})
    return _vision_encoder_decoder(encoder, decoder, hf.DonutProcessor(images, tokenizer()))


def blip() -> tuple[Any, Any]:
    text = {**SMALL, **IDS, "vocab_size": VOCABULARY, "encoder_hidden_size": 16, "sep_token_id": 2}
    config = hf.BlipConfig(text_config=text, vision_config={**SMALL, **TILES})
    processor = hf.BlipProcessor(_square(hf.BlipImageProcessor), tokenizer())
    return hf.BlipForConditionalGeneration(config), processor


def _qformer_config() -> dict[str, Any]:
    return {**SMALL, "vocab_size": VOCABULARY, "encoder_hidden_size": 16,
            "cross_attention_frequency": 1}  # fmt: skip


def _opt() -> dict[str, Any]:
    return {**IDS, "model_type": "opt", "vocab_size": VOCABULARY, "hidden_size": 16, "ffn_dim": 16,
            "num_hidden_layers": 2, "num_attention_heads": 2,
            "word_embed_proj_dim": 16}  # fmt: skip


def blip2() -> tuple[Any, Any]:
    config = hf.Blip2Config(text_config=_opt(), qformer_config=_qformer_config(),
                            vision_config={**SMALL, **TILES}, num_query_tokens=5,
                            image_token_index=64, image_text_hidden_size=16)  # fmt: skip
    processor = hf.Blip2Processor(_square(hf.BlipImageProcessor), tokenizer(),
                                  num_query_tokens=5)  # fmt: skip
    return hf.Blip2ForConditionalGeneration(config), processor


def instructblip() -> tuple[Any, Any]:
    config = hf.InstructBlipConfig(text_config=_opt(), qformer_config=_qformer_config(),
                                   vision_config={**SMALL, **TILES}, num_query_tokens=5,
                                   image_token_index=64)  # fmt: skip
    processor = hf.InstructBlipProcessor(_square(hf.BlipImageProcessor), tokenizer(),
                                         tokenizer(), num_query_tokens=5)  # fmt: skip
    return hf.InstructBlipForConditionalGeneration(config), processor


def git() -> tuple[Any, Any]:
    config = hf.GitConfig(vision_config={**SMALL, **TILES}, vocab_size=VOCABULARY, **SMALL, **IDS)
    return hf.GitForCausalLM(config), hf.GitProcessor(_square(
        hf.CLIPImageProcessor, do_center_crop=False), tokenizer())  # fmt: skip


def llava() -> tuple[Any, Any]:
    config = hf.LlavaConfig(
        vision_config={**SMALL, **TILES, "model_type": "clip_vision_model",
                       "num_hidden_layers": 3, "projection_dim": 16},
        text_config={**LLAMA, "model_type": "llama"}, image_token_index=4, image_seq_length=16,
    )  # fmt: skip
    images = hf.CLIPImageProcessor(size={"shortest_edge": 32},
                                   crop_size={"height": 32, "width": 32})  # fmt: skip
    processor = hf.LlavaProcessor(
        images, tokenizer(**IMAGE), patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip
    return hf.LlavaForConditionalGeneration(config), processor


_PINPOINTS = [[32, 64], [64, 32], [64, 64], [96, 32], [32, 96]]


def llava_next() -> tuple[Any, Any]:
    config = hf.LlavaNextConfig(
        vision_config={**SMALL, **TILES, "model_type": "clip_vision_model",
                       "num_hidden_layers": 3, "projection_dim": 16},
        text_config={**LLAMA, "model_type": "llama"}, image_token_index=4, image_seq_length=16,
        image_grid_pinpoints=_PINPOINTS,
    )  # fmt: skip
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32},
        image_grid_pinpoints=_PINPOINTS,
    )  # fmt: skip
    processor = hf.LlavaNextProcessor(
        images, tokenizer(**IMAGE), patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip
    return hf.LlavaNextForConditionalGeneration(config), processor


def llava_onevision() -> tuple[Any, Any]:
    config = hf.LlavaOnevisionConfig(
        vision_config={**SMALL, **TILES, "model_type": "siglip_vision_model",
                       "vision_use_head": False},
        text_config={**LLAMA, "model_type": "qwen2"}, image_token_index=4, video_token_index=5,
        image_grid_pinpoints=_PINPOINTS, vision_feature_layer=-1,
    )  # fmt: skip
    images = hf.LlavaOnevisionImageProcessor(size={"height": 32, "width": 32},
                                             image_grid_pinpoints=_PINPOINTS)  # fmt: skip
    processor = hf.LlavaOnevisionProcessor(
        images, tokenizer(image_token="<image>", video_token="<video>"),
        _square(hf.LlavaOnevisionVideoProcessor), num_image_tokens=16,
        vision_feature_select_strategy="full",
    )  # fmt: skip
    return hf.LlavaOnevisionForConditionalGeneration(config), processor


def _qwen_tokens() -> Any:
    return tokenizer(image_token="<|image_pad|>", video_token="<|video_pad|>",
                     vision_start="<|vision_start|>", vision_end="<|vision_end|>")  # fmt: skip


def _qwen(model: Any, config: Any, processor: Any, vision: dict[str, Any], patch: int,
          text: dict[str, Any]) -> tuple[Any, Any]:  # fmt: skip
    built = config(
        text_config={**LLAMA, **text}, vision_config=vision, image_token_id=4, video_token_id=5,
        vision_start_token_id=6, vision_end_token_id=7,
    )  # fmt: skip
    images = hf.Qwen2VLImageProcessor(
        patch_size=patch, merge_size=2,
        size={"shortest_edge": 16 * (2 * patch) ** 2, "longest_edge": 30 * (2 * patch) ** 2},
    )  # fmt: skip
    template = (
        "{% for message in messages %}{% for part in message.content %}{% if part.type == 'text' "
        "%} {{ part.text }}{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>"
        "{% endif %}{% endfor %}{% endfor %}"
    )
    kind = getattr(hf, processor.__name__.replace("Processor", "VideoProcessor"), None)
    videos = (kind or hf.Qwen2VLVideoProcessor)(
        patch_size=patch, merge_size=2,
        size={"shortest_edge": 16 * (2 * patch) ** 2, "longest_edge": 120 * (2 * patch) ** 2},
    )  # fmt: skip
    return model(built), processor(images, _qwen_tokens(), videos,
                                   chat_template=template)  # fmt: skip


def _rope() -> dict[str, Any]:
    return {"rope_type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000.0}


def qwen2_vl() -> tuple[Any, Any]:
    vision = {"depth": 2, "embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 1,
              "patch_size": 4}  # fmt: skip
    return _qwen(hf.Qwen2VLForConditionalGeneration, hf.Qwen2VLConfig, hf.Qwen2VLProcessor, vision,
                 4, {"rope_parameters": _rope()})  # fmt: skip


def qwen2_5_vl() -> tuple[Any, Any]:
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
              "patch_size": 4, "out_hidden_size": 16, "window_size": 16,
              "fullatt_block_indexes": [1]}  # fmt: skip
    return _qwen(hf.Qwen2_5_VLForConditionalGeneration, hf.Qwen2_5_VLConfig,
                 hf.Qwen2_5_VLProcessor, vision, 4, {"rope_parameters": _rope()})  # fmt: skip


def qwen3_vl() -> tuple[Any, Any]:
    vision = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
              "patch_size": 4, "out_hidden_size": 16, "num_position_embeddings": 16,
              "deepstack_visual_indexes": [0]}  # fmt: skip
    return _qwen(
        hf.Qwen3VLForConditionalGeneration, hf.Qwen3VLConfig, hf.Qwen3VLProcessor, vision, 4,
        {"head_dim": 8, "rope_parameters": {**_rope(), "mrope_section": [2, 1, 1]}},
    )  # fmt: skip


def paligemma() -> tuple[Any, Any]:
    config = hf.PaliGemmaConfig(
        vision_config={**SMALL, **TILES, "model_type": "siglip_vision_model",
                       "vision_use_head": False},
        text_config={**LLAMA, "model_type": "gemma", "vocab_size": 1600, "head_dim": 4},
        image_token_index=4, projection_dim=16,
    )  # fmt: skip
    images = _square(hf.SiglipImageProcessor)
    images.image_seq_length = 16
    return hf.PaliGemmaForConditionalGeneration(config), hf.PaliGemmaProcessor(
        images, tokenizer(**IMAGE))  # fmt: skip


def gemma3() -> tuple[Any, Any]:
    config = hf.Gemma3Config(
        vision_config={**SMALL, **TILES, "vision_use_head": False},
        text_config={**LLAMA, "head_dim": 8, "sliding_window": 12, "query_pre_attn_scalar": 8,
                     "layer_types": ["sliding_attention", "full_attention"]},
        mm_tokens_per_image=4, boi_token_index=5, eoi_token_index=6, image_token_index=4,
    )  # fmt: skip
    tokens = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    processor = hf.Gemma3Processor(_square(hf.Gemma3ImageProcessor), tokens, image_seq_length=4)
    model = hf.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight)  # zeros
    return model, processor


def _idefics_tokens() -> Any:
    cells = {f"cell{y}{x}": f"<row_{y}_col_{x}>" for y in range(1, 7) for x in range(1, 7)}
    return tokenizer(image_token="<image>", fake_image_token="<fake_token_around_image>",
                     image_boundary_token="<fake_token_around_image>",
                     end_of_utterance_token="<end_of_utterance>", global_image_token="<global-img>",
                     video_token="<video>", **cells)  # fmt: skip


def idefics2() -> tuple[Any, Any]:
    config = hf.Idefics2Config(
        vision_config={**SMALL, **TILES}, text_config={**LLAMA, "model_type": "mistral"},
        perceiver_config={"hidden_size": 16, "resampler_n_latents": 3, "resampler_depth": 1,
                          "resampler_n_heads": 2, "num_key_value_heads": 1,
                          "resampler_head_dim": 8},
        image_token_id=4,
    )  # fmt: skip
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": 24, "longest_edge": 32},
                                       do_image_splitting=False)  # fmt: skip
    return hf.Idefics2ForConditionalGeneration(config), hf.Idefics2Processor(
        images, _idefics_tokens(), image_seq_len=3)  # fmt: skip


def _idefics3(model: Any, config: Any) -> Any:
    return model(config(
        vision_config={**SMALL, **TILES}, text_config={**LLAMA, "model_type": "llama"},
        image_token_id=4, scale_factor=2,
    ))  # fmt: skip


def idefics3() -> tuple[Any, Any]:
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 96},
                                       max_image_size={"longest_edge": 32})  # fmt: skip
    processor = hf.Idefics3Processor(images, _idefics_tokens(), image_seq_len=4)
    return _idefics3(hf.Idefics3ForConditionalGeneration, hf.Idefics3Config), processor


def smolvlm() -> tuple[Any, Any]:
    images = hf.SmolVLMImageProcessor(size={"longest_edge": 96},
                                      max_image_size={"longest_edge": 32})  # fmt: skip
    library: Any = processing_smolvlm
    library.num2words = str  # a package that only its videos need
    videos = hf.SmolVLMVideoProcessor(size={"longest_edge": 32},
                                      max_image_size={"longest_edge": 32})  # fmt: skip
    processor = hf.SmolVLMProcessor(images, _idefics_tokens(), videos, image_seq_len=4)
    return _idefics3(hf.SmolVLMForConditionalGeneration, hf.SmolVLMConfig), processor


def internvl() -> tuple[Any, Any]:
    config = hf.InternVLConfig(
        vision_config={**SMALL, "image_size": [32, 32], "patch_size": [8, 8]},
        text_config={**LLAMA, "model_type": "qwen2"}, image_token_id=4, image_seq_length=4,
    )  # fmt: skip
    images = _square(hf.GotOcr2ImageProcessor, crop_to_patches=True, max_patches=6)
    tokens = tokenizer(context_image_token="<IMG_CONTEXT>", start_image_token="<img>",
                       end_image_token="</img>", video_token="<video>")  # fmt: skip
    processor = hf.InternVLProcessor(images, tokens, _square(hf.InternVLVideoProcessor),
                                     image_seq_length=4)  # fmt: skip
    return hf.InternVLForConditionalGeneration(config), processor


def florence2() -> tuple[Any, Any]:
    config = hf.Florence2Config(
        vision_config={"depths": [1, 1], "embed_dim": [8, 16], "num_heads": [2, 2],
                       "num_groups": [2, 2], "window_size": 4, "patch_size": [7, 3],
                       "patch_stride": [4, 2], "patch_padding": [3, 1],
                       "patch_prenorm": [False, True], "projection_dim": 16,
                       "max_temporal_embeddings": 4, "max_position_embeddings": 16},
        text_config={"model_type": "bart", "vocab_size": VOCABULARY, "d_model": 16,
                     "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
                     "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
                     "decoder_start_token_id": 2, **IDS},
        image_token_id=4,
    )  # fmt: skip
    images = _square(hf.CLIPImageProcessor, do_center_crop=False)
    images.image_seq_length = 17
    return hf.Florence2ForConditionalGeneration(config), hf.Florence2Processor(
        images, tokenizer(**IMAGE))  # fmt: skip


def kosmos2() -> tuple[Any, Any]:
    config = hf.Kosmos2Config(
        vision_config={**SMALL, **TILES},
        text_config={**IDS, "vocab_size": 1400, "embed_dim": 16, "layers": 2, "ffn_dim": 16,
                     "attention_heads": 2}, latent_query_num=64,
    )  # fmt: skip
    images = _square(hf.CLIPImageProcessor, do_center_crop=False)
    return hf.Kosmos2ForConditionalGeneration(config), hf.Kosmos2Processor(
        images, tokenizer(), num_patch_index_tokens=16)  # fmt: skip


def pix2struct() -> tuple[Any, Any]:
    config = hf.Pix2StructConfig(
        vision_config={**SMALL, "patch_embed_hidden_size": 192, "d_ff": 16, "d_kv": 8,
                       "patch_size": 8, "seq_len": 32},
        text_config={**SMALL, **IDS, "vocab_size": VOCABULARY, "d_ff": 16, "d_kv": 8,
                     "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
        decoder_start_token_id=0,
    )  # fmt: skip
    images = hf.Pix2StructImageProcessor(max_patches=32, patch_size={"height": 8, "width": 8})
    model = hf.Pix2StructForConditionalGeneration(config)
    model.generation_config.update(decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)
    return model, hf.Pix2StructProcessor(images, tokenizer())


def mllama() -> tuple[Any, Any]:
    config = hf.MllamaConfig(
        vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2,
                       "num_global_layers": 1, "attention_heads": 2, "num_attention_heads": 2,
                       "image_size": 32, "patch_size": 8, "max_num_tiles": 4,
                       "vision_output_dim": 32, "intermediate_layers_indices": [0],
                       "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [3, 1],
                                                   [1, 4], [4, 1]]},
        text_config={**LLAMA, "num_hidden_layers": 3, "cross_attention_layers": [1]},
        image_token_index=4,
    )  # fmt: skip
    images = _square(hf.MllamaImageProcessor, max_image_tiles=4)
    tokens = tokenizer(image_token="<|image|>", python_token="<|python_tag|>")
    return hf.MllamaForConditionalGeneration(config), hf.MllamaProcessor(images, tokens)


def deepseek_vl() -> tuple[Any, Any]:
    config = hf.DeepseekVLConfig(
        vision_config={**SMALL, **TILES, "model_type": "siglip_vision_model",
                       "vision_use_head": False},
        text_config={**LLAMA, "model_type": "llama"}, image_token_id=4,
    )  # fmt: skip
    images = hf.DeepseekVLImageProcessor(size={"height": 32, "width": 32}, min_size=8)
    return hf.DeepseekVLForConditionalGeneration(config), hf.DeepseekVLProcessor(
        images, tokenizer(**IMAGE), num_image_tokens=16)  # fmt: skip


def ovis2() -> tuple[Any, Any]:
    config = hf.Ovis2Config(
        vision_config={**SMALL, **TILES, "vocab_size": 40, "num_visual_indicator_tokens": 5,
                       "hidden_stride": 2},
        text_config={**LLAMA, "model_type": "qwen2"}, image_token_id=5,
        visual_indicator_token_ids=[6, 7, 8, 9, 10], vocab_size=VOCABULARY, hidden_size=16,
    )  # fmt: skip
    images = _square(hf.Ovis2ImageProcessor, max_patches=4)
    tokens = tokenizer(image_token="<image>", i5="<IMG_ATOM>", i6="<img>", i7="<pre>",
                       i8="</img>", i9="<row>", i10="<col>", i11="<IMG_GRID>",
                       i12="<IMG_COL>", i13="<IMG_ROW>", i14="<IMG_END>")  # fmt: skip
    return hf.Ovis2ForConditionalGeneration(config), hf.Ovis2Processor(
        images, tokens, image_seq_length=4)  # fmt: skip


def mistral3() -> tuple[Any, Any]:
    config = hf.Mistral3Config(
        vision_config={**SMALL, "model_type": "pixtral", "image_size": 64, "patch_size": 8,
                       "head_dim": 8},
        text_config={**LLAMA, "model_type": "mistral", "head_dim": 4}, image_token_index=4,
        spatial_merge_size=2,
    )  # fmt: skip
    images = hf.PixtralImageProcessor(size={"longest_edge": 64}, patch_size=16)
    tokens = tokenizer(image_token="[IMG]", b="[IMG_BREAK]", e="[IMG_END]")
    processor = hf.PixtralProcessor(images, tokens, patch_size=8, spatial_merge_size=2)
    return hf.Mistral3ForConditionalGeneration(config), processor


def aya_vision() -> tuple[Any, Any]:
    config = hf.AyaVisionConfig(
        vision_config={**SMALL, **TILES, "model_type": "siglip_vision_model",
                       "vision_use_head": False},
        text_config={**LLAMA, "model_type": "cohere2"}, image_token_index=6, downsample_factor=2,
        alignment_intermediate_size=16,
    )  # fmt: skip
    images = _square(hf.GotOcr2ImageProcessor, crop_to_patches=True, max_patches=6)
    tokens = tokenizer(
        image_token="<image>", a="<|START_OF_IMG|>", b="<|IMG_PATCH|>", c="<|END_OF_IMG|>",
        d="<|IMG_LINE_BREAK|>", e="TILE", f="TILE_GLOBAL",
    )  # fmt: skip
    processor = hf.AyaVisionProcessor(images, tokens, patch_size=8, img_size=32,
                                      downsample_factor=2)  # fmt: skip
    return hf.AyaVisionForConditionalGeneration(config), processor


def got_ocr2() -> tuple[Any, Any]:
    config = hf.GotOcr2Config(
        vision_config={**SMALL, "image_size": 96, "patch_size": 4, "output_channels": 16,
                       "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 16,
                       "initializer_range": 0.02},
        text_config={**LLAMA, "model_type": "qwen2"}, image_token_index=4,
    )  # fmt: skip
    images = hf.GotOcr2ImageProcessor(size={"height": 96, "width": 96})
    tokens = tokenizer(a="<imgpad>", b="<img>", c="</img>", d="<|im_start|>", e="<|im_end|>")
    processor = hf.GotOcr2Processor(images, tokens)
    processor.num_image_tokens = 36
    return hf.GotOcr2ForConditionalGeneration(config), processor


def lfm2_vl() -> tuple[Any, Any]:
    config = hf.Lfm2VlConfig(
        vision_config={**SMALL, "model_type": "siglip2_vision_model", "patch_size": 4,
                       "num_patches": 16, "vision_use_head": False},
        text_config={**LLAMA, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
        image_token_id=4, downsample_factor=2,
    )  # fmt: skip
    images = hf.Lfm2VlImageProcessor(
        tile_size=32, encoder_patch_size=4, min_image_tokens=4, max_image_tokens=16, max_tiles=4,
        max_num_patches=64, use_thumbnail=True, downsample_factor=2,
    )  # fmt: skip
    tokens = tokenizer(image_token="<image>", image_start_token="<|image_start|>",
                       image_end_token="<|image_end|>",
                       image_thumbnail_token="<|img_thumbnail|>")  # fmt: skip
    return hf.Lfm2VlForConditionalGeneration(config), hf.Lfm2VlProcessor(images, tokens)


def video_llava() -> tuple[Any, Any]:
    vision = {**SMALL, **TILES, "model_type": "clip_vision_model", "num_hidden_layers": 3,
              "projection_dim": 16}  # fmt: skip
    config = hf.VideoLlavaConfig(
        vision_config=vision, text_config={**LLAMA, "model_type": "llama"}, image_token_index=4,
        video_token_index=5, image_seq_length=16,
    )  # fmt: skip
    images = hf.VideoLlavaImageProcessor(size={"shortest_edge": 32},
                                         crop_size={"height": 32, "width": 32})  # fmt: skip
    tokens = tokenizer(image_token="<image>", video_token="<video>")
    videos = hf.VideoLlavaVideoProcessor(size={"shortest_edge": 32},
                                         crop_size={"height": 32, "width": 32})  # fmt: skip
    processor = hf.VideoLlavaProcessor(images, videos, tokens, patch_size=8)
    return hf.VideoLlavaForConditionalGeneration(config), processor


def t5gemma2() -> tuple[Any, Any]:
    """Its decoder reads words and image tokens in one attention, the words first."""
    text = {**LLAMA, "head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
    vision = {**SMALL, **TILES, "vision_use_head": False, "model_type": "siglip_vision_model"}
    config = hf.T5Gemma2Config(
        encoder={"text_config": text, "vision_config": vision, "mm_tokens_per_image": 4,
                 "boi_token_index": 5, "eoi_token_index": 6, "image_token_index": 4,
                 "vocab_size": VOCABULARY},
        decoder=text, image_token_index=4, eoi_token_index=6, vocab_size=VOCABULARY,
    )  # fmt: skip
    tokens = tokenizer(image_token="<image>", boi_token="<boi>", eoi_token="<eoi>")
    processor = hf.Gemma3Processor(_square(hf.Gemma3ImageProcessor), tokens, image_seq_length=4)
    model = hf.T5Gemma2ForConditionalGeneration(config)
    for name, weight in model.named_parameters():
        if "mm_input_projection_weight" in name:
            torch.nn.init.normal_(weight)  # zeros
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    return model, processor


def nougat() -> tuple[Any, Any]:
    """Donut whose image processor crops the white margins of a page."""
    model, processor = donut()
    images = hf.NougatImageProcessor(size={"height": 64, "width": 48})
    return model, hf.NougatProcessor(images, processor.tokenizer)


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    each.__name__: each
    for each in (
        ved, trocr, donut, blip, blip2, instructblip, git, llava, llava_next, llava_onevision,
        qwen2_vl, qwen2_5_vl, qwen3_vl, paligemma, gemma3, idefics2, idefics3, smolvlm, internvl,
        florence2, kosmos2, pix2struct, mllama, deepseek_vl, ovis2, mistral3, aya_vision, got_ocr2,
        lfm2_vl, video_llava, t5gemma2,
    )
}  # fmt: skip


def build(name: str) -> tuple[Any, Any]:
    """Return a tiny model in evaluation mode, and its processor."""
    torch.manual_seed(5)
    model, processor = {**FAMILIES, "nougat": nougat}[name]()
    return model.eval(), processor
