"""Make a tiny model of each family of vLLM-Omni for the CPU: Qwen3-TTS, Qwen3-Omni and Qwen-Image.

Those with sound have no weights: the engine fills them by ``--load-format dummy``. Diffusion has no such
format, so Qwen-Image has random weights. Making a model again gives the same bytes.

    python -m scripts.make_tiny_omni FOLDER KIND      # in an environment of vLLM-Omni; the kinds: MAKERS
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.make_tiny_tts import CODEBOOKS, CODES, HIDDEN, TRANSFORMER, make_speech, train_tokenizer, write

SPECIAL = {
    "user": 872,
    "system": 8948,
    "assistant": 77091,
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
    "<|audio_start|>": 151669,
    "<|audio_end|>": 151670,
    "<tts_pad>": 151671,
    "<tts_text_bos>": 151672,
    "<tts_text_eod>": 151673,
    "<tts_text_bos_single>": 151674,
    "<|audio_pad|>": 151675,
}
"""The numbers of the real model: some of them are constants of the engine."""

VOCABULARY = 152064

ROPE = {"mrope_section": [12, 10, 10], "interleaved": True, "mrope_interleaved": True, "rope_type": "default"}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "rope_scaling": ROPE,
    "max_position_embeddings": 65536,
    "num_hidden_layers": 4,
}
TEXT = TRANSFORMER | EXPERTS | {"model_type": "qwen3_omni_moe_text", "vocab_size": VOCABULARY}
AUDIO = {
    "model_type": "qwen3_omni_moe_audio_encoder",
    "d_model": 64,
    "encoder_layers": 1,
    "num_hidden_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "num_mel_bins": 128,
    "downsample_hidden_size": 32,
    "output_dim": HIDDEN,
}
VISION = {
    "model_type": "qwen3_omni_moe_vision_encoder",
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "deepstack_visual_indexes": [0],
    "apply_vit_abs_pos_embed": True,
    "image_size": 768,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
THINKER = {
    "model_type": "qwen3_omni_moe_thinker",
    "text_config": TEXT,
    "audio_config": AUDIO,
    "vision_config": VISION,
    "audio_token_id": SPECIAL["<|audio_pad|>"],
    "image_token_id": SPECIAL["<|image_pad|>"],
    "video_token_id": SPECIAL["<|video_pad|>"],
    "audio_start_token_id": SPECIAL["<|audio_start|>"],
    "audio_end_token_id": SPECIAL["<|audio_end|>"],
    "vision_start_token_id": SPECIAL["<|vision_start|>"],
    "vision_end_token_id": SPECIAL["<|vision_end|>"],
    "user_token_id": SPECIAL["user"],
    "position_id_per_seconds": 13,
}
TALKER_TEXT = (
    TRANSFORMER
    | EXPERTS
    | {
        "model_type": "qwen3_omni_moe_talker_text",
        "vocab_size": 3072,
        "shared_expert_intermediate_size": 128,
    }
)
CODE_PREDICTOR = TRANSFORMER | {
    "model_type": "qwen3_omni_moe_talker_code_predictor",
    "vocab_size": CODES,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
TALKER = {
    "model_type": "qwen3_omni_moe_talker",
    "text_config": TALKER_TEXT,
    "code_predictor_config": CODE_PREDICTOR,
    "num_code_groups": CODEBOOKS,
    "thinker_hidden_size": HIDDEN,
    # Of the four layers of the thinker.
    "accept_hidden_layer": 2,
    "audio_token_id": SPECIAL["<|audio_pad|>"],
    "image_token_id": SPECIAL["<|image_pad|>"],
    "video_token_id": SPECIAL["<|video_pad|>"],
    "audio_start_token_id": SPECIAL["<|audio_start|>"],
    "vision_start_token_id": SPECIAL["<|vision_start|>"],
    "codec_pad_id": 2148,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "position_id_per_seconds": 13,
    "speaker_id": {"ethan": 2302, "chelsie": 2301},
}
CODE2WAV = {
    "model_type": "qwen3_omni_moe_code2wav",
    "codebook_size": CODES,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "num_quantizers": CODEBOOKS,
    "sliding_window": 72,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "decoder_dim": 256,
}
CONFIG = {
    "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
    "model_type": "qwen3_omni_moe",
    "torch_dtype": "bfloat16",
    "enable_audio_output": True,
    "im_start_token_id": SPECIAL["<|im_start|>"],
    "im_end_token_id": SPECIAL["<|im_end|>"],
    "tts_pad_token_id": SPECIAL["<tts_pad>"],
    "tts_bos_token_id": SPECIAL["<tts_text_bos>"],
    "tts_eos_token_id": SPECIAL["<tts_text_eod>"],
    "system_token_id": SPECIAL["system"],
    "user_token_id": SPECIAL["user"],
    "assistant_token_id": SPECIAL["assistant"],
    "thinker_config": THINKER,
    "talker_config": TALKER,
    "code2wav_config": CODE2WAV,
}
PREPROCESSOR = {
    "processor_class": "Qwen3OmniMoeProcessor",
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 4800000,
    "nb_max_frames": 30000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 16000,
    "image_processor_type": "Qwen2VLImageProcessor",
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "merge_size": 2,
    "patch_size": 16,
    "temporal_patch_size": 2,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": 32768,
    "extra_special_tokens": {
        "image_token": "<|image_pad|>",
        "audio_token": "<|audio_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "audio_bos_token": "<|audio_start|>",
        "audio_eos_token": "<|audio_end|>",
    },
    "chat_template": "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}

ENCODER = {
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "rope_scaling": {"mrope_section": [4, 6, 6], "rope_type": "default"},
    },
    # The pipeline drops it.
    "vision_config": {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
    },
}
DENOISER = {"num_layers": 4, "num_attention_heads": 2, "joint_attention_dim": 64}
SCHEDULER = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}


def make_tokenizer(file: Path) -> None:
    """Write tokenizer.json: a thousand learnt tokens, and words for the other numbers of the real model."""
    document = json.loads(train_tokenizer().to_str())
    vocabulary = document["model"]["vocab"]
    reserved = set(SPECIAL.values())
    # A learnt token whose number is reserved gets another; no text becomes one of the words.
    free = (number for number in range(VOCABULARY) if number not in reserved)
    learnt = {
        token: next(free) for token in sorted(vocabulary, key=vocabulary.__getitem__) if token not in SPECIAL
    }
    words = {f"Ġword{number}": number for number in free}
    document["model"]["vocab"] = learnt | words | SPECIAL
    document["added_tokens"] = [
        {"id": number, "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, number in SPECIAL.items()
    ]
    file.write_text(json.dumps(document) + "\n")


def make_omni(folder: Path) -> None:
    """Write the configurations of thinker, talker and code2wav, and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(folder / "tokenizer.json")
    write(folder / "config.json", CONFIG)
    write(folder / "preprocessor_config.json", PREPROCESSOR)
    write(folder / "tokenizer_config.json", TOKENIZER)


def make_image(folder: Path) -> None:
    """Write text encoder, transformer, VAE and scheduler with random weights."""
    # Here: the other models are made without torch.
    import torch
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    parts = {
        "text_encoder": Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**ENCODER)),
        "transformer": QwenImageTransformer2DModel(**DENOISER),
        "vae": AutoencoderKLQwenImage(base_dim=8, num_res_blocks=1),
        "scheduler": FlowMatchEulerDiscreteScheduler(**SCHEDULER),
    }
    for name, part in parts.items():
        (part.to(torch.bfloat16) if name != "scheduler" else part).save_pretrained(folder / name)
    index = {name: [type(part).__module__.split(".")[0], type(part).__name__] for name, part in parts.items()}
    index |= {"tokenizer": ["transformers", "Qwen2Tokenizer"]}
    write(folder / "model_index.json", {"_class_name": "QwenImagePipeline"} | index)
    write(folder / "tokenizer" / "tokenizer_config.json", TOKENIZER | {"tokenizer_class": "Qwen2Tokenizer"})
    (folder / "tokenizer" / "tokenizer.json").write_text(train_tokenizer(tuple(SPECIAL)).to_str() + "\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    "qwen3_tts_custom_voice": partial(make_speech, variant="custom_voice"),
    "qwen3_tts_base": partial(make_speech, variant="base"),
    "qwen3_omni": make_omni,
    "qwen_image": make_image,
}

if __name__ == "__main__":
    MAKERS[sys.argv[2]](Path(sys.argv[1]))
