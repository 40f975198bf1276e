/* Calls of the model, and the states of one sequence.
 *
 * States that grow are one buffer, read and written in place. States that are replaced are two
 * buffers that take turns. Both are in the memory of the CPU.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define CAPACITY_STEP 256
#define CHUNK 64             /* tokens of a prompt per call */
#define FEWEST 16            /* tokens of a chunk, however many scores they need */
#define SCORE_BYTES ((int64_t)128 << 20)
#define STEP_INPUTS 4

typedef struct {
  void *buffer;
  OrtValue *value;
} tensor;

struct ortolan_engine {
  const ortolan_bundle *bundle;
  const OrtApi *ort;
  OrtEnv *env;
  OrtMemoryInfo *cpu;
  OrtSession *decode, *prefill; /* the same session for one graph */
  tensor *states[2];            /* the second half of states that grow stays empty */
  int turn;
  int64_t length, capacity;
  const char **inputs, **outputs;
  const OrtValue **fed;
  OrtValue **written;
  size_t input_count;
  int32_t window_start; /* 0: states with a window are as long as the others */
  OrtValue *window_starts;
  int64_t *ids, *positions;
  size_t ids_room, positions_room;
  float *ignored; /* logits that no caller wants */
};

/* --- states --- */

static void release_tensor(const ortolan_engine *engine, tensor *state) {
  engine->ort->ReleaseValue(state->value);
  free(state->buffer);
  *state = (tensor){.buffer = NULL};
}

static bool create_value(const ortolan_engine *engine, void *data, size_t bytes,
                         const int64_t *shape, size_t rank, ONNXTensorElementDataType type,
                         OrtValue **value, ortolan_error *error) {
  const OrtApi *ort = engine->ort;
  return ortolan_succeeded(
      ort, ort->CreateTensorWithDataAsOrtValue(engine->cpu, data, bytes, shape, rank, type, value),
      ORTOLAN_COMPUTE, "cannot use a buffer", error);
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
  return create_value(engine, created->buffer, bytes, shape, state->rank, state->type,
                      &created->value, error);
}

/* Copy the tokens so far, which are rows of some axis in the middle:
 *
 *     (outer, capacity, inner)     outer parts, `inner` bytes per token
 */
static void copy_tokens(const ortolan_state *state, const char *from, int64_t from_capacity,
                        char *to, int64_t to_capacity, int64_t length) {
  size_t outer = 1, inner = state->item_bytes, axis = 0;
  for (; state->shape[axis] >= 0; axis++) outer *= (size_t)state->shape[axis];
  for (axis++; axis < state->rank; axis++) inner *= (size_t)state->shape[axis];
  for (size_t part = 0; part < outer; part++)
    memcpy(to + part * (size_t)to_capacity * inner, from + part * (size_t)from_capacity * inner,
           (size_t)length * inner);
}

/* Move the growing states to buffers of another capacity. On failure nothing has changed. */
static bool resize(ortolan_engine *engine, int64_t capacity, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  tensor *grown = calloc(bundle->state_count + 1, sizeof *grown);
  bool ok = grown != NULL || ortolan_no_memory(error);
  for (size_t i = 0; ok && i < bundle->state_count; i++)
    if (bundle->states[i].update == ORTOLAN_APPEND)
      ok = create_state(engine, &bundle->states[i], capacity, &grown[i], error);
  for (size_t i = 0; grown != NULL && i < bundle->state_count; i++) {
    if (bundle->states[i].update != ORTOLAN_APPEND) continue;
    tensor *old = &engine->states[0][i];
    if (ok) {
      if (engine->length > 0)
        copy_tokens(&bundle->states[i], old->buffer, engine->capacity, grown[i].buffer, capacity,
                    engine->length);
      tensor other = *old;
      *old = grown[i];
      grown[i] = other;
    }
    release_tensor(engine, &grown[i]);
  }
  free(grown);
  if (ok) engine->capacity = capacity;
  return ok;
}

/* Make room for this many tokens. */
static bool reserve(ortolan_engine *engine, int64_t length, ortolan_error *error) {
  int64_t context = engine->bundle->context_length;
  if (length > context)
    return ortolan_fail(error, ORTOLAN_CONTEXT_LENGTH,
                        "The context holds at most %lld tokens (got %lld). Use a shorter prompt "
                        "or fewer new tokens.",
                        (long long)context, (long long)length);
  if (length <= engine->capacity) return true;
  int64_t grown = engine->capacity + engine->capacity / 2;
  if (grown < length) grown = length;
  grown = (grown + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
  return resize(engine, grown < context ? grown : context, error);
}

void ortolan_engine_reset(ortolan_engine *engine) {
  const ortolan_bundle *bundle = engine->bundle;
  engine->length = 0;
  for (size_t i = 0; i < bundle->state_count; i++)
    if (bundle->states[i].update == ORTOLAN_REPLACE)
      memset(engine->states[engine->turn][i].buffer, 0, state_bytes(&bundle->states[i], 0));
}

/* --- opening --- */

static bool allocate(ortolan_engine *engine, ortolan_error *error) {
  static const char *const names[STEP_INPUTS] = {"input_ids", "seqlens_k", "total_sequence_length",
                                                 "logit_positions"};
  const ortolan_bundle *bundle = engine->bundle;
  size_t count = bundle->state_count;
  engine->states[0] = calloc(count + 1, sizeof(tensor));
  engine->states[1] = calloc(count + 1, sizeof(tensor));
  engine->inputs = calloc(count + STEP_INPUTS + 1, sizeof *engine->inputs);
  engine->outputs = calloc(count + 1, sizeof *engine->outputs);
  engine->fed = calloc(count + STEP_INPUTS + 1, sizeof *engine->fed);
  engine->written = calloc(count + 1, sizeof *engine->written);
  engine->ignored = malloc((size_t)bundle->vocab_size * sizeof *engine->ignored);
  if (engine->states[0] == NULL || engine->states[1] == NULL || engine->inputs == NULL ||
      engine->outputs == NULL || engine->fed == NULL || engine->written == NULL ||
      engine->ignored == NULL)
    return ortolan_no_memory(error);
  for (size_t i = 0; i < STEP_INPUTS; i++) engine->inputs[i] = names[i];
  engine->input_count = count + STEP_INPUTS;
  if (bundle->has_windows) {
    const int64_t rows[] = {1};
    if (!create_value(engine, &engine->window_start, sizeof engine->window_start, rows, 1,
                      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, &engine->window_starts, error))
      return false;
    engine->inputs[engine->input_count] = "window_starts";
    engine->fed[engine->input_count++] = engine->window_starts;
  }
  engine->outputs[0] = "logits";
  for (size_t i = 0; i < count; i++) {
    engine->inputs[STEP_INPUTS + i] = bundle->states[i].input;
    engine->outputs[1 + i] = bundle->states[i].output;
    if (bundle->states[i].update != ORTOLAN_REPLACE) continue;
    for (int turn = 0; turn < 2; turn++)
      if (!create_state(engine, &bundle->states[i], 0, &engine->states[turn][i], error))
        return false;
  }
  return reserve(engine, bundle->context_length < CAPACITY_STEP ? bundle->context_length : 1,
                 error);
}

ortolan_engine *ortolan_engine_open(const ortolan_bundle *bundle, int threads,
                                    ortolan_error *error) {
  ortolan_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) {
    ortolan_no_memory(error);
    return NULL;
  }
  engine->bundle = bundle;
  engine->ort = ortolan_runtime(error);
  if (engine->ort == NULL) {
    free(engine);
    return NULL;
  }
  const OrtApi *ort = engine->ort;
  bool two_graphs = strcmp(bundle->prefill.file, bundle->decode.file) != 0;
  bool ok = ortolan_succeeded(ort, ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "ortolan", &engine->env),
                              ORTOLAN_COMPUTE, "cannot start", error) &&
            ortolan_succeeded(
                ort, ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &engine->cpu),
                ORTOLAN_COMPUTE, "cannot start", error) &&
            allocate(engine, error);
  const ortolan_opener opener = {.ort = ort,
                                 .env = engine->env,
                                 .bundle = bundle,
                                 .inputs = engine->inputs,
                                 .outputs = engine->outputs,
                                 .input_count = engine->input_count,
                                 .output_count = bundle->state_count + 1};
  ok = ok && ortolan_session_open(&opener, &bundle->decode, threads, &engine->decode, error) &&
       (!two_graphs ||
        ortolan_session_open(&opener, &bundle->prefill, threads, &engine->prefill, error));
  if (ok && !two_graphs) engine->prefill = engine->decode;
  if (ok) return engine;
  ortolan_engine_close(engine);
  return NULL;
}

void ortolan_engine_close(ortolan_engine *engine) {
  if (engine == NULL) return;
  const OrtApi *ort = engine->ort;
  for (int turn = 0; turn < 2; turn++) {
    for (size_t i = 0; engine->states[turn] != NULL && i < engine->bundle->state_count; i++)
      release_tensor(engine, &engine->states[turn][i]);
    free(engine->states[turn]);
  }
  ort->ReleaseValue(engine->window_starts);
  if (engine->prefill != engine->decode) ort->ReleaseSession(engine->prefill);
  ort->ReleaseSession(engine->decode);
  ort->ReleaseMemoryInfo(engine->cpu);
  ort->ReleaseEnv(engine->env);
  free(engine->inputs);
  free(engine->outputs);
  free(engine->fed);
  free(engine->written);
  free(engine->ids);
  free(engine->positions);
  free(engine->ignored);
  free(engine);
}

/* --- calls --- */

static int64_t *numbers(int64_t **memory, size_t *room, size_t count) {
  if (count > *room) {
    int64_t *larger = realloc(*memory, count * sizeof **memory);
    if (larger == NULL) return NULL;
    *memory = larger;
    *room = count;
  }
  return *memory;
}

/* Bind the states and run a graph; the values of the step inputs are in `fed`. */
static bool run(ortolan_engine *engine, OrtSession *session, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  for (size_t i = 0; i < bundle->state_count; i++) {
    bool replaced = bundle->states[i].update == ORTOLAN_REPLACE;
    int from = replaced ? engine->turn : 0, to = replaced ? 1 - engine->turn : 0;
    engine->fed[STEP_INPUTS + i] = engine->states[from][i].value;
    engine->written[1 + i] = engine->states[to][i].value;
  }
  const OrtApi *ort = engine->ort;
  OrtStatus *status =
      ort->Run(session, NULL, engine->inputs, engine->fed, engine->input_count, engine->outputs,
               bundle->state_count + 1, engine->written);
  return ortolan_succeeded(ort, status, ORTOLAN_COMPUTE, "failed to run the model", error);
}

/* One call of the graph. */
static bool call(ortolan_engine *engine, OrtSession *session, const int32_t *ids, size_t count,
                 size_t first, size_t rows, float *logits, ortolan_error *error) {
  int64_t *wide = numbers(&engine->ids, &engine->ids_room, count);
  int64_t *positions = numbers(&engine->positions, &engine->positions_room, rows);
  if (wide == NULL || positions == NULL) return ortolan_no_memory(error);
  for (size_t i = 0; i < count; i++) wide[i] = ids[i];
  for (size_t i = 0; i < rows; i++) positions[i] = (int64_t)(first + i);
  int32_t total = (int32_t)(engine->length + (int64_t)count), last = total - 1;
  const int64_t vocab_size = engine->bundle->vocab_size;
  const int64_t ids_shape[] = {1, (int64_t)count}, positions_shape[] = {1, (int64_t)rows};
  const int64_t row_shape[] = {1}, logits_shape[] = {1, (int64_t)rows, vocab_size};
  const ONNXTensorElementDataType int32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  const ONNXTensorElementDataType int64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  OrtValue *inputs[STEP_INPUTS] = {NULL}, *output = NULL;
  bool ok =
      create_value(engine, wide, count * sizeof *wide, ids_shape, 2, int64, &inputs[0], error) &&
      create_value(engine, &last, sizeof last, row_shape, 1, int32, &inputs[1], error) &&
      create_value(engine, &total, sizeof total, NULL, 0, int32, &inputs[2], error) &&
      create_value(engine, positions, rows * sizeof *positions, positions_shape, 2, int64,
                   &inputs[3], error) &&
      create_value(engine, logits, rows * (size_t)vocab_size * sizeof *logits, logits_shape, 3,
                   ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &output, error);
  for (size_t i = 0; i < STEP_INPUTS; i++) engine->fed[i] = inputs[i];
  engine->written[0] = output;
  ok = ok && run(engine, session, error);
  for (size_t i = 0; i < STEP_INPUTS; i++) engine->ort->ReleaseValue(inputs[i]);
  engine->ort->ReleaseValue(output);
  if (!ok) return false;
  engine->length = total;
  engine->turn = 1 - engine->turn;
  return true;
}

bool ortolan_engine_append(ortolan_engine *engine, const int32_t *ids, size_t count, size_t first,
                           size_t rows, float *logits, ortolan_error *error) {
  const ortolan_bundle *bundle = engine->bundle;
  bool is_short = (int64_t)count < bundle->prefill.min_new_tokens;
  OrtSession *session = is_short ? engine->decode : engine->prefill;
  if (!reserve(engine, engine->length + (int64_t)count, error)) return false;
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
  if (!reserve(engine, engine->length + (int64_t)count, error)) return false;
  for (size_t start = 0, size; start < count; start += size) {
    size = chunk_tokens(engine);
    if (size > count - start) size = count - start;
    /* every chunk computes one row of logits: some kernels mishandle empty tensors */
    if (!ortolan_engine_append(engine, ids + start, size, size - 1, 1, logits, error)) return false;
  }
  return true;
}
