"""A transformer as data: frozen dataclasses, a field for every behaviour."""

from ortolan.modeling.config.base import (
    FeatureAttention as FeatureAttention,
    ModelConfig as ModelConfig,
)
from ortolan.modeling.config.block import (
    AttentionConfig as AttentionConfig,
    BlockConfig as BlockConfig,
    FeedForwardConfig as FeedForwardConfig,
    LatentConfig as LatentConfig,
    Mixer as Mixer,
    Placement as Placement,
)
from ortolan.modeling.config.head import (
    Activation as Activation,
    AttentionPooling as AttentionPooling,
    ClassifierHead as ClassifierHead,
    CtcHead as CtcHead,
    EmbeddingHead as EmbeddingHead,
    EndToken as EndToken,
    FeatureHead as FeatureHead,
    Head as Head,
    HeadLayer as HeadLayer,
    LanguageModelHead as LanguageModelHead,
    NormConfig as NormConfig,
    Pooling as Pooling,
    Projection as Projection,
    ScoreFunction as ScoreFunction,
)
from ortolan.modeling.config.inputs import (
    AudioInput as AudioInput,
    ChunkedAudioInput as ChunkedAudioInput,
    GridInput as GridInput,
    PatchInput as PatchInput,
    TokenInput as TokenInput,
    WaveInput as WaveInput,
    WaveLayer as WaveLayer,
)
from ortolan.modeling.config.mixers import (
    CAPACITY as CAPACITY,
    GatedDeltaConfig as GatedDeltaConfig,
    LayerState as LayerState,
    LinearRecurrenceConfig as LinearRecurrenceConfig,
    ShortConvConfig as ShortConvConfig,
    StateSpaceConfig as StateSpaceConfig,
)
from ortolan.modeling.config.mixture import MixtureConfig as MixtureConfig
from ortolan.modeling.config.model import (
    DecoderConfig as DecoderConfig,
    EncoderConfig as EncoderConfig,
    EncoderDecoderConfig as EncoderDecoderConfig,
    StackConfig as StackConfig,
    as_encoder as as_encoder,
)
from ortolan.modeling.config.positions import (
    AlibiPositions as AlibiPositions,
    ConvolutionalPositions as ConvolutionalPositions,
    DynamicNTKScaling as DynamicNTKScaling,
    GridPositions as GridPositions,
    LearnedPositions as LearnedPositions,
    LinearScaling as LinearScaling,
    Llama3Scaling as Llama3Scaling,
    LongRopeScaling as LongRopeScaling,
    NoPositions as NoPositions,
    Positions as Positions,
    RelativeBiasPositions as RelativeBiasPositions,
    RelativePositions as RelativePositions,
    RotaryPositions as RotaryPositions,
    RotaryScaling as RotaryScaling,
    SinusoidalPositions as SinusoidalPositions,
    SquareTable as SquareTable,
    TablePositions as TablePositions,
    YarnScaling as YarnScaling,
)
from ortolan.modeling.config.recurrent import (
    CellKind as CellKind,
    MemoryConfig as MemoryConfig,
    RecurrentConfig as RecurrentConfig,
)
