"""Bundles in a bundle: encoders for a decoder or for comparisons, and heads."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from ortolan.runtime import limits
from ortolan.runtime.bundle.field_types import Label, Record, Sha256, TokenId

PartName = Literal["media", "head", "texts"]
"""A bundle in a bundle, as `Manifest.parts` names it."""

VISION, SOUND, MTP, TEXT = "vision", "sound", "mtp", "text"
"""Folders in a bundle that are bundles too: the encoder of images or sounds that a decoder reads,
its head that predicts further tokens, and the encoder of texts that images are compared with."""


TileText = Annotated[str, Meta(max_length=limits.MAX_TILE_TEXT)]


class LongestSide(Record, frozen=True, kw_only=True, tag_field="by", tag="longest_side"):
    """The tiles that cover an image of a given size (Laurençon et al. 2024, "Idefics3").

    Attributes:
        pixels: of the longer side, to which the image is resized before tiles cover it.
    """

    tile: ClassVar[None] = None  # that of the encoder

    pixels: Annotated[int, Meta(ge=1, le=limits.MAX_TILES_SIDE)]


class ClosestShape(Record, frozen=True, kw_only=True, tag_field="by", tag="closest_shape"):
    """The rows and columns whose shape is closest to the image's (Chen et al. 2024, "InternVL").

    Of shapes that are equally close, the one with more tiles wins if these have less than twice the
    pixels of the image. `least` and `most` tiles do not count the whole image.
    """

    tile: ClassVar[None] = None

    least: Annotated[int, Meta(ge=1, le=limits.MAX_TILES)]
    most: Annotated[int, Meta(ge=1, le=limits.MAX_TILES)]


class Oversized(Record, frozen=True, kw_only=True, tag_field="by", tag="oversized"):
    """The tiles of an image with far more pixels than its encoder reads, which keeps proportions.

    Rows and columns are chosen as by `ClosestShape`. Smaller images are read whole (Liquid AI 2025,
    "LFM2-VL"). `least` and `most` are as for `ClosestShape`.

    Attributes:
        pixels: most pixels of an image that is read whole, with both sides rounded to the squares
            of patches of its encoder.
        tile: side of a tile in pixels.
    """

    pixels: Annotated[int, Meta(ge=1, le=limits.MAX_IMAGE_PIXELS)]
    tile: Annotated[int, Meta(ge=1, le=limits.MAX_TILE_SIDE)]
    least: Annotated[int, Meta(ge=1, le=limits.MAX_TILES)]
    most: Annotated[int, Meta(ge=1, le=limits.MAX_TILES)]


class Tiles(Record, frozen=True, kw_only=True):
    """How an image becomes several of the encoder's size, and the texts around their vectors.

    The image is resized so that whole tiles fill it. The encoder reads the tiles row by row, and
    then the whole image, resized to a tile, or as its encoder reads images. An image of a single
    tile is read once.

    Attributes:
        grid: number of rows and columns.
        split: whether images are cut; without, the encoder reads only the whole image.
        start: before everything else.
        tile: before the vectors of a tile; `{row}` and `{column}` count from 1.
        row: after the last tile of a row.
        rows: after the last row.
        whole: before the vectors of the whole image.
        end: after them.
    """

    grid: LongestSide | ClosestShape | Oversized
    split: bool = True
    start: TileText = ""
    tile: TileText = ""
    row: TileText = ""
    rows: TileText = ""
    whole: TileText = ""
    end: TileText = ""


class Wrapping(Record, frozen=True, kw_only=True):
    """Texts around the vectors of an image that is read as a whole.

    They are part of the text that the tokenizer encodes, since it may join line breaks.

    Attributes:
        marker: text that a chat template writes for an image, and that they replace.
    """

    marker: Annotated[str, Meta(min_length=1, max_length=limits.MAX_TILE_TEXT)]
    before: TileText = ""
    after: TileText = ""


class Features(Record, frozen=True, kw_only=True):
    """Vectors of images or sounds that a decoder reads in place of tokens.

    The folder `vision` or `sound` of the bundle is itself a bundle: the encoder that computes them.

    Attributes:
        token: id that stands for a vector in a prompt.
        vectors: number of vectors of an image or of each tile, or most of them where images keep
            their proportions, or most of a part of a sound.
        encoder: fingerprint of the encoder's manifest.
        tiles: how images are cut; left out if the encoder reads each as a whole.
        wrapping: texts around an image that is not cut; left out if there are none.
        attention: what adjacent vectors see of each other: `causal`, those before, or `both_ways`,
            all of them; the graph `both_ways` then takes the vectors of an image in one call.
        positions: `sequence` counts vectors like tokens. `grid` gives each token a time, a row and
            a column (Wang et al. 2024, "Qwen2-VL"): the graphs read them, and the text after an
            image goes on where its longer side ends.
    """

    token: TokenId
    size: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
    vectors: Annotated[int, Meta(ge=1, le=limits.MAX_FEATURES)]
    encoder: Sha256
    tiles: Tiles | None = None
    wrapping: Wrapping | None = None
    attention: Literal["causal", "both_ways"] = "causal"
    positions: Literal["sequence", "grid"] = "sequence"

    @property
    def words(self) -> str:
        """Describe the number of vectors: `576 vectors each`."""
        tiled = self.tiles is not None and self.tiles.split
        if self.positions == "grid":
            return f"up to {self.vectors} vectors each"
        return f"{self.vectors} vectors {'per tile' if tiled else 'each'}"


class Dictation(Record, frozen=True, kw_only=True):
    """How a decoder that reads sounds writes down what it hears.

    Attributes:
        language: text before the name of the language.
        text: text between that name and the words.
        languages: names by code, such as `English` by `en`.
    """

    language: TileText
    text: Annotated[str, Meta(min_length=1, max_length=limits.MAX_TILE_TEXT)]
    languages: Annotated[dict[Label, Label], Meta(max_length=limits.MAX_LANGUAGES)]


class Comparison(Record, frozen=True, kw_only=True):
    """How an encoder of images compares them with texts (Radford et al. 2021, Zhai et al. 2023).

    The folder `text` of the bundle is itself a bundle: the encoder of the texts. The logit of an
    image and a text is `scale * cosine + bias` of their embeddings.

    Attributes:
        encoder: fingerprint of the manifest of the encoder of texts.
        scores: function from the logits of an image to scores of the texts.
    """

    encoder: Sha256
    scale: Annotated[float, Meta(gt=0, le=limits.MAX_LOGIT_SCALE)]
    bias: Annotated[float, Meta(ge=-limits.MAX_LOGIT_SCALE, le=limits.MAX_LOGIT_SCALE)]
    scores: Literal["softmax", "sigmoid"]


class HiddenStates(Record, frozen=True, kw_only=True):
    """Normalized stream of every token, which the graphs of a decoder return.

    A head reads the state before each token and predicts one more token (multi-token prediction,
    arXiv:2412.19437, section 2.2). The head is itself a bundle, in the folder `mtp`.

    Attributes:
        head: fingerprint of the head's manifest; `None` in the head, whose graphs also read a
            state with each token.
    """

    size: Annotated[int, Meta(ge=1, le=limits.MAX_DIMENSION)]
    head: Sha256 | None = None
