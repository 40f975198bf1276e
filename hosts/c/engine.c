/* Calls of the model, and the states of one sequence.
 *
 * States that grow are one buffer, read and written in place. States that are replaced are two
 * buffers that take turns. Those of a source are what the encoder returned. All are in the memory
 * of the CPU.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define CAPACITY_STEP 256
#define CHUNK 64             /* tokens of a prompt per call */
#define FEWEST 16            /* tokens of a chunk, however many scores they need */
#define SCORE_BYTES ((int64_t)128 << 20)
#define STEP_INPUTS 4
#define MOST (ORTOLAN_MAX_STATES + STEP_INPUTS + 2) /* inputs or outputs of a graph */

typedef struct {
  void *buffer;
  OrtValue *value;
} tensor;

struct ortolan_engine {
  const ortolan_bundle *bundle;
  ortolan_host host;
  OrtSession *decode, *prefill, *encode; /* the first two are the same session for one graph */
  tensor states[2][ORTOLAN_MAX_STATES];  /* the second row is only for states that are replaced */
  int turn;
  int64_t length, capacity[2]; /* of states of all tokens, and of those with a window */
  const char *inputs[MOST], *outputs[MOST], *source_outputs[MOST];
  const OrtValue *fed[MOST]; /* step inputs, numbers, states */
  OrtValue *written[MOST], *numbers[2];
  ortolan_names step, source; /* of the decoder's and the encoder's graph */
  size_t number_count;
  int32_t window_start; /* tokens before those in states with a window */
  int32_t source_length;
  float *ignored; /* logits that no caller wants */
};

/* --- states --- */

static void release_tensor(const ortolan_engine *engine, tensor *state) {
  engine->host.ort->ReleaseValue(state->value);
  free(state->buffer);
  *state = (tensor){.buffer = NULL};
}

static size_t state_bytes(const ortolan_state *state, int64_t capacity) {
  size_t bytes = state->item_bytes;
  for (size_t axis = 0; axis < state->rank; axis++)
    bytes *= (size_t)(state->shape[axis] < 0 ? capacity : state->shape[axis]);
  return bytes;
}

static bool create_state(const ortolan_engine *engine, const ortolan_state *state,
                         int64_t capacity, tensor *created, ortolan_error *error) {
  int64_t shape[ORTOLAN_MAX_RANK];
  size_t bytes = state_bytes(state, capacity);
  for (size_t axis = 0; axis < state->rank; axis++)
    shape[axis] = state->shape[axis] < 0 ? capacity : state->shape[axis];
  created->buffer = calloc(bytes, 1); /* kernels read beyond the tokens: NaN would spread */
  if (created->buffer == NULL) return ortolan_no_memory(error);
  return ortolan_tensor(&engine->host, created->buffer, bytes, shape, state->rank, state->type,
                        &created->value, error);
}

/* Copy `count` tokens, which are rows of some axis in the middle, from `first` on to the start:
 *
 *     (outer, capacity, inner)     outer parts, `inner` bytes per token
 */
static void copy_tokens(const ortolan_state *state, const char *from, int64_t from_capacity,
                        int64_t first, char *to, int64_t to_capacity, int64_t count) {
  size_t outer = 1, inner = state->item_bytes, axis = 0;
  for (; state->shape[axis] >= 0; axis++) outer *= (size_t)state->shape[axis];
  for (axis++; axis < state->rank; axis++) inner *= (size_t)state->shape[axis];
  for (size_t part = 0; part < outer; part++)
    memmove(to + part * (size_t)to_capacity * inner,
            from + (part * (size_t)from_capacity + (size_t)first) * inner, (size_t)count * inner);
}

/* Whether a state grows, and holds all tokens or only those of a window. */
static bool is_among(const ortolan_state *state, bool windows) {
  return state->update == ORTOLAN_APPEND && (state->window > 0) == windows;
}

/* Move the growing states to buffers of another capacity. On failure nothing has changed. */
static bool resize(ortolan_engine *engine, bool windows, int64_t capacity, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  int64_t held = engine->length - (windows ? engine->window_start : 0);
  tensor *grown = calloc(bundle->state_count + 1, sizeof *grown);
  bool ok = grown != NULL || ortolan_no_memory(error);
  for (size_t i = 0; ok && i < bundle->state_count; i++)
    if (is_among(&bundle->states[i], windows))
      ok = create_state(engine, &bundle->states[i], capacity, &grown[i], error);
  for (size_t i = 0; grown != NULL && i < bundle->state_count; i++) {
    if (!is_among(&bundle->states[i], windows)) continue;
    tensor *old = &engine->states[0][i];
    if (ok) {
      if (held > 0)
        copy_tokens(&bundle->states[i], old->buffer, engine->capacity[windows], 0, grown[i].buffer,
                    capacity, held);
      tensor other = *old;
      *old = grown[i];
      grown[i] = other;
    }
    release_tensor(engine, &grown[i]);
  }
  free(grown);
  if (ok) engine->capacity[windows] = capacity;
  return ok;
}

/* Drop tokens that no window reaches any more, many at once, since that moves the others. */
static void slide(ortolan_engine *engine) {
  const ortolan_bundle *bundle = engine->bundle;
  int64_t kept = 0;
  for (size_t i = 0; i < bundle->state_count; i++)
    if (bundle->states[i].window > kept) kept = bundle->states[i].window;
  int64_t dropped = engine->length - engine->window_start - --kept;
  if (kept < 0 || dropped < (kept > CHUNK ? kept : CHUNK)) return;
  for (size_t i = 0; i < bundle->state_count; i++)
    if (is_among(&bundle->states[i], true))
      copy_tokens(&bundle->states[i], engine->states[0][i].buffer, engine->capacity[1], dropped,
                  engine->states[0][i].buffer, engine->capacity[1], kept);
  engine->window_start += (int32_t)dropped;
}

/* Make room for this many tokens, and in windows for `next`. */
static bool reserve(ortolan_engine *engine, int64_t length, int64_t next, ortolan_error *error) {
  int64_t context = engine->bundle->context_length;
  if (length > context)
    return ortolan_fail(error, ORTOLAN_CONTEXT_LENGTH,
                        "The context holds at most %lld tokens (got %lld). Use a shorter prompt "
                        "or fewer new tokens.",
                        (long long)context, (long long)length);
  for (int windows = 0; windows < 2; windows++) {
    int64_t needed = windows ? next - engine->window_start : length;
    int64_t grown = engine->capacity[windows] + engine->capacity[windows] / 2;
    if (needed <= engine->capacity[windows]) continue;
    if (grown < needed) grown = needed;
    grown = (grown + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
    if (!resize(engine, windows, grown < context ? grown : context, error)) return false;
  }
  return true;
}

void ortolan_engine_reset(ortolan_engine *engine) {
  const ortolan_bundle *bundle = engine->bundle;
  engine->length = engine->window_start = 0;
  for (size_t i = 0; i < bundle->state_count; i++)
    if (bundle->states[i].update == ORTOLAN_REPLACE)
      memset(engine->states[engine->turn][i].buffer, 0, state_bytes(&bundle->states[i], 0));
}

/* --- opening --- */

/* Name an input of one number, which is read where it is at every call. */
static bool add_number(ortolan_engine *engine, const char *name, int32_t *number,
                       ortolan_error *error) {
  const int64_t rows[] = {1};
  OrtValue **value = &engine->numbers[engine->number_count++];
  if (!ortolan_tensor(&engine->host, number, sizeof *number, rows, 1,
                      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, value, error))
    return false;
  engine->inputs[engine->step.input_count] = name;
  engine->fed[engine->step.input_count++] = *value;
  return true;
}

static bool allocate(ortolan_engine *engine, ortolan_error *error) {
  static const char *const sound_inputs[] = {"mel"};
  static const char *const names[STEP_INPUTS] = {"input_ids", "seqlens_k", "total_sequence_length",
                                                 "logit_positions"};
  const ortolan_bundle *bundle = engine->bundle;
  ortolan_names *step = &engine->step, *source = &engine->source;
  *step = (ortolan_names){engine->inputs, engine->outputs, STEP_INPUTS, 1};
  *source = (ortolan_names){ortolan_text_inputs, engine->source_outputs, 2, 0};
  if (bundle->sound.rate > 0) source->inputs = sound_inputs, source->input_count = 1;
  memcpy(engine->inputs, names, sizeof names);
  engine->outputs[0] = "logits";
  engine->ignored = malloc((size_t)bundle->vocab_size * sizeof *engine->ignored);
  if (engine->ignored == NULL) return ortolan_no_memory(error);
  if ((bundle->has_windows && !add_number(engine, "window_starts", &engine->window_start, error)) ||
      (bundle->kind == ORTOLAN_SEQ2SEQ &&
       !add_number(engine, "source_lengths", &engine->source_length, error)))
    return false;
  for (size_t i = 0; i < bundle->state_count; i++) {
    const ortolan_state *state = &bundle->states[i];
    engine->inputs[step->input_count++] = state->input;
    if (state->update == ORTOLAN_SOURCE)
      engine->source_outputs[source->output_count++] = state->output;
    else
      engine->outputs[step->output_count++] = state->output;
    for (int turn = 0; turn < 2 && state->update == ORTOLAN_REPLACE; turn++)
      if (!create_state(engine, state, 0, &engine->states[turn][i], error)) return false;
  }
  return reserve(engine, 1, 1, error);
}

ortolan_engine *ortolan_engine_open(const ortolan_bundle *bundle, int threads,
                                    ortolan_error *error) {
  ortolan_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) {
    ortolan_no_memory(error);
    return NULL;
  }
  engine->bundle = bundle;
  const ortolan_host *host = &engine->host;
  bool two_graphs = strcmp(bundle->prefill.file, bundle->decode.file) != 0;
  bool ok = ortolan_host_open(&engine->host, error) && allocate(engine, error) &&
            ortolan_session_open(host, bundle, &bundle->decode, &engine->step, threads,
                                 &engine->decode, error) &&
            (!two_graphs || ortolan_session_open(host, bundle, &bundle->prefill, &engine->step,
                                                 threads, &engine->prefill, error)) &&
            (bundle->kind != ORTOLAN_SEQ2SEQ ||
             ortolan_session_open(host, bundle, &bundle->encode, &engine->source, threads,
                                  &engine->encode, error));
  if (!two_graphs) engine->prefill = engine->decode;
  if (ok) return engine;
  ortolan_engine_close(engine);
  return NULL;
}

void ortolan_engine_close(ortolan_engine *engine) {
  if (engine == NULL) return;
  const OrtApi *ort = engine->host.ort;
  for (size_t i = 0; ort != NULL && i < engine->bundle->state_count; i++) {
    release_tensor(engine, &engine->states[0][i]);
    release_tensor(engine, &engine->states[1][i]);
  }
  if (ort != NULL) {
    for (size_t i = 0; i < engine->number_count; i++) ort->ReleaseValue(engine->numbers[i]);
    if (engine->prefill != engine->decode) ort->ReleaseSession(engine->prefill);
    ort->ReleaseSession(engine->decode);
    ort->ReleaseSession(engine->encode);
  }
  ortolan_host_close(&engine->host);
  free(engine->ignored);
  free(engine);
}

/* --- calls --- */

/* Bind the states and run a graph; the values of the step inputs are in `fed`. */
static bool run(ortolan_engine *engine, OrtSession *session, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  size_t output = 1, first = engine->step.input_count - bundle->state_count;
  for (size_t i = 0; i < bundle->state_count; i++) {
    int turn = bundle->states[i].update == ORTOLAN_REPLACE ? engine->turn : 0;
    int other = bundle->states[i].update == ORTOLAN_REPLACE ? 1 - turn : 0;
    engine->fed[first + i] = engine->states[turn][i].value;
    if (bundle->states[i].update != ORTOLAN_SOURCE)
      engine->written[output++] = engine->states[other][i].value;
  }
  return ortolan_run(&engine->host, session, &engine->step, engine->fed, engine->written, error);
}

/* Write ids, and the positions from `first` on, into an array to free. */
static int64_t *widened(const int32_t *ids, size_t count, size_t first, size_t rows,
                        ortolan_error *error) {
  int64_t *wide = malloc((count + rows) * sizeof *wide);
  if (wide == NULL) ortolan_no_memory(error);
  for (size_t i = 0; wide != NULL && i < count; i++) wide[i] = ids[i];
  for (size_t i = 0; wide != NULL && i < rows; i++) wide[count + i] = (int64_t)(first + i);
  return wide;
}

/* One call of the graph. */
static bool call(ortolan_engine *engine, OrtSession *session, const int32_t *ids, size_t count,
                 size_t first, size_t rows, float *logits, ortolan_error *error) {
  const ortolan_host *host = &engine->host;
  int64_t *wide = widened(ids, count, first, rows, error);
  int32_t total = (int32_t)(engine->length + (int64_t)count), last = total - 1;
  const int64_t vocab_size = engine->bundle->vocab_size;
  const int64_t ids_shape[] = {1, (int64_t)count}, positions_shape[] = {1, (int64_t)rows};
  const int64_t row_shape[] = {1}, logits_shape[] = {1, (int64_t)rows, vocab_size};
  const ONNXTensorElementDataType int32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  const ONNXTensorElementDataType int64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  OrtValue *inputs[STEP_INPUTS] = {NULL}, *output = NULL;
  bool ok =
      wide != NULL &&
      ortolan_tensor(host, wide, count * sizeof *wide, ids_shape, 2, int64, &inputs[0], error) &&
      ortolan_tensor(host, &last, sizeof last, row_shape, 1, int32, &inputs[1], error) &&
      ortolan_tensor(host, &total, sizeof total, NULL, 0, int32, &inputs[2], error) &&
      ortolan_tensor(host, wide + count, rows * sizeof *wide, positions_shape, 2, int64,
                     &inputs[3], error) &&
      ortolan_tensor(host, logits, rows * (size_t)vocab_size * sizeof *logits, logits_shape, 3,
                     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &output, error);
  for (size_t i = 0; i < STEP_INPUTS; i++) engine->fed[i] = inputs[i];
  engine->written[0] = output;
  ok = ok && run(engine, session, error);
  for (size_t i = 0; i < STEP_INPUTS; i++) host->ort->ReleaseValue(inputs[i]);
  host->ort->ReleaseValue(output);
  free(wide);
  if (!ok) return false;
  engine->length = total;
  engine->turn = 1 - engine->turn;
  return true;
}

/* Run the encoder, and keep the states of the source. Releases the inputs. */
static bool encode(ortolan_engine *engine, OrtValue *const *inputs, size_t length, bool ok,
                   ortolan_error *error) {
  const ortolan_host *host = &engine->host;
  OrtValue *outputs[ORTOLAN_MAX_STATES] = {NULL};
  ok = ok && ortolan_run(host, engine->encode, &engine->source, (const OrtValue *const *)inputs,
                         outputs, error);
  for (size_t i = 0, output = 0; ok && i < engine->bundle->state_count; i++) {
    if (engine->bundle->states[i].update != ORTOLAN_SOURCE) continue;
    release_tensor(engine, &engine->states[0][i]);
    engine->states[0][i].value = outputs[output++];
  }
  engine->source_length = (int32_t)length;
  for (size_t i = 0; i < 2; i++) host->ort->ReleaseValue(inputs[i]);
  return ok;
}

bool ortolan_engine_read(ortolan_engine *engine, const int32_t *ids, size_t count,
                         ortolan_error *error) {
  const ortolan_host *host = &engine->host;
  const int64_t shape[] = {1, (int64_t)count}, row_shape[] = {1};
  int64_t *wide = widened(ids, count, 0, 0, error);
  int32_t length = (int32_t)count;
  OrtValue *inputs[2] = {NULL};
  bool ok = wide != NULL &&
            ortolan_tensor(host, wide, count * sizeof *wide, shape, 2,
                           ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &inputs[0], error) &&
            ortolan_tensor(host, &length, sizeof length, row_shape, 1,
                           ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &inputs[1], error);
  ok = encode(engine, inputs, count, ok, error);
  free(wide);
  return ok;
}

bool ortolan_engine_hear(ortolan_engine *engine, float *mel, ortolan_error *error) {
  const ortolan_sound *sound = &engine->bundle->sound;
  const int64_t shape[] = {1, sound->bins, sound->frames};
  OrtValue *inputs[2] = {NULL};
  bool ok = ortolan_tensor(&engine->host, mel, (size_t)(sound->bins * sound->frames) * sizeof *mel,
                           shape, 3, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &inputs[0], error);
  return encode(engine, inputs, (size_t)sound->vectors, ok, error);
}

bool ortolan_engine_append(ortolan_engine *engine, const int32_t *ids, size_t count, size_t first,
                           size_t rows, float *logits, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  bool is_short = (int64_t)count < bundle->prefill.min_new_tokens;
  OrtSession *session = is_short ? engine->decode : engine->prefill;
  int64_t length = engine->length + (int64_t)count;
  slide(engine);
  if (!reserve(engine, length, length, error)) return false;
  if (count == 1 || !(is_short ? bundle->decode : bundle->prefill).takes_one)
    return call(engine, session, ids, count, first, rows, logits, error);
  for (size_t i = 0; i < count; i++) {
    bool wanted = i >= first && i < first + rows;
    float *row = wanted ? logits + (i - first) * (size_t)bundle->vocab_size : engine->ignored;
    if (!call(engine, session, ids + i, 1, 0, 1, row, error)) return false;
  }
  return true;
}

/* Most tokens of the next chunk: attention holds one score per head, new token and token. */
static size_t chunk_tokens(const ortolan_engine *engine) {
  int64_t heads = engine->bundle->query_heads > 0 ? engine->bundle->query_heads : 1;
  int64_t most = SCORE_BYTES / (4 * (engine->length + 128)) / heads;
  if (most > CHUNK) most = CHUNK;
  return (size_t)(most < FEWEST ? FEWEST : most);
}

bool ortolan_engine_prefill(ortolan_engine *engine, const int32_t *ids, size_t count,
                            float *logits, ortolan_error *error) {
  if (!reserve(engine, engine->length + (int64_t)count, engine->length, error)) return false;
  for (size_t start = 0, size; start < count; start += size) {
    size = chunk_tokens(engine);
    if (size > count - start) size = count - start;
    /* every chunk computes one row of logits: some kernels mishandle empty tensors */
    if (!ortolan_engine_append(engine, ids + start, size, size - 1, 1, logits, error)) return false;
  }
  return true;
}
