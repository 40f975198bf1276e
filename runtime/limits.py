"""Every numeric limit of the runtime, with its reason.

A bundle is data from outside: each number below bounds what reading one may cost, or keeps a
value away from a kernel that dies on it. A test stands at each limit and at limit + 1.
"""

# --- the folder -----------------------------------------------------------------------------

FILE_NAME_PATTERN = r"\A[a-z0-9._-]{1,96}\Z"
"""Flat and lower case, so that a name is the same file on every file system.

`.` and `..` match as well; they are refused by name.
"""

MAX_MANIFEST_BYTES = 1 << 20
"""1 MiB. A manifest of 512 layers is 200 kB; it is read before anything is known of it."""

MAX_FILES = 256
"""A bundle holds about ten files; sharded weights of the largest models come to some dozens."""

MAX_FILE_BYTES = 1 << 44
"""16 TiB, the largest file of common file systems: sums of sizes stay far from 2^63."""

MAX_GRAPH_BYTES = 64 << 20
"""64 MiB. Weights are outside, so a graph of 512 layers takes some MiB."""

MAX_WHOLE_FILE_BYTES = 256 << 20
"""256 MiB for what is read into memory whole: tokenizers (the largest are 40 MB), certificates."""

HASH_CHUNK_BYTES = 1 << 20
"""1 MiB: large enough for full disk speed, small enough for a smooth progress bar."""

MAX_COPIED_BYTES = 1 << 31
"""2 GiB of one tensor: what onnxruntime 1.31 takes of weights that are in memory."""

# --- a first load in a process of its own ----------------------------------------------------

FIRST_LOAD_BYTES = 500 << 20
"""500 MiB beyond the memory plan, for what libraries and allocators take for themselves."""

FIRST_LOAD_SECONDS = 30
"""Beside the time for the weights: imports and a step of a slow machine take some seconds."""

FIRST_LOAD_BYTES_PER_SECOND = 10_000_000
"""Of weights that are read and packed: a memory card gives twice this, a processor far more."""

# --- the model ------------------------------------------------------------------------------

MAX_LAYERS = 512
"""Four times the deepest published decoders."""

MAX_STATES = 4 * MAX_LAYERS
"""A layer carries a key and a value; a recurrent one a convolution and a state besides."""

MAX_QUANTIZED = 16 * MAX_LAYERS
"""A layer has five to eight matrices; a second precision for prefill doubles them."""

MAX_STATE_RANK = 8
"""Key and value caches have 4 axes; numpy and onnxruntime take more than 8, no model does."""

MAX_VOCABULARY = 1 << 20
"""Four times the largest published vocabularies. One row of logits stays within 4 MiB."""

MAX_CONTEXT = 1 << 21
"""2 Mi tokens, the longest published contexts; positions stay exact in float32 and int32."""

MAX_HEADS = 1024
"""Kernels truncate head counts to 32 bits: 2^32 becomes 0 and a division kills the process."""

MAX_CELL_WIDTH = 1 << 16
"""Numbers in the state of a recurrent cell."""

MAX_RECURRENCE_HEADS = 1 << 16
"""Of linear attention, in which each channel of a state space is a head."""

MAX_DIMENSION = 1 << 40
"""1 Ti elements along one axis, more than any file holds; no product of sizes gets out of hand."""

MAX_STOP_TOKENS = 64
"""Models end with one to five tokens; each is compared at every step."""

MAX_SUPPRESSED = 1024
"""Tokens that are never chosen: speech models list about 100, each is masked at every step."""

MAX_LABELS = 1 << 15
"""32 Ki labels; the largest published classifiers of images have 22 Ki."""

MAX_PROBES = 1024
"""Probes of one certificate; an export writes fewer than ten."""

MAX_PROMPTS = 1024
"""Texts to put before a text, by name; encoders trained on many tasks list about a hundred."""

MAX_PROMPT_LENGTH = 4096
"""Characters of one of them: an instruction is a sentence."""

MAX_IMAGE_SIDE = 1 << 13
"""8192 pixels, five times the largest published models; an image of three channels is 805 MB."""

MAX_DEVICES = 16
"""Names of device kinds, not of devices: cpu, cuda and a few more."""

MAX_LABEL_LENGTH = 256
"""Characters of a name inside a manifest: a graph input, a device, a version."""

MAX_VERSIONS = 32
"""Packages whose version the provenance lists; an export lists about six."""

MAX_CONFIG_KEYS = 1024
"""Keys of a published config that the provenance lists; the largest configs have some hundreds."""

# --- graphs ---------------------------------------------------------------------------------

MAX_NODES = 50_000
"""A decoder of 512 layers has about 10,000 nodes; loading time grows faster than their number."""

MAX_INITIALIZERS = 50_000
"""A layer has about ten weights, three times that when they are quantized."""

MAX_GRAPH_VALUES = 2 * MAX_STATES
"""Inputs, or outputs, of one graph: its states and a handful of others."""

MAX_NODE_EDGES = 4096
"""Inputs, outputs or attributes of one node. Only Concat and Split have more than about 20."""

MAX_OPSETS = 64
"""Operator domains a graph imports; exporters leave a few unused ones."""

MAX_FUNCTIONS = 16
"""Portable bodies in one graph: one for each kind of custom node."""

MAX_TENSOR_RANK = 16
"""Axes of a tensor in a graph."""

MAX_READERS = 4096
"""Nodes that take one value: loading time grows with the square, here to 0.3 s. A layer reads the
positions or the lengths some times."""

MAX_JOINED = 512
"""Values that are joined into one. Exports join up to 8; an unrolled loop may join its steps."""

MAX_ASKED = 1 << 26
"""Elements that constants ask of one node, 256 MiB in float32: a mask of 8,192 x 8,192 tokens."""

MAX_COMPUTED_AT_LOAD = 1 << 26
"""Elements that follow from constants alone, in one graph, beside those that weights may give."""

MAX_COMPUTED_PER_WEIGHT = 8
"""Elements for each of a weight: those of a recurrent cell are cut and joined when it is opened."""

MAX_FOREIGN_FORMS = 256
"""Forms of nodes that a bundle may hold beside those of the vocabulary."""

MAX_FORM_LENGTH = 512
"""Characters of one of them: eight for each input or output."""

MAX_GRAPH_FIELDS = 2_000_000
"""Protobuf fields of one graph, 40 for each of the most nodes.

Two bytes of a file can become an object of 100 bytes; counted first, 64 MiB of them cannot
fill the memory.
"""

# --- requests -------------------------------------------------------------------------------

MAX_LOGIT_BIAS = 300
"""Tokens that one request biases; OpenAI's limit, and enough to rule out a list of words."""

MAX_SEED = 2**63 - 1
"""The largest 64-bit signed integer, so that every language can write a seed down."""

MAX_STOP_TEXTS = 16
"""Stop texts of one request; each is followed through every character of the answer."""

MAX_STOP_TEXT_BYTES = 1024
"""1 KiB. A stop text is held back while it may still come, so a long one delays the answer."""

MAX_GRAMMAR_BYTES = 64 << 10
"""64 KiB. Published schemas of tools take some kB; preparing one grows with its length squared."""

MAX_GRAMMAR_CONJUNCTIONS = 16
"""Regular expressions that may have to hold together: each doubles the time to prepare them."""

MAX_GRAMMAR_MULTIPLES = 50_000
"""The sum of all `multipleOf` of a schema: the parser has a state for each remainder."""

MAX_LOGPROBS = 20
"""Alternatives of which a request may ask the log-probability at each token; OpenAI's limit."""

MAX_IMAGE_BYTES = 256 << 20
"""256 MiB for the file of an image, which is read whole."""

MAX_IMAGE_PIXELS = 1 << 26
"""64 Mi pixels, as of large cameras: 256 MiB decoded, which a file of some bytes can promise."""

MAX_MAP_TOKENS = 1024
"""Tokens on one side of an attention map; their number is squared, times layers and heads."""

# --- tokenizers -----------------------------------------------------------------------------

MAX_TEXT_GROWTH = 256
"""Factor by which a tokenizer may lengthen text; the Unicode tables of published ones reach 33."""

MAX_POST_PROCESSOR_BYTES = 16 << 10
"""16 KiB. Published post-processors take 2 kB; the tokens they add grow with the square of it."""

# --- chat templates -------------------------------------------------------------------------

MAX_TEMPLATE_BYTES = 128 << 10
"""128 KiB; the largest published ones have 30 kB."""

MAX_TEMPLATE_TOKENS = 12_000
"""Words and signs of Jinja; published ones have some thousands. So many are parsed in 0.1 s."""

# --- the certificate ------------------------------------------------------------------------

MAX_MEAN_KL = 100.0
"""Nats, of what a certificate may let pass: a uniform guess among 2^26 tokens is 18 off."""

MAX_COSINE_DISTANCE = 2.0
"""The distance of a vector and its opposite."""
