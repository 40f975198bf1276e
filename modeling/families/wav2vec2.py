"""wav2vec 2.0 (Baevski et al. 2020) and HuBERT (Hsu et al. 2021): encoders of waves, with CTC."""

from dataclasses import dataclass, replace
from typing import Literal

from ortolan.modeling.config import (
    Activation,
    ConvolutionalPositions,
    CtcHead,
    EncoderConfig,
    NormConfig,
    WaveInput,
    WaveLayer,
)
from ortolan.modeling.errors import ConfigError
from ortolan.modeling.families import bert
from ortolan.modeling.families.activations import read_activation
from ortolan.modeling.families.family import Family
from ortolan.modeling.families.norms import layer_norm
from ortolan.modeling.families.reader import MAX_LAYERS, ConfigReader
from ortolan.modeling.families.tables import (
    DOWN,
    NORM_1,
    NORM_2,
    OUT,
    QKV,
    UP,
    layer,
    linear,
)
from ortolan.modeling.weights import Entry

CONTEXT = 1500
"""Default of the most vectors of a wave: 30 seconds. The positions reach any length."""

HEAD_MULTIPLE = 8
"""Heads are multiples of this wide, as in every published model. Other widths have no kernel, and
without one a graph would compute the number of vectors, by a division that bundles do not have."""

CONVOLUTIONS = {
    "conv_dim": [512] * 7,
    "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
    "conv_stride": [5, 2, 2, 2, 2, 2, 2],
}
"""Keys with a number for every convolution of a wave, and their defaults."""

UNUSED = (
    # Training: dropout, masks, losses and codebooks.
    *("feat_proj_dropout", "feat_extract_dropout", "feat_quantizer_dropout", "final_dropout"),
    *("apply_spec_augment", "ctc_loss_reduction", "ctc_zero_infinity", "num_negatives"),
    *("contrastive_logits_temperature", "diversity_loss_weight", "num_codevectors_per_group"),
    *("num_codevector_groups", "codevector_dim", "proj_codevector_dim"),
    *(f"mask_{axis}_{key}" for axis in ("time", "feature") for key in ("prob", "length")),
    *(f"mask_{axis}_min_masks" for axis in ("time", "feature")),
    # Older names of masks, which transformers does not read.
    *(
        f"mask_{axis}_{key}"
        for axis in ("channel", "time")
        for key in ("length", "min_space", "other", "prob", "selection")
    ),
    *("no_mask_channel_overlap", "no_mask_time_overlap", "freeze_feat_extract_train"),
    # Classifiers of sounds and of speakers, and layers that `add_adapter` would add.
    *("use_weighted_layer_sum", "classifier_proj_size", "tdnn_dim", "tdnn_kernel"),
    *("tdnn_dilation", "xvector_output_dim", "adapter_kernel_size", "adapter_stride"),
    *("num_adapter_layers", "output_hidden_size"),
    # The length of the lists in `CONVOLUTIONS`, and a switch for embeddings of tokens.
    *("num_feat_extract_layers", "tie_word_embeddings"),
)
"""Keys that do not change the vectors or the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFormat:
    """A checkpoint format of encoders of waves.

    Attributes:
        classes: the prefix of the names of its model classes.
        prefix: of the names of its weights.
        optional_norm: the norm before the projection may be left out.
    """

    classes: str
    prefix: str
    optional_norm: bool = False

    @property
    def family(self) -> Family[EncoderConfig]:
        """The format as a family."""
        return Family(config=self.read, weights=self.weights, base_model_prefix=self.prefix)

    def weights(self, config: EncoderConfig) -> dict[str, Entry]:
        """The table of a model, whose norm of the encoder comes before or after the layers."""
        encoder = f"{self.prefix}.encoder"
        projection = f"{self.prefix}.feature_projection"
        modules = {
            "attention.q_proj": QKV,
            "attention.k_proj": QKV,
            "attention.v_proj": QKV,
            "attention.out_proj": OUT,
            "layer_norm": NORM_1,
            "feed_forward.intermediate_dense": UP,
            "feed_forward.output_dense": DOWN,
            "final_layer_norm": NORM_2,
        }
        return {
            **linear(
                {"conv": "conv", "layer_norm": "norm"},
                f"{self.prefix}.feature_extractor.conv_layers.{{}}.",
                "embedding.layers.{}.",
            ),
            **linear({f"{projection}.layer_norm": "embedding.norm"}),
            **linear({f"{projection}.projection": "embedding.projection"}),
            **linear({f"{encoder}.pos_conv_embed.conv": "position_convolution.conv"}),
            **linear(
                {f"{encoder}.layer_norm": "final_norm" if config.final_norm else "embedding_norm"}
            ),
            **layer(f"{encoder}.layers.{{}}.", modules),
            **linear({"lm_head": "head.out"}, spare=True),
            # Of training: what replaces masked vectors, and the codebooks.
            f"{self.prefix}.masked_spec_embed": None,
            "quantizer.*": None,
            "project_hid.*": None,
            "project_q.*": None,
        }

    def read(self, hf: ConfigReader) -> EncoderConfig:
        """A published config as an `EncoderConfig`."""
        ctc = f"{self.classes}ForCTC"
        known = (f"{self.classes}Model", f"{self.classes}ForPreTraining", ctc)
        head = CtcHead(size=hf.size("vocab_size", 32)) if hf.architecture(*known) == ctc else None
        hf.refuse("add_adapter")
        hf.refuse("conv_pos_batch_norm")
        hf.skip(*UNUSED, "vocab_size")
        if hf.get("adapter_attn_dim", int, None) is not None:
            raise ConfigError(
                f"{hf.name}: adapters of languages (adapter_attn_dim) are not supported. Merge "
                "one of them into a checkpoint without adapters."
            )
        width, heads = hf.size("hidden_size", 768), hf.size("num_attention_heads", 12)
        groups = hf.size("num_conv_pos_embedding_groups", 16)
        if width % (heads * HEAD_MULTIPLE) or width % groups:
            raise ConfigError(
                f"{hf.name}: hidden_size must be divisible by {HEAD_MULTIPLE} times "
                f"num_attention_heads, and by num_conv_pos_embedding_groups (got {width}, {heads} "
                f"and {groups}). Correct one of them."
            )
        norm = layer_norm(hf.get("layer_norm_eps", float, 1e-5))
        is_pre = hf.get("do_stable_layer_norm", bool, False)
        block = bert.encoder_block(
            width=width,
            heads=heads,
            hidden=hf.size("intermediate_size", 3072),
            activation=hf.get("hidden_act", str, "gelu"),
            norm=norm,
        )
        block = replace(block, placement="pre" if is_pre else "post")
        activation = read_activation(hf.get("feat_extract_activation", str, "gelu"))
        return EncoderConfig(
            **hf.model_fields(),
            input=self._input(hf, activation, norm),
            hidden_size=width,
            context_length=CONTEXT,
            positions=ConvolutionalPositions(
                kernel=hf.size("num_conv_pos_embeddings", 128),
                groups=groups,
                activation=activation,
            ),
            embedding_norm=None if is_pre else norm,
            blocks=(block,) * hf.size("num_hidden_layers", 12, most=MAX_LAYERS),
            final_norm=norm if is_pre else None,
            head=head,
        )

    def _input(self, hf: ConfigReader, activation: Activation, norm: NormConfig) -> WaveInput:
        has_norm = not self.optional_norm or hf.get("feat_proj_layer_norm", bool, True)
        return WaveInput(
            layers=_read_layers(hf, activation), projection_norm=norm if has_norm else None
        )


def _read_layers(hf: ConfigReader, activation: Activation) -> tuple[WaveLayer, ...]:
    """The convolutions of a wave; only the first one has the norm `group`."""
    norm = hf.get("feat_extract_norm", str, "group")
    if norm not in ("group", "layer"):
        raise ConfigError(
            f"{hf.name}: feat_extract_norm must be group or layer (got {norm!r:.40}). Correct it."
        )
    lists = [hf.get(key, list, default) for key, default in CONVOLUTIONS.items()]
    are_sizes = all(type(value) is int and 0 < value <= MAX_WIDTH for row in lists for value in row)
    are_even = len(set(map(len, lists))) == 1 and 0 < len(lists[0]) <= MAX_CONVOLUTIONS
    if not (are_sizes and are_even):
        raise ConfigError(
            f"{hf.name}: {', '.join(CONVOLUTIONS)} must have equally many numbers from 1 to "
            f"{MAX_WIDTH}, at most {MAX_CONVOLUTIONS} (got {lists!r:.120}). Correct them."
        )
    later: Literal["channels"] | None = "channels" if norm == "layer" else None
    return tuple(
        WaveLayer(
            channels=channels,
            kernel=kernel,
            stride=stride,
            activation=activation,
            norm=later if place or later else "time",
            bias=hf.get("conv_bias", bool, False),
        )
        for place, (channels, kernel, stride) in enumerate(zip(*lists, strict=True))
    )


MAX_CONVOLUTIONS, MAX_WIDTH = 16, 1 << 14
"""Most convolutions of a wave, and their largest size."""

_FORMATS = {
    "wav2vec2": WaveFormat(classes="Wav2Vec2", prefix="wav2vec2"),
    "hubert": WaveFormat(classes="Hubert", prefix="hubert", optional_norm=True),
}

FAMILIES = {name: form.family for name, form in _FORMATS.items()}
