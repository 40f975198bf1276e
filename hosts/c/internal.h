/* What the files of this library share. Not for programs that use it. */
#ifndef ORTOLAN_INTERNAL_H
#define ORTOLAN_INTERNAL_H

#include "json.h"
#include "onnxruntime_c_api.h"
#include "ortolan.h"

#define ORTOLAN_MAX_RANK 8
#define ORTOLAN_MAX_STATES 2048
#define ORTOLAN_MAX_FILES 256
#define ORTOLAN_MAX_SETTINGS 16
#define ORTOLAN_FLASH_SWITCH "ORT_GQA_DISABLE_FLASH_ATTENTION"
#define ORTOLAN_MAX_STOP_TOKENS 64
#define ORTOLAN_MAX_SUPPRESSED 1024
#define ORTOLAN_MAX_LANGUAGES 1000
#define ORTOLAN_MAX_OPENING 68

#if defined(__GNUC__)
#define ORTOLAN_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define ORTOLAN_PRINTF(string, first)
#endif

/* Note an error of this thread, and return false. */
ORTOLAN_PRINTF(2, 3)
bool ortolan_fail(ortolan_code code, const char *format, ...);
bool ortolan_no_memory(void);
/* Fill a caller's error, which may be NULL: every function of ortolan.h ends with this. Within the
 * library no function has one, and those of ortolan.h are called with NULL. */
bool ortolan_done(bool ok, ortolan_error *error);
ortolan_code ortolan_last_code(void);
/* Check the struct_size of options, which a macro of this name in capitals sets. */
bool ortolan_check_size(const char *name, size_t size, size_t expected);
/* The larger number: loops of fmax are an internal error of GCC 12 for aarch64. */
static inline double ortolan_larger(double left, double right) {
  return left < right ? right : left;
}
/* Place of a name in a list, or `count`. */
size_t ortolan_place(const char *const *names, size_t count, const char *name);

/* --- fields.c: checked fields of a JSON document. Errors name the place of a field. --- */

/* Each returns NULL or false, and notes an error, if the field is missing or of another type. */
const json_value *ortolan_object(const json_value *object, const char *key);
const json_value *ortolan_array(const json_value *object, const char *key, size_t most);
const char *ortolan_string(const json_value *object, const char *key);
/* Leaves `string` as it is if the field is missing. */
bool ortolan_optional_string(const json_value *object, const char *key, const char **string);
bool ortolan_string_list(const json_value *object, const char *key, size_t most,
                         const char **strings, size_t *count);
bool ortolan_integer(const json_value *object, const char *key, int64_t least, int64_t most,
                     int64_t *integer);
/* These change nothing if the field is missing. */
bool ortolan_optional(const json_value *object, const char *key, int64_t least, int64_t most,
                      int64_t *integer);
bool ortolan_flag(const json_value *object, const char *key, bool *flag);
bool ortolan_id(const json_value *object, const char *key, int64_t below, int32_t *id);
bool ortolan_id_list(const json_value *object, const char *key, size_t most, int64_t below,
                     int32_t *ids, size_t *count);
bool ortolan_is_id(const json_value *value, int64_t below);
/* Reject fields that are not in `known`, names separated by spaces. */
bool ortolan_known_keys(const json_value *object, const char *known);
/* Reject a field, or the object itself if `key` is NULL. */
bool ortolan_invalid(const json_value *object, const char *key, const char *expected);

/* --- bundle.c: the folder and its manifest --- */

typedef struct {
  const char *name, *sha256;
  int64_t size;
} ortolan_file;

typedef enum { ORTOLAN_DECODER, ORTOLAN_ENCODER, ORTOLAN_SEQ2SEQ } ortolan_kind;
typedef enum { ORTOLAN_APPEND, ORTOLAN_REPLACE, ORTOLAN_SOURCE } ortolan_update;

typedef struct {
  const char *input, *output;
  size_t rank;
  int64_t shape[ORTOLAN_MAX_RANK]; /* -1 for the axes "capacity" and "source"; "batch" is 1 */
  ONNXTensorElementDataType type;
  ortolan_update update;
  int64_t window; /* tokens that the next one attends to, itself included; 0 for all */
} ortolan_state;

typedef struct {
  const char *file;
  bool takes_one;         /* exactly one new token per call */
  int64_t min_new_tokens; /* calls with fewer use the other graph */
} ortolan_graph;

typedef enum { ORTOLAN_NO_SCORES, ORTOLAN_SOFTMAX, ORTOLAN_SIGMOID } ortolan_scores;

/* How a sound becomes a spectrogram (docs/bundle-format.md); all 0 for other sources. */
typedef struct {
  int64_t rate, window, hop, bins, frames, vectors;
  double highest;
} ortolan_sound;

/* Tokens before the text of a transcription. */
typedef struct {
  const char *codes[ORTOLAN_MAX_LANGUAGES];
  int32_t languages[ORTOLAN_MAX_LANGUAGES], tasks[2], no_timestamps; /* -1 for none */
  int32_t first_timestamp;            /* from here on, tokens are times */
  int32_t usual[ORTOLAN_MAX_OPENING]; /* where no language is named; -1 for the recognized one */
  size_t language_count, usual_count;
} ortolan_speech;

/* The tokens to choose from at the first places of a text. */
typedef struct {
  const int32_t *allowed[ORTOLAN_MAX_OPENING];
  size_t counts[ORTOLAN_MAX_OPENING], count;
  bool is_hidden; /* from the text */
  int32_t first;  /* set to the first token that is generated */
} ortolan_opening;

/* Texts around messages (docs/bundle-format.md). */
typedef struct {
  const char *opening, *between[2], *closing, *system[2], *date; /* the last two may be NULL */
  int trims[3]; /* by ortolan_role: place in the names of chat.c */
  bool system_is_last;
  int32_t ends[ORTOLAN_MAX_STOP_TOKENS], control[ORTOLAN_MAX_SUPPRESSED];
  size_t end_count, control_count;
} ortolan_chat_form;

typedef struct {
  char *folder;
  ortolan_json *manifest; /* owns all strings below */
  ortolan_kind kind;
  ortolan_file files[ORTOLAN_MAX_FILES];
  size_t file_count;
  int64_t context_length, vocab_size, query_heads, source_tokens; /* most tokens of a source */
  ortolan_graph decode, prefill; /* the same graph, or two; an encoder alone is `decode` */
  ortolan_graph encode;
  ortolan_state states[ORTOLAN_MAX_STATES];
  size_t state_count;
  int64_t window; /* the widest of the states; with one, the graphs read `window_starts` */
  int32_t bos, start, forced_first, forced_last; /* -1 for none */
  int32_t eos[ORTOLAN_MAX_STOP_TOKENS], suppressed[ORTOLAN_MAX_SUPPRESSED];
  int32_t suppressed_first[ORTOLAN_MAX_SUPPRESSED];
  size_t eos_count, suppressed_count, suppressed_first_count;
  ortolan_sound sound;
  ortolan_speech speech;
  bool has_chat;
  ortolan_chat_form chat;
  const char *certificate, *tokenizer;          /* NULL for none */
  const char *optimizers[ORTOLAN_MAX_SETTINGS]; /* to disable */
  size_t optimizer_count;
  const char *flash_switch; /* value of the variable, or NULL */
  const json_value *session; /* whose `config_entries` are checked */
  bool has_pairs;
  int64_t output_size, types; /* types: of tokens; 1 if the graph reads none */
  int32_t pad, padding;       /* padding: fills each text up to the context; -1 for none */
  ortolan_scores scores;
  const char **labels, *default_prompt;
  size_t label_count;
  const json_value *prompts; /* prefixes of texts by name, or NULL */
} ortolan_bundle;

/* Read manifest.json and check all files. Close it with ortolan_bundle_close, also after
 * a failure. */
bool ortolan_bundle_open(ortolan_bundle *bundle, const char *folder, bool skip_hashes);
void ortolan_bundle_close(ortolan_bundle *bundle);
/* A listed file, or NULL. */
const ortolan_file *ortolan_bundle_find(const ortolan_bundle *bundle, const char *name);
/* Read a listed file and check its hash; free the result. */
char *ortolan_bundle_read(const ortolan_bundle *bundle, const char *name, size_t *size);

/* Read a source of the kind `audio`, and the tokens of a transcription. */
bool ortolan_sound_read(ortolan_bundle *bundle, const json_value *source);
bool ortolan_speech_read(ortolan_bundle *bundle, const json_value *root);
/* Read the texts around messages from `chat` of a manifest. */
bool ortolan_chat_read(ortolan_bundle *bundle, const json_value *root);

/* --- files.c: plain files of a folder --- */

/* Check the size of a plain file, unless it is -1, and its hash, unless that is NULL. `whole`
 * receives its bytes, to free, and a NUL; it may be NULL. */
bool ortolan_file_read(const char *folder, const ortolan_file *file, int64_t most, char **whole,
                       size_t *size);

/* --- sha256.c: SHA-256 (FIPS 180-4) --- */

typedef struct {
  uint32_t state[8];
  uint64_t bytes;
  unsigned char block[64];
} ortolan_sha256;

void ortolan_sha256_begin(ortolan_sha256 *hash);
void ortolan_sha256_add(ortolan_sha256 *hash, const void *data, size_t size);

/* Write 64 lower-case hexadecimal digits and a NUL. */
void ortolan_sha256_end(ortolan_sha256 *hash, char hex[65]);

/* --- sampling.c: the choice of the next token from a row of logits --- */

typedef struct {
  ortolan_sampling options;
  size_t vocab_size, step;
  uint64_t state[2], increment[2]; /* PCG64, high words first */
  void *memory; /* of all arrays below, of which those that are not needed are NULL */
  double *weights, *sorted;
  float *seen, *generated, *scores, *scratch; /* the first two: occurrences of each token */
  int32_t *ids;
} ortolan_sampler;

/* Release with ortolan_sampler_close, even after a failure. */
bool ortolan_sampler_open(ortolan_sampler *sampler, const ortolan_sampling *options,
                          size_t vocab_size, const int32_t *prompt, size_t count);
void ortolan_sampler_close(ortolan_sampler *sampler);
bool ortolan_sampler_next(ortolan_sampler *sampler, const float *logits, int32_t *token);
/* Count a token that was not chosen by ortolan_sampler_next. */
void ortolan_sampler_record(ortolan_sampler *sampler, int32_t token);

/* --- session.c: sessions of onnxruntime --- */

/* What every call of onnxruntime needs; its memory is that of the CPU. */
typedef struct {
  const OrtApi *ort; /* NULL if it is too old */
  OrtEnv *env;
  OrtMemoryInfo *cpu;
} ortolan_host;

typedef struct {
  const char *const *inputs, *const *outputs; /* names that a graph must have, in any order */
  size_t input_count, output_count;
} ortolan_names;

/* Close it with ortolan_host_close, also after a failure. */
bool ortolan_host_open(ortolan_host *host);
void ortolan_host_close(const ortolan_host *host);
/* Memory of the caller. */
typedef struct {
  void *data;
  ONNXTensorElementDataType type; /* of states, or one of those below */
  size_t rank;
  int64_t shape[ORTOLAN_MAX_RANK];
} ortolan_view;

#define ORTOLAN_INT64 ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64
#define ORTOLAN_INT32 ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32
#define ORTOLAN_FLOAT ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT

size_t ortolan_view_bytes(const ortolan_view *view);
/* Tensors of views; `values` are NULL before, and released even after a failure. */
bool ortolan_tensors(const ortolan_host *host, const ortolan_view *views, size_t count,
                     OrtValue **values);
void ortolan_release(const ortolan_host *host, OrtValue **values, size_t count);
bool ortolan_session_open(const ortolan_host *host, const ortolan_bundle *bundle,
                          const ortolan_graph *graph, const ortolan_names *names, int threads,
                          OrtSession **session);
bool ortolan_run(const ortolan_host *host, OrtSession *session, const ortolan_names *names,
                 const OrtValue *const *inputs, OrtValue **outputs);

/* --- engine.c: calls and states --- */

typedef struct ortolan_engine ortolan_engine;

struct ortolan_model {
  ortolan_bundle bundle;
  ortolan_engine *engine;
  ortolan_tokenizer *tokenizer; /* NULL until it is needed */
};

bool ortolan_check_kind(const ortolan_model *model, ortolan_kind kind);
/* Whether a token ends a sequence. */
bool ortolan_ends(const ortolan_bundle *bundle, const ortolan_options *options, int32_t token);
/* As ortolan_generate, for a model of any kind with a decoder. `opening` and `tokens` may be NULL. */
bool ortolan_continue(ortolan_model *model, const int32_t *prompt, size_t prompt_count,
                      ortolan_opening *opening, const ortolan_options *options, int32_t *tokens,
                      size_t capacity, size_t *count, ortolan_finish *finish);

ortolan_engine *ortolan_engine_open(const ortolan_bundle *bundle, int threads);
void ortolan_engine_close(ortolan_engine *engine);
/* Run the graph of an encoder alone. */
bool ortolan_engine_encode(ortolan_engine *engine, const ortolan_view *inputs, ortolan_view output);
/* Compute the states of a source, `length` vectors, which the decoder then reads. */
bool ortolan_engine_read(ortolan_engine *engine, const ortolan_view *inputs, int64_t length);
/* Forget all tokens, but not the source. */
void ortolan_engine_reset(ortolan_engine *engine);
/* Append tokens in one call, or one by one if the graph takes one. Writes the logits after each of
 * the last tokens, of `rows`, to `logits`. */
bool ortolan_engine_append(ortolan_engine *engine, const int32_t *ids, size_t count, size_t rows,
                           float *logits);
/* Append tokens in chunks, and write the logits after the last of them. */
bool ortolan_engine_prefill(ortolan_engine *engine, const int32_t *ids, size_t count,
                            float *logits);

#endif
