/* Ortolan bundles in C: open one, chat, generate, translate, transcribe, embed and classify,
 * verify a bundle here.
 *
 * A bundle is a folder written by `ortolan export`. This library reads decoders, encoders of texts,
 * and encoder-decoders of texts and sounds, and computes on the CPU with onnxruntime's C API.
 *
 *     ortolan_error error;
 *     ortolan_model *model = ortolan_open("bundle", NULL, &error);
 *     if (model == NULL) { fprintf(stderr, "%s\n", error.message); return 1; }
 *
 * A model serves one thread at a time. Different models may run in different threads, but open
 * them from one: opening sets environment variables for a moment, and ORT_DISABLE_TELEMETRY, unless
 * it is set, for good.
 */
#ifndef ORTOLAN_H
#define ORTOLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default) /* a shared library shows these names only */
#endif

/* Kinds of failure. ortolan_code_name() returns the code that Ortolan's Python errors carry. */
typedef enum {
  ORTOLAN_OK = 0,
  ORTOLAN_BUNDLE_NOT_FOUND, /* no such folder, or no manifest.json in it */
  ORTOLAN_MANIFEST,         /* manifest.json is malformed, or of another schema */
  ORTOLAN_BUNDLE_FILE,      /* a listed file is missing, resized, altered or not a plain file */
  ORTOLAN_GRAPH,            /* onnxruntime cannot load a graph, or it does not fit the manifest */
  ORTOLAN_KIND,             /* the bundle is of another kind than the call needs */
  ORTOLAN_DEVICE,           /* the bundle was not exported for a CPU */
  ORTOLAN_INPUT,            /* token ids or options are wrong */
  ORTOLAN_CONTEXT_LENGTH,   /* prompt and new tokens exceed the context */
  ORTOLAN_SAMPLING,         /* a sampling option is out of range */
  ORTOLAN_COMPUTE,          /* onnxruntime could not compute the model */
  ORTOLAN_NUMERIC,          /* the model returned logits that are not finite */
  ORTOLAN_CERTIFICATE,      /* the certificate is damaged or of another schema */
  ORTOLAN_MEMORY,           /* out of memory */
  ORTOLAN_TOKENIZER,        /* tokenizer.json is damaged, or cannot read this text or these ids */
} ortolan_code;

typedef struct {
  ortolan_code code;
  char message[512]; /* one or more sentences, UTF-8: what is wrong, then what to do */
} ortolan_error;

const char *ortolan_code_name(ortolan_code code);

/* --- models --- */

typedef struct ortolan_model ortolan_model;

typedef struct {
  int threads;      /* threads within an operator; 0 lets onnxruntime choose */
  bool skip_hashes; /* check only the sizes of files; for bundles that were checked before */
} ortolan_open_options;

/* Open a bundle. `options` may be NULL. Returns NULL and fills `error` on failure. */
ortolan_model *ortolan_open(const char *folder, const ortolan_open_options *options,
                            ortolan_error *error);
void ortolan_close(ortolan_model *model); /* NULL is fine */

int64_t ortolan_vocab_size(const ortolan_model *model);
int64_t ortolan_context_length(const ortolan_model *model);

/* --- generation --- */

/* The options of Sampling in Python. All zeros, with top_p and repetition_penalty at 1, is greedy:
 * use ORTOLAN_GREEDY. */
typedef struct {
  double temperature; /* 0 takes the most probable token */
  int64_t top_k;      /* 0 keeps all */
  double top_p;       /* 1 keeps all */
  double min_p;       /* 0 keeps all */
  double repetition_penalty;
  double presence_penalty;
  double frequency_penalty;
  uint64_t seed; /* at most 2^63 - 1; the same seed draws the same tokens as in Python */
} ortolan_sampling;

#define ORTOLAN_GREEDY {.top_p = 1, .repetition_penalty = 1}

/* Called after each token. Return false to end the sequence there. */
typedef bool (*ortolan_on_token)(int32_t token, void *context);

typedef struct {
  size_t max_new_tokens; /* 0 is no limit, as None in Python: as many as `capacity` and the context
                            allow */
  size_t min_new_tokens; /* EOS is not allowed before this many tokens */
  ortolan_sampling sampling;
  const int32_t *stop_tokens; /* ids that end the sequence, besides the model's EOS */
  size_t stop_count;
  ortolan_on_token on_token; /* may be NULL */
  void *context;             /* passed to on_token */
} ortolan_options;

typedef enum {
  ORTOLAN_STOP,      /* the last token is an EOS or a stop token */
  ORTOLAN_LENGTH,    /* the limit of new tokens is reached */
  ORTOLAN_CANCELLED, /* on_token returned false */
} ortolan_finish;

/* Continue a prompt.
 *
 * An empty prompt stands for the BOS token. `options` may be NULL for greedy decoding. Writes at
 * most `capacity` ids to `tokens` and their number to `count`, the ending token included. `finish`
 * may be NULL. Returns false and fills `error` on failure; `count` tokens are valid even then.
 */
bool ortolan_generate(ortolan_model *model, const int32_t *prompt, size_t prompt_count,
                      const ortolan_options *options, int32_t *tokens, size_t capacity,
                      size_t *count, ortolan_finish *finish, ortolan_error *error);

/* --- text --- */

/* Texts are UTF-8, with their size in bytes; they may contain NUL. A tokenizer does not change once
 * it is open: threads may share it. A stream serves one thread. */
typedef struct ortolan_tokenizer ortolan_tokenizer;
typedef struct ortolan_stream ortolan_stream;

/* Read tokenizer.json from a folder. Returns NULL and fills `error` on failure; a part that this
 * library does not know is named. */
ortolan_tokenizer *ortolan_tokenizer_open(const char *folder, ortolan_error *error);
void ortolan_tokenizer_close(ortolan_tokenizer *tokenizer); /* NULL is fine */

/* Encode a text. `special_tokens` lets the tokenizer add tokens around it. `max_tokens` cuts it at
 * its end; 0 does not. Writes at most `capacity` ids, and the number of all ids to `count`. */
bool ortolan_encode(const ortolan_tokenizer *tokenizer, const char *text, size_t size,
                    bool special_tokens, size_t max_tokens, int32_t *ids, size_t capacity,
                    size_t *count, ortolan_error *error);
/* Encode two texts as one input, with the type of each token. `max_tokens` cuts the longer text
 * first. `types` may be NULL. */
bool ortolan_encode_pair(const ortolan_tokenizer *tokenizer, const char *first, size_t first_size,
                         const char *second, size_t second_size, size_t max_tokens, int32_t *ids,
                         int32_t *types, size_t capacity, size_t *count, ortolan_error *error);
/* Decode ids. Writes at most `capacity` bytes, with NUL behind them if there is room, and the
 * number of all bytes to `size`. */
bool ortolan_decode(const ortolan_tokenizer *tokenizer, const int32_t *ids, size_t count,
                    bool skip_special, char *text, size_t capacity, size_t *size,
                    ortolan_error *error);

/* Decode ids one by one. The pieces join to what ortolan_decode returns, and none ends inside a
 * character. Each text is valid until the next call; ends with NUL; and is often empty. Close a
 * stream before its tokenizer. */
ortolan_stream *ortolan_stream_open(const ortolan_tokenizer *tokenizer, bool skip_special,
                                    ortolan_error *error);
bool ortolan_stream_push(ortolan_stream *stream, int32_t token, const char **text, size_t *size,
                         ortolan_error *error);
/* Return the text that was held back, at the end. */
bool ortolan_stream_flush(ortolan_stream *stream, const char **text, size_t *size,
                          ortolan_error *error);
void ortolan_stream_close(ortolan_stream *stream); /* NULL is fine */

/* The tokenizer of a bundle, which is read at the first call and closed with the model. Returns
 * NULL and fills `error` if there is none, or if this library does not know a part of it. */
const ortolan_tokenizer *ortolan_model_tokenizer(ortolan_model *model, ortolan_error *error);

/* Called with each piece of text: whole characters, with NUL behind them. Return false to end. */
typedef bool (*ortolan_on_text)(const char *text, size_t size, void *context);

typedef struct {
  size_t struct_size;                /* set by ORTOLAN_TEXT_OPTIONS */
  const ortolan_options *generation; /* NULL for greedy decoding; on_token is called as well */
  const char *const *stop_texts;     /* each ends the text before it */
  size_t stop_text_count;
  ortolan_on_text on_text;
  void *context; /* passed to on_text */
} ortolan_text_options;

#define ORTOLAN_TEXT_OPTIONS {.struct_size = sizeof(ortolan_text_options)}

/* Continue a text. The pieces join to the text of the new tokens, without the one that ends it. No
 * piece holds a part of a stop text. `options` and `finish` may be NULL. */
bool ortolan_generate_text(ortolan_model *model, const char *prompt, size_t size,
                           const ortolan_text_options *options, ortolan_finish *finish,
                           ortolan_error *error);

/* --- conversations --- */

typedef enum { ORTOLAN_SYSTEM, ORTOLAN_USER, ORTOLAN_ASSISTANT } ortolan_role;

typedef struct {
  ortolan_role role;
  const char *text; /* UTF-8 */
  size_t size;
} ortolan_message;

/* Answer a conversation with the chat template of the model, and stop at the end of the answer.
 *
 * A conversation is a system message or none, then messages of the user and of the assistant in
 * turn; the last one is the user's. Messages are read during the call only. Text that would become
 * a control token is an error, and so is a bundle whose template does more than put texts around
 * messages. Reasoning is part of the text. `options` and `finish` may be NULL. */
bool ortolan_chat(ortolan_model *model, const ortolan_message *messages, size_t count,
                  const ortolan_text_options *options, ortolan_finish *finish,
                  ortolan_error *error);
/* Write the prompt of a conversation, to be encoded without special tokens: at most `capacity`
 * bytes, with NUL behind them if there is room, and the number of all bytes to `size`. */
bool ortolan_chat_prompt(ortolan_model *model, const ortolan_message *messages, size_t count,
                         char *text, size_t capacity, size_t *size, ortolan_error *error);

/* --- encoder-decoders --- */

/* Generate a text from another. `first` is the text of a token that comes first, such as the target
 * language; NULL for the model's own, if it has one. `options` and `finish` may be NULL. */
bool ortolan_translate(ortolan_model *model, const char *source, size_t size, const char *first,
                       const ortolan_text_options *options, ortolan_finish *finish,
                       ortolan_error *error);

typedef struct {
  size_t struct_size;   /* set by ORTOLAN_SPEECH_OPTIONS */
  const char *language; /* code of the spoken language, such as "de"; NULL to recognize it */
  bool translate;       /* into English */
  const ortolan_text_options *text; /* may be NULL */
} ortolan_speech_options;

#define ORTOLAN_SPEECH_OPTIONS {.struct_size = sizeof(ortolan_speech_options)}

/* Samples per second of what ortolan_transcribe reads; 0 for other bundles. */
int64_t ortolan_sample_rate(const ortolan_model *model);
/* Transcribe one channel of at most one window of the model (Whisper: 30 seconds), without times.
 * Samples are read during the call only. The text may begin with a space. `language` receives the
 * code of the language, valid until ortolan_close, or NULL for a model of one language. `options`,
 * `language` and `finish` may be NULL. */
bool ortolan_transcribe(ortolan_model *model, const float *samples, size_t count,
                        const ortolan_speech_options *options, const char **language,
                        ortolan_finish *finish, ortolan_error *error);

/* --- encoders --- */

/* A text, or a pair of texts if `second` is not NULL. */
typedef struct {
  const char *text;
  size_t size;
  const char *second;
  size_t second_size;
} ortolan_input;

typedef struct {
  size_t struct_size; /* set by ORTOLAN_ENCODER_OPTIONS */
  const char *prompt; /* name of a prompt of the model to put before each text; "" for none,
                         NULL for the model's default */
  bool truncate;      /* cut texts that are too long, at the end */
  size_t dimensions;  /* keep the first numbers of each vector; 0 for all. Vectors of length 1
                         get length 1 again. */
} ortolan_encoder_options;

#define ORTOLAN_ENCODER_OPTIONS {.struct_size = sizeof(ortolan_encoder_options)}

/* Numbers of a vector, or number of labels; 0 for decoders. */
size_t ortolan_output_size(const ortolan_model *model);
/* The name of a label, or NULL. Valid until ortolan_close. */
const char *ortolan_label(const ortolan_model *model, size_t place);

/* Compute a vector for each input: `count` rows of as many numbers as ortolan_output_size, or
 * `dimensions`. Inputs of similar length are computed together. `options` may be NULL. */
bool ortolan_embed(ortolan_model *model, const ortolan_input *inputs, size_t count,
                   const ortolan_encoder_options *options, float *vectors, ortolan_error *error);
/* Compute a score for each label of each input, in the order of ortolan_label: probabilities that
 * add up to 1, one probability per label, or values that the model was trained to predict. */
bool ortolan_classify(ortolan_model *model, const ortolan_input *inputs, size_t count,
                      const ortolan_encoder_options *options, float *scores, ortolan_error *error);

/* --- verification --- */

typedef enum {
  ORTOLAN_PASS,
  ORTOLAN_AMBIGUOUS, /* passes, but another token won where the reference has a near tie */
  ORTOLAN_FAIL,
} ortolan_verdict;

typedef struct {
  ortolan_verdict verdict;
  size_t positions;         /* tokens compared */
  double mean_kl;           /* KL divergence from what PyTorch computed, in nats */
  double max_kl;            /* at one position */
  double max_abs_delta;     /* largest difference of a logit */
  double top1_agreement;    /* share of positions with the same most probable token */
  size_t near_ties;         /* other tokens that won a near tie */
  size_t non_finite;        /* positions with logits that are not finite */
  double mean_kl_limit;     /* tolerance of the certificate */
  const char *changed_file; /* a file that differs from the export, or NULL; valid until
                               ortolan_close */
} ortolan_report;

/* Compute the probes of the certificate here, and compare them with what PyTorch computed.
 *
 * Each probe is computed in one call, and its end once more token by token. A model that differs is
 * no error: it is the verdict ORTOLAN_FAIL. Returns false and fills `error` if the verification
 * could not be carried out.
 */
bool ortolan_verify(ortolan_model *model, ortolan_report *report, ortolan_error *error);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
