"""Everything that is asked, cheapest first: a budget that ends early has asked the most."""

from ortolan.export.witness.topic import Topic
from ortolan.export.witness.topics.chats import CHATS
from ortolan.export.witness.topics.completions import COMPLETIONS
from ortolan.export.witness.topics.ends import ENDS
from ortolan.export.witness.topics.logits import LOGITS
from ortolan.export.witness.topics.texts import TEXTS

TOPICS: tuple[Topic, ...] = (ENDS, TEXTS, CHATS, LOGITS, COMPLETIONS)
