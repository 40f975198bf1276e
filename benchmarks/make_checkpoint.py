"""Write a random Hugging Face checkpoint of a named shape.

Speed and memory depend on the shape of a model, not on its training, so benchmarks need no
download. Weights are drawn and written in blocks, so memory does not grow with the model. Nothing
here depends on Ortolan: any program that reads such checkpoints can read these.

    python benchmarks/make_checkpoint.py SHAPE OUT [--layers N] [--seed S]

The same arguments produce the same weights everywhere; a deeper model begins with the layers of a
shallower one. The tokenizer depends on the Python version it is trained with.
"""

import argparse
import json
import math
import sys
import sysconfig
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# Values that all Llama shapes share. The ids belong to the tokenizer below.
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "mlp_bias": False,
    "model_type": "llama",
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}

SHAPES: Mapping[str, Mapping[str, Any]] = {
    # 6 million parameters, for experiments.
    "tiny": {
        "head_dim": 32,
        "hidden_size": 256,
        "intermediate_size": 688,
        "max_position_embeddings": 2048,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "num_key_value_heads": 4,
        "vocab_size": 8192,
    },
    # SmolLM2-135M.
    "135m": {
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rope_theta": 100000.0,
        "vocab_size": 49152,
    },
    # Llama-3.2-1B.
    "1b": {
        "head_dim": 64,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "vocab_size": 128256,
    },
    # Llama-3.1-8B.
    "8b": {
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
}

STANDARD_DEVIATION = 0.02
BLOCK = 1 << 22  # weights drawn at a time: 16 MiB of float32
MAX_TRAINED_VOCAB = 8000  # more merges take minutes and change nothing here
SPECIAL_TOKENS = ("<s>", "</s>")


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a Llama checkpoint.

    Source: the state dict of transformers' LlamaForCausalLM. Matrices are (out, in).
    """
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer in range(config["num_hidden_layers"]):
        block: dict[str, tuple[int, ...]] = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key, hidden),
            "self_attn.v_proj": (key, hidden),
            "self_attn.o_proj": (hidden, query),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": size for name, size in block.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of `values` rounded to bfloat16, ties to even; NaN and infinity are not handled."""
    bits = values.view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + half) >> np.uint32(16)).astype(np.uint16)


def blocks(name: str, shape: tuple[int, ...], seed: int) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield a flat tensor in blocks, as the bits of bfloat16.

    Its values depend only on its name and the seed, not on other tensors.
    """
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    size = math.prod(shape)
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        if len(shape) == 1:  # a norm
            yield bfloat16(np.ones(count, np.float32))
        else:
            drawn = random.standard_normal(count, np.float32)
            yield bfloat16(drawn * np.float32(STANDARD_DEVIATION))


def write_weights(file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], seed: int) -> None:
    """Write a safetensors file: length of the header, header, tensors in the same order.

    Source: https://github.com/huggingface/safetensors#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name, shape in shapes.items():
        for block in blocks(name, shape, seed):
            file.write(block.astype("<u2").data)


def train_tokenizer(vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer on the source of the standard library."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train([str(path) for path in sources], trainer)
    return tokenizer


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON as Hugging Face does: sorted keys, two spaces."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def make_checkpoint(shape: str, out: Path, *, layers: int | None = None, seed: int = 0) -> None:
    """Write a checkpoint; config.json comes last and marks it complete.

    Args:
        shape: a key of `SHAPES`.
        out: folder, created if needed, that contains no checkpoint.
        layers: number of layers; the shape's own by default.
        seed: seed of the weights.

    Raises:
        FileExistsError: `out` contains a checkpoint.
        ValueError: `layers` is less than 1.
    """
    if layers is not None and layers < 1:
        raise ValueError(f"layers must be at least 1 (got {layers}).")
    if (out / "config.json").exists():
        raise FileExistsError(
            f"{out}: contains a checkpoint already. Remove the folder or name another."
        )
    out.mkdir(parents=True, exist_ok=True)
    config = {**LLAMA, **SHAPES[shape]}
    if layers is not None:
        config["num_hidden_layers"] = layers
    with (out / "model.safetensors").open("wb") as file:
        write_weights(file, tensor_shapes(config), seed)
    tokenizer = train_tokenizer(min(MAX_TRAINED_VOCAB, config["vocab_size"]))
    tokenizer.save(str(out / "tokenizer.json"))
    bos, eos = SPECIAL_TOKENS
    write_json(
        out / "tokenizer_config.json",
        {"bos_token": bos, "eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast"},
    )
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    write_json(out / "generation_config.json", {"_from_model_config": True, **ids})
    write_json(out / "config.json", config)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Write a random Hugging Face checkpoint.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--layers", type=int, help="number of layers; the shape's own by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    args = parser.parse_args()
    try:
        make_checkpoint(args.shape, args.out, layers=args.layers, seed=args.seed)
    except (FileExistsError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
