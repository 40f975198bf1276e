"""Every numeric limit of the runtime, with its unit and reason.

A bundle is untrusted input: each limit bounds the cost of reading one, or keeps a value away from a
kernel that crashes on it. Tests try each limit and the limit plus one.
"""

# --- the folder -----------------------------------------------------------------------------

# File names: flat and lower case, so that they mean the same file on every file system. `.` and
# `..` also match; they are refused by name.
FILE_NAME_PATTERN = r"\A[a-z0-9._-]{1,96}\Z"
# Bytes of manifest.json, which is read before anything is known. 512 layers take 200 kB.
MAX_MANIFEST_BYTES = 1 << 20
MAX_SETTINGS = 16  # Settings of a session, of each kind
# Files of a bundle. Most have about ten; sharded weights of the largest models a few dozen.
MAX_FILES = 256
# Bytes of a file: the maximum of common file systems. Sums of sizes stay far below 2^63.
MAX_FILE_BYTES = 1 << 44
MAX_GRAPH_BYTES = 64 << 20  # Bytes of a graph without weights. 512 layers take a few MiB.
# Bytes of a file that is read at once: tokenizers (up to 40 MB today) and certificates
MAX_WHOLE_FILE_BYTES = 256 << 20
# Bytes hashed at a time: enough for full disk speed and a smooth progress bar
HASH_CHUNK_BYTES = 1 << 20
MAX_COPIED_BYTES = 1 << 31  # Bytes of one tensor that onnxruntime 1.31 accepts from memory

# --- first loads ----------------------------------------------------------------------------

# Bytes of memory for libraries and allocators, on top of the memory plan
FIRST_LOAD_BYTES = 500 << 20
# Seconds for imports and a step on a slow machine, on top of the time for the weights
FIRST_LOAD_SECONDS = 30
# Bytes of weights read and packed a second: half the speed of a memory card
FIRST_LOAD_BYTES_PER_SECOND = 10_000_000

# --- the model ------------------------------------------------------------------------------

MAX_LAYERS = 512  # Layers: four times the deepest published decoder
# States: a layer has a key and a value; a recurrent one also a convolution and a state
MAX_STATES = 4 * MAX_LAYERS
# Quantized matrices: five to eight a layer, doubled by a second precision for prefill
MAX_QUANTIZED = 16 * MAX_LAYERS
MAX_STATE_RANK = 8  # Axes of a state. KV caches have 4.
# Tokens of a vocabulary: four times the largest published. A row of logits is at most 4 MiB.
MAX_VOCABULARY = 1 << 20
# Tokens of a context: the longest published. Positions stay exact in float32 and int32.
MAX_CONTEXT = 1 << 21
# Attention heads. Kernels truncate to 32 bits: 2^32 becomes 0, and a division crashes.
MAX_HEADS = 1024
MAX_CELL_WIDTH = 1 << 16  # Numbers in the state of a recurrent cell
# Heads of linear attention, where each channel of a state space is a head
MAX_RECURRENCE_HEADS = 1 << 16
# Elements along one axis: more than a file holds, and products of sizes cannot overflow
MAX_DIMENSION = 1 << 40
# Tokens that end a sequence, each compared at every step. Models have one to five.
MAX_STOP_TOKENS = 64
# Tokens never sampled, each masked at every step. Speech models list about 100.
MAX_SUPPRESSED = 1024
MAX_LABELS = 1 << 15  # Labels of a classifier. The largest published image classifiers have 22 Ki.
MAX_PROBES = 1024  # Probes of a certificate. An export writes fewer than ten.
MAX_TOKEN_TYPES = 256
# Named prompts of an encoder. Encoders trained on many tasks have about a hundred.
MAX_PROMPTS = 1024
MAX_PROMPT_LENGTH = 4096  # Characters of a named prompt, which is usually a sentence
# Pixels of a model's image side: five times the largest published. Three channels: 805 MB.
MAX_IMAGE_SIDE = 1 << 13
# Vectors of an image that a decoder reads; published models have 64 to 2,880
MAX_FEATURES = 1 << 13
# Patches of an image of any proportions: MAX_FEATURES squares of 2 by 2 patches
MAX_PATCHES = 1 << 15
MAX_PATCH_SIZE = 256  # Pixels of a side of a patch; published models have 14, 16 or 32
# Frames of a patch, and patches of a side of the squares that are joined; published: 2
MAX_PATCH_REPEATS = 8
MAX_POSITION_SIDE = 256  # Rows of a square table of positions; published models have up to 48
# Pixels of the longer side of an image that is cut into tiles: published models have 2,048
MAX_TILES_SIDE = 1 << 12
MAX_TILES = 64  # Tiles of an image that are chosen by its shape; published models have 12
# Pixels of a side of a tile, where the encoder reads several sizes; published models have 512
MAX_TILE_SIDE = 1 << 12
MAX_TILE_TEXT = 256  # Characters of a text around the vectors of a tile
# Factor of the cosine of an image and a text, and bound of the bias; published models have a
# scale of about 100 and a bias above -20
MAX_LOGIT_SCALE = 1e4
MAX_DEVICES = 16  # Kinds of devices: cpu, cuda and a few more
MAX_LABEL_LENGTH = 256  # Characters of a name in a manifest: a graph input, a device, a version
MAX_VERSIONS = 32  # Package versions in the provenance. An export lists about six.
# Config keys in the provenance. The largest published configs have a few hundred.
MAX_CONFIG_KEYS = 1024

# --- graphs ---------------------------------------------------------------------------------

# Nodes of a graph. 512 layers take about 10,000; loading time grows faster than linearly.
MAX_NODES = 50_000
# Tensors of a graph. A layer has about ten, three times as many when quantized.
MAX_INITIALIZERS = 50_000
MAX_GRAPH_VALUES = 2 * MAX_STATES  # Inputs, or outputs, of a graph: the states and a handful more
# Inputs, outputs or attributes of a node. Only Concat and Split have more than about 20.
MAX_NODE_EDGES = 4096
MAX_OPSETS = 64  # Operator domains that a graph imports. Exporters leave a few unused ones.
MAX_FUNCTIONS = 16  # Function bodies of a graph: one for each kind of custom node
MAX_TENSOR_RANK = 16  # Axes of a tensor in a graph
MAX_FOREIGN_FORMS = 256  # Forms of nodes outside the vocabulary that a bundle may use
MAX_FORM_LENGTH = 512  # Characters of such a form: eight per input or output
# Protobuf fields of a graph: 40 for each of the most nodes. Two bytes of a file can become an
# object of 100 bytes, so fields are counted before parsing.
MAX_GRAPH_FIELDS = 2_000_000

# --- adapters -------------------------------------------------------------------------------

MAX_ADAPTERS = 64  # Adapters of a loaded model. Each widens the products of all rows.
MAX_ADAPTER_RANK = 1024  # Rank of an adapter's update of one matrix. Published ones have 4 to 256.
# Bytes of all adapters of a loaded model: a graph that holds them must stay below 2 GiB
MAX_ADAPTER_BYTES = 1 << 30
MAX_ADAPTER_NAME_LENGTH = 128  # Characters of the name that requests choose an adapter by

# --- requests -------------------------------------------------------------------------------

MAX_LOGIT_BIAS = 300  # Tokens that a request biases: OpenAI's limit, enough to ban a list of words
MAX_SEED = 2**63 - 1  # Largest seed: a signed 64-bit integer, which every language can write down
MAX_STOP_TEXTS = 64  # Stop texts of a request, each matched at every character
MAX_STOP_TEXT_BYTES = 1024  # Bytes of a stop text. Output is withheld while it may still match.
# Bytes of a grammar. Published tool schemas have a few kB; the cost is quadratic.
MAX_GRAMMAR_BYTES = 64 << 10
# Regular expressions that must hold together; each doubles the preparation time
MAX_GRAMMAR_CONJUNCTIONS = 16
# States of patterns joined by `&`, which multiply: 82,861 took 20 MB and 0.3 s, 510,510 160 MB
MAX_GRAMMAR_STATES = 100_000
# Sum of all `multipleOf` of a schema: the parser has a state for each remainder
MAX_GRAMMAR_MULTIPLES = 50_000
MAX_LOGPROBS = 20  # Alternatives per token that report log-probabilities: OpenAI's limit
MAX_IMAGE_BYTES = 256 << 20  # Bytes of an image file, which is read at once
# Pixels of an image, as in large cameras: 256 MiB decoded, which a tiny file can claim
MAX_IMAGE_PIXELS = 1 << 26
MAX_IMAGE_MEMORY = 640 << 20  # Bytes that decoding an image may need
MAX_AUDIO_BYTES = 256 << 20  # Bytes of a sound file, which is read at once
# Seconds of a sound: half a GiB as samples at 16 kHz and their spectrogram
MAX_AUDIO_SECONDS = 7200
# Samples of a sound file over all channels, which bounds the time to decode it: two hours of
# stereo at 48 kHz
MAX_AUDIO_SAMPLES = MAX_AUDIO_SECONDS * 48_000 * 2
MAX_AUDIO_CHANNELS = 8  # Channels of a sound, as in 7.1 surround
# Samples per second. Telephones have 8000, studios up to 384,000.
MIN_AUDIO_RATE, MAX_AUDIO_RATE = 1000, 384_000
# Samples of a window of a spectrum, and from one to the next. Whisper has 400 and 160.
MAX_AUDIO_WINDOW = 1 << 16
MAX_AUDIO_BINS = 1024  # Mel frequencies of a spectrogram. Whisper has 80 or 128.
MAX_OPENING = 64  # Tokens before the text of a transcription. Whisper has 3.
MAX_LANGUAGES = 1000  # Languages that a bundle transcribes. Whisper has 100.
MAX_MAP_TOKENS = 1024  # Tokens on each side of an attention map, whose size is quadratic

# --- tokenizers -----------------------------------------------------------------------------

# Factor by which a tokenizer may lengthen text. Unicode tables of published ones reach 33.
MAX_TEXT_GROWTH = 256
# Bytes of a tokenizer.json: Gemma's have 33 MB. Loading needs up to 30 times as much memory.
MAX_TOKENIZER_BYTES = 64 << 20
# Bytes of all pieces of a Unigram model: XLM-R's have 2 MB, and each takes about 300 bytes
MAX_UNIGRAM_BYTES = 4 << 20
# Bytes of a post-processor. Published ones have 2 kB; the tokens they add grow quadratically.
MAX_POST_PROCESSOR_BYTES = 16 << 10

# --- chat templates -------------------------------------------------------------------------

MAX_CHAT_TEXT = 1 << 14  # Characters that a template writes before or after a message
MAX_TEMPLATE_BYTES = 128 << 10  # Bytes of a template. The largest published ones have 30 kB.
# Jinja tokens of a template, parsed in 0.1 s. Published ones have a few thousand.
MAX_TEMPLATE_TOKENS = 12_000

# --- the certificate ------------------------------------------------------------------------

# Nats of KL divergence that a certificate may allow. A uniform guess among 2^26 is 18 off.
MAX_MEAN_KL = 100.0
MAX_COSINE_DISTANCE = 2.0  # Largest cosine distance: between a vector and its opposite
