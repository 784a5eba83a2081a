"""Make cells/models/llama_100m: a Llama of about 105 million parameters without weights, for the CPU.

The engine fills it by ``--load-format dummy``. The byte-level BPE tokenizer is trained on sentences that are
made here, so the folder holds nothing from anywhere else, and making it again gives the same bytes.

    python scripts/make_tiny_model.py [FOLDER]        # needs the package "tokenizers"
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 1024
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "model_max_length": 2048,
    "chat_template": "{% for message in messages %}{{ message['content'] }}\n{% endfor %}",
}
WORDS = """
the server|a scheduler|every worker|this request|one commit|the client|a batch|the cache|our model|a token
measures|answers|delays|repeats|records|compares|waits for|releases|prepares|explains|follows|outlives
the slowest launch|a longer sequence|two neighbours|nothing new|its own history|the second attempt|\
the first answer|a quiet machine|seven measurements|the median|another question|the largest share
before noon|without noise|after a restart|under load|in the same order|every night|at most once|again
"""
PARTS = """
b|br|c|ch|d|dr|f|g|gr|h|l|m|n|p|pl|pr|r|s|sh|st|t|tr|v|w
a|e|i|o|u|ai|ea|oo
n|r|s|t|l|nd|rk|st|ng|ll
"""


def combinations(table: str) -> Iterator[tuple[str, ...]]:
    """One word of each line of a table."""
    return itertools.product(*(line.split("|") for line in table.strip().splitlines()))


def sentences() -> list[str]:
    """All combinations of the words above, and invented words, the early ones more often."""
    lines = [" ".join(words) + "." for words in combinations(WORDS)]
    invented = ["".join(parts) for parts in combinations(PARTS)]
    names = [f"{word} {word}{'er' if place % 3 else 'ing'}" for place, word in enumerate(invented)]
    return [line[0].upper() + line[1:] for line in lines] + [
        name for place, name in enumerate(names) for _ in range(1 + (len(names) - place) // 50)
    ]


def make(folder: Path) -> None:
    """Write config.json, tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False) + "\n"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(f"{folder}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "cells/models/llama_100m"))
