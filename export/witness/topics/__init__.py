"""Everything that is asked, in an order in which a budget that ends early has asked the most."""

from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.answers import ANSWERS
from ortolan.export.witness.topics.blanks import BLANKS
from ortolan.export.witness.topics.chats import CHATS
from ortolan.export.witness.topics.completions import COMPLETIONS
from ortolan.export.witness.topics.embeddings import EMBEDDINGS
from ortolan.export.witness.topics.encodings import IMAGES, SOUNDS
from ortolan.export.witness.topics.entities import ENTITIES
from ortolan.export.witness.topics.inputs import INPUTS
from ortolan.export.witness.topics.labels import LABELS
from ortolan.export.witness.topics.logits import LOGITS
from ortolan.export.witness.topics.media_inputs import IMAGE_INPUTS, SOUND_INPUTS
from ortolan.export.witness.topics.media_prompts import MEDIA_PROMPTS
from ortolan.export.witness.topics.media_vectors import MEDIA_VECTORS
from ortolan.export.witness.topics.outputs import OUTPUTS
from ortolan.export.witness.topics.special_tokens import SPECIAL_TOKENS
from ortolan.export.witness.topics.texts import OFFSETS, TEXTS
from ortolan.export.witness.topics.transcripts import TRANSCRIPTS
from ortolan.export.witness.topics.vocabulary import VOCABULARY

TOPICS: tuple[Topic, ...] = (
    *(SPECIAL_TOKENS, TEXTS, CHATS, INPUTS, IMAGE_INPUTS, SOUND_INPUTS),
    *(LOGITS, OUTPUTS, IMAGES, SOUNDS, MEDIA_VECTORS, OFFSETS, VOCABULARY),
    *(EMBEDDINGS, LABELS, ENTITIES, ANSWERS, BLANKS, COMPLETIONS, MEDIA_PROMPTS, TRANSCRIPTS),
)
