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
#define ORTOLAN_MAX_STOP_TOKENS 64
#define ORTOLAN_MAX_SUPPRESSED 1024
#define ORTOLAN_MAX_LANGUAGES 1000
#define ORTOLAN_MAX_OPENING 68

#if defined(__GNUC__)
#define ORTOLAN_PRINTF(string, first) __attribute__((format(printf, string, first)))
#else
#define ORTOLAN_PRINTF(string, first)
#endif

/* Fill `error` and return false. */
ORTOLAN_PRINTF(3, 4)
bool ortolan_fail(ortolan_error *error, ortolan_code code, const char *format, ...);
bool ortolan_no_memory(ortolan_error *error);
/* Check the struct_size of options, which a macro of this name in capitals sets. */
bool ortolan_check_size(const char *name, size_t size, size_t expected, ortolan_error *error);
/* Place of a name in a list, or `count`. */
size_t ortolan_place(const char *const *names, size_t count, const char *name);

/* --- fields.c: checked fields of a JSON document --- */

typedef struct {
  const char *file; /* named in errors */
  ortolan_code code;
  ortolan_error *error;
} ortolan_fields;

/* Each returns NULL or false, and fills the error, if the field is missing or of another type.
 * `path` names the object in errors: "host.session". */
const json_value *ortolan_object(const ortolan_fields *in, const json_value *object,
                                 const char *path, const char *key);
const json_value *ortolan_array(const ortolan_fields *in, const json_value *object,
                                const char *path, const char *key, size_t most);
const char *ortolan_string(const ortolan_fields *in, const json_value *object, const char *path,
                           const char *key);
bool ortolan_integer(const ortolan_fields *in, const json_value *object, const char *path,
                     const char *key, int64_t least, int64_t most, int64_t *integer);
/* A field that may be null or missing: `number` is then -1. */
bool ortolan_bound(const ortolan_fields *in, const json_value *object, const char *path,
                   const char *key, double *number);
/* A list of ids below `below`, or no such field. */
bool ortolan_id_list(const ortolan_fields *in, const json_value *object, const char *path,
                     const char *key, size_t most, int64_t below, int32_t *ids, size_t *count);
/* Reject fields that are not in `known`, names separated by spaces. */
bool ortolan_known_keys(const ortolan_fields *in, const json_value *object, const char *path,
                        const char *known);
bool ortolan_invalid(const ortolan_fields *in, const char *path, const char *expected);
ortolan_json *ortolan_document(const ortolan_fields *in, const char *text, size_t size);

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
  size_t item_bytes;
  ortolan_update update;
  int64_t window; /* tokens that the next one attends to, itself included; 0 for all */
} ortolan_state;

typedef struct {
  const char *file;
  bool takes_one;         /* exactly one new token per call */
  int64_t min_new_tokens; /* calls with fewer use the other graph */
} ortolan_graph;

typedef struct {
  const char *name, *value;
} ortolan_setting;

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
  int32_t first_timestamp; /* from here on, tokens are times */
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
  bool has_windows; /* the graphs read `window_starts` */
  int32_t bos, start, forced_first, forced_last; /* -1 for none */
  int32_t eos[ORTOLAN_MAX_STOP_TOKENS], suppressed[ORTOLAN_MAX_SUPPRESSED];
  int32_t suppressed_first[ORTOLAN_MAX_SUPPRESSED];
  size_t eos_count, suppressed_count, suppressed_first_count;
  ortolan_sound sound;
  ortolan_speech speech;
  bool has_chat;
  ortolan_chat_form chat;
  const char *certificate, *tokenizer; /* NULL for none */
  const char *optimizers[ORTOLAN_MAX_SETTINGS]; /* to disable */
  ortolan_setting variables[ORTOLAN_MAX_SETTINGS], entries[ORTOLAN_MAX_SETTINGS];
  size_t optimizer_count, variable_count, entry_count;
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
bool ortolan_bundle_open(ortolan_bundle *bundle, const char *folder, bool skip_hashes,
                         ortolan_error *error);
void ortolan_bundle_close(ortolan_bundle *bundle);
/* A listed file, or NULL. */
const ortolan_file *ortolan_bundle_find(const ortolan_bundle *bundle, const char *name);
/* Read a listed file and check its hash; free the result. */
char *ortolan_bundle_read(const ortolan_bundle *bundle, const char *name, size_t *size,
                          ortolan_error *error);

/* Read a source of the kind `audio`, and the tokens of a transcription. */
bool ortolan_sound_read(ortolan_bundle *bundle, const json_value *source, const ortolan_fields *in);
bool ortolan_speech_read(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in);
/* Read the texts around messages from `chat` of a manifest. */
bool ortolan_chat_read(ortolan_bundle *bundle, const json_value *root, const ortolan_fields *in);

/* --- files.c: plain files of a folder --- */

/* Called with each part of a file, in order. */
typedef void (*ortolan_on_bytes)(void *context, const char *bytes, size_t size);

/* Read a plain file of exactly this size. With size -1, of at most `most` bytes. */
bool ortolan_file_scan(const char *folder, const char *name, int64_t size, int64_t most,
                       ortolan_on_bytes on_bytes, void *context, ortolan_error *error);
char *ortolan_file_read(const char *folder, const char *name, int64_t size, int64_t most,
                        size_t *count, ortolan_error *error);
bool ortolan_file_check(const char *folder, const ortolan_file *file, bool skip_hash,
                        ortolan_error *error);

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
                          size_t vocab_size, const int32_t *prompt, size_t count,
                          ortolan_error *error);
void ortolan_sampler_close(ortolan_sampler *sampler);
bool ortolan_sampler_next(ortolan_sampler *sampler, const float *logits, int32_t *token,
                          ortolan_error *error);
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
bool ortolan_host_open(ortolan_host *host, ortolan_error *error);
void ortolan_host_close(const ortolan_host *host);
/* A tensor that uses the caller's memory. */
bool ortolan_tensor(const ortolan_host *host, void *data, size_t bytes, const int64_t *shape,
                    size_t rank, ONNXTensorElementDataType type, OrtValue **value,
                    ortolan_error *error);
bool ortolan_session_open(const ortolan_host *host, const ortolan_bundle *bundle,
                          const ortolan_graph *graph, const ortolan_names *names, int threads,
                          OrtSession **session, ortolan_error *error);
bool ortolan_run(const ortolan_host *host, OrtSession *session, const ortolan_names *names,
                 const OrtValue *const *inputs, OrtValue **outputs, ortolan_error *error);
/* Release the status of a call. If it failed, fill the error: "onnxruntime 1.31.1 <what>: ..." */
bool ortolan_succeeded(const OrtApi *ort, OrtStatus *status, ortolan_code code, const char *what,
                       ortolan_error *error);

/* --- engine.c: calls and states --- */

typedef struct ortolan_engine ortolan_engine;
typedef struct ortolan_encoder ortolan_encoder;

struct ortolan_model {
  ortolan_bundle bundle;
  ortolan_engine *engine;   /* of a decoder, or of an encoder-decoder */
  ortolan_encoder *encoder; /* or this */
  ortolan_tokenizer *tokenizer; /* NULL until it is needed */
};

/* Inputs of an encoder of texts; the last one only if it tells types of tokens apart. */
extern const char *const ortolan_text_inputs[];
ortolan_encoder *ortolan_encoder_open(const ortolan_bundle *bundle, int threads,
                                      ortolan_error *error);
void ortolan_encoder_close(ortolan_encoder *encoder);

bool ortolan_check_kind(const ortolan_model *model, ortolan_kind kind, ortolan_error *error);
/* Whether a token ends a sequence. */
bool ortolan_ends(const ortolan_bundle *bundle, const ortolan_options *options, int32_t token);
/* As ortolan_generate, for a model of any kind with a decoder. `opening` may be NULL. */
bool ortolan_continue(ortolan_model *model, const int32_t *prompt, size_t prompt_count,
                      ortolan_opening *opening, const ortolan_options *options, int32_t *tokens,
                      size_t capacity, size_t *count, ortolan_finish *finish,
                      ortolan_error *error);

ortolan_engine *ortolan_engine_open(const ortolan_bundle *bundle, int threads,
                                    ortolan_error *error);
void ortolan_engine_close(ortolan_engine *engine);
/* Compute the states of a source, which the decoder then reads. */
bool ortolan_engine_read(ortolan_engine *engine, const int32_t *ids, size_t count,
                         ortolan_error *error);
/* The same for a spectrogram, one row a mel frequency. */
bool ortolan_engine_hear(ortolan_engine *engine, float *mel, ortolan_error *error);
/* Forget all tokens, but not the source. */
void ortolan_engine_reset(ortolan_engine *engine);
/* Append tokens in one call, or one by one if the graph takes one. Writes the logits after the
 * tokens [first, first + rows) to `logits`. */
bool ortolan_engine_append(ortolan_engine *engine, const int32_t *ids, size_t count, size_t first,
                           size_t rows, float *logits, ortolan_error *error);
/* Append tokens in chunks, and write the logits after the last of them. */
bool ortolan_engine_prefill(ortolan_engine *engine, const int32_t *ids, size_t count,
                            float *logits, ortolan_error *error);

#endif
