"""The configuration of a Qwen3-TTS of a few million parameters, for scripts.make_tiny_omni."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from scripts.make_tiny_model import sentences

VOCABULARY = 1024
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "assistant", "user", "\n"),
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_bos_single>"),
    "<tts_text_eod>",
)
"""Single tokens: the engine cuts three tokens before the text and five behind it."""

HIDDEN, HEADS, KEY_VALUE_HEADS = 256, 4, 2
HEAD = 64
"""What vLLM's attention on the CPU has a kernel for."""

CODEBOOKS, CODES = 16, 2048
LANGUAGES = ("chinese", "english", "german", "italian", "portuguese", "spanish", "japanese", "korean")
SPEAKERS = {"vivian": 3065, "ryan": 3061}
RATE, SAMPLES_PER_FRAME = 24000, 1920

TRANSFORMER = {
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "attention_bias": False,
    "num_code_groups": CODEBOOKS,
}
CODE_PREDICTOR = TRANSFORMER | {
    "model_type": "qwen3_tts_talker_code_predictor",
    "vocab_size": CODES,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}
TALKER = TRANSFORMER | {
    "model_type": "qwen3_tts_talker",
    "vocab_size": 3072,
    "num_hidden_layers": 4,
    "max_position_embeddings": 32768,
    "rope_scaling": {"interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"},
    "position_id_per_seconds": 13,
    "text_hidden_size": HIDDEN,
    "text_vocab_size": VOCABULARY,
    "codec_bos_id": 2149,
    "codec_eos_token_id": 2150,
    "codec_pad_id": 2148,
    "codec_think_id": 2154,
    "codec_nothink_id": 2155,
    "codec_think_bos_id": 2156,
    "codec_think_eos_id": 2157,
    "codec_language_id": {name: 2050 + place for place, name in enumerate(LANGUAGES)},
    "spk_id": SPEAKERS,
    "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
    "code_predictor_config": CODE_PREDICTOR,
}
SPEAKER_ENCODER = {
    "enc_dim": HIDDEN,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_se_channels": 16,
    "sample_rate": RATE,
}
GENERATION = {
    "do_sample": True,
    "temperature": 0.9,
    "top_p": 1.0,
    "top_k": 50,
    "max_new_tokens": 2048,
    "repetition_penalty": 1.05,
    "subtalker_dosample": True,
    "subtalker_temperature": 0.9,
    "subtalker_top_p": 1.0,
    "subtalker_top_k": 50,
}
ENCODER = {
    "hidden_size": 64,
    "num_filters": 4,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "codebook_dim": 32,
    "vector_quantization_hidden_dimension": 32,
    "num_quantizers": 32,
    "num_semantic_quantizers": 1,
    "codebook_size": CODES,
    "sliding_window": 250,
    "sampling_rate": RATE,
    "upsample_groups": 64,
}
DECODER = {
    "codebook_size": CODES,
    "codebook_dim": 64,
    "hidden_size": 64,
    "latent_dim": 64,
    "max_position_embeddings": 8000,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 72,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_quantizers": CODEBOOKS,
    "num_semantic_quantizers": 1,
    "semantic_codebook_size": 4096,
    "vector_quantization_hidden_dimension": 64,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    # Decoding takes a share of the time that speech takes, as with a real model.
    "decoder_dim": 512,
}
SPEECH_TOKENIZER = {
    "architectures": ["Qwen3TTSTokenizerV2Model"],
    "model_type": "qwen3_tts_tokenizer_12hz",
    "input_sample_rate": RATE,
    "output_sample_rate": RATE,
    "decode_upsample_rate": SAMPLES_PER_FRAME,
    "encode_downsample_rate": SAMPLES_PER_FRAME,
    "encoder_valid_num_quantizers": CODEBOOKS,
    "encoder_config": ENCODER,
    "decoder_config": DECODER,
}
PREPROCESSOR = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "feature_size": 1,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": RATE,
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "model_max_length": 4096,
    "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
}


def write(path: Path, document: Mapping[str, object]) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


def train_tokenizer(special: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE of a thousand tokens; ``special``: the first ones."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    return tokenizer


def make_speech(folder: Path, variant: str) -> None:
    """Write configurations and tokenizer; ``variant``: ``custom_voice`` or ``base``, which clones voices."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(SPECIAL)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL}
    config = {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "torch_dtype": "bfloat16",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6",
        "tts_model_type": variant,
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        "assistant_token_id": ids["assistant"],
        "speaker_encoder_config": SPEAKER_ENCODER,
        "talker_config": TALKER,
    }
    write(folder / "config.json", config)
    write(folder / "generation_config.json", GENERATION)
    write(folder / "tokenizer_config.json", TOKENIZER)
    write(folder / "speech_tokenizer" / "config.json", SPEECH_TOKENIZER)
    write(folder / "speech_tokenizer" / "preprocessor_config.json", PREPROCESSOR)
