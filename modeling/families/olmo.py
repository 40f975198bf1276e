"""OLMo 1 to 3 (Groeneveld et al. 2024, OLMo Team 2024, 2025) and EXAONE 4 (LG AI Research 2025).

OLMo has layer norms without weights, and may clip queries, keys and values. OLMo 2 normalises the
output of a sublayer, not its input, and queries and keys over all heads at once; OLMo 3 has windows
in most layers, whose positions are not scaled. EXAONE 4 normalises each head; where some of its
layers have a window, the others have no positions.
"""

from ortolan.modeling.config import DecoderConfig, NoPositions
from ortolan.modeling.families import llama
from ortolan.modeling.families.decoder import DecoderFormat, Keys, layer_norm, rms
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.layer_kinds import (
    FULL,
    SLIDING,
    every,
    layers_of,
    read_layer_kinds,
    read_window,
    windows_of,
)
from ortolan.modeling.families.reader import ConfigReader
from ortolan.modeling.families.rope import read_rotaries
from ortolan.modeling.families.tables import without
from ortolan.modeling.weights import Table, Target

WEIGHTS_2: Table = {
    **without(llama.WEIGHTS, "input_layernorm", "post_attention"),
    "model.layers.{}.post_attention_layernorm.weight": Target("blocks.{}.attention_norm.weight"),
    "model.layers.{}.post_feedforward_layernorm.weight": Target(
        "blocks.{}.feed_forward_norm.weight"
    ),
    **llama.QUERY_KEY_NORMS,
}
"""The names of OLMo 2, 3 and EXAONE 4."""


def _olmo(hf: ConfigReader) -> DecoderConfig:
    return DecoderFormat(
        keys=Keys(eps=None),
        bias="attention_bias",
        attention={"clip": hf.get("clip_qkv", float, None)},
        norm=layer_norm(1e-5, scale=False, bias=False),
    ).read(hf)


def _olmo3(hf: ConfigReader) -> DecoderConfig:
    kinds = read_layer_kinds(hf, every(hf, 4))
    width, heads = hf.size("hidden_size"), hf.size("num_attention_heads")
    rotaries = read_rotaries(
        hf,
        # Both have the one base that older configs name.
        {FULL: ("rope_theta", 500_000.0), SLIDING: ("rope_theta", 500_000.0)},
        head_dim=hf.size("head_dim", width // heads),
        context_length=hf.size("max_position_embeddings"),
    )
    return DecoderFormat(
        bias="attention_bias",
        query_key_norm=True,
        attention={"norm_over": "all"},
        windows=windows_of(kinds, read_window(hf, 4096)),
        norm=rms(1e-5),
        placement="inner_post",
        positions=rotaries[FULL],
        rotaries=[None if kind == FULL else rotaries[SLIDING] for kind in kinds],
    ).read(hf)


def exaone_kinds(hf: ConfigReader, window: int | None) -> list[str]:
    """The kinds of layers of a config without `layer_types`."""
    if "layer_types" in hf or window is None:
        hf.skip("sliding_window_pattern")
        return [FULL] * layers_of(hf)
    return every(hf, hf.size("sliding_window_pattern", 4))


def _exaone4(hf: ConfigReader) -> DecoderConfig:
    window = read_window(hf, 4096)
    kinds = read_layer_kinds(hf, exaone_kinds(hf, window))
    return DecoderFormat(
        query_key_norm=True,
        windows=windows_of(kinds, window),
        norm=rms(1e-5),
        placement="inner_post",
        rotaries=[NoPositions() if window and kind == FULL else None for kind in kinds],
    ).read(hf)


FAMILIES: dict[str, Family[DecoderConfig]] = {
    "olmo": Family(config=_olmo, weights=llama.WEIGHTS),
    "olmo2": Family(
        config=DecoderFormat(
            bias="attention_bias",
            query_key_norm=True,
            attention={"norm_over": "all"},
            norm=rms(1e-5),
            placement="inner_post",
        ).read,
        weights=WEIGHTS_2,
    ),
    "olmo3": Family(config=_olmo3, weights=WEIGHTS_2),
    "exaone4": Family(config=_exaone4, weights=WEIGHTS_2),
}
