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
#define CHUNK 64  /* tokens of a prompt per call */
#define FEWEST 16 /* tokens of a chunk, however many scores they need */
#define SCORE_BYTES ((int64_t)128 << 20)
#define STEP_INPUTS 6                           /* at most, besides the states */
#define MOST (ORTOLAN_MAX_STATES + STEP_INPUTS) /* inputs or outputs of a graph */

typedef struct {
  void *buffer;
  OrtValue *value;
  int64_t capacity; /* tokens, if it grows */
} tensor;

struct ortolan_engine {
  const ortolan_bundle *bundle;
  ortolan_host host;
  OrtSession *decode, *prefill, *encode; /* the first two are the same session for one graph */
  tensor states[2][ORTOLAN_MAX_STATES];  /* the second row is only for states that are replaced */
  int turn;
  int64_t length;
  const char *inputs[MOST], *outputs[MOST], *source_outputs[MOST];
  const OrtValue *fed[MOST]; /* step inputs, states */
  OrtValue *written[MOST];
  ortolan_names step, source; /* of the decoder's and the encoder's graph */
  int32_t window_start;       /* tokens before those in states with a window */
  int32_t source_length;
};

/* --- states --- */

static void release_tensor(const ortolan_engine *engine, tensor *state) {
  engine->host.ort->ReleaseValue(state->value);
  free(state->buffer);
  *state = (tensor){.buffer = NULL};
}

/* The memory of a state with this capacity. */
static ortolan_view view_of(const ortolan_state *state, int64_t capacity) {
  ortolan_view view = {.type = state->type, .rank = state->rank};
  for (size_t axis = 0; axis < state->rank; axis++)
    view.shape[axis] = state->shape[axis] < 0 ? capacity : state->shape[axis];
  return view;
}

static bool create_state(const ortolan_engine *engine, const ortolan_state *state, int64_t capacity,
                         tensor *created) {
  ortolan_view view = view_of(state, capacity);
  /* zeros: kernels read beyond the tokens, and NaN would spread */
  *created = (tensor){.buffer = calloc(ortolan_view_bytes(&view), 1), .capacity = capacity};
  view.data = created->buffer;
  return (view.data != NULL || ortolan_no_memory()) &&
         ortolan_tensors(&engine->host, &view, 1, &created->value);
}

/* Copy `count` tokens, which are rows of some axis in the middle, from `first` on to the start:
 *
 *     (outer, capacity, inner)     outer parts, `inner` bytes per token
 */
static void copy_tokens(const ortolan_state *state, const tensor *from, int64_t first, tensor *to,
                        int64_t count) {
  size_t outer = 1;
  const ortolan_view token = view_of(state, 1);
  for (size_t axis = 0; state->shape[axis] >= 0; axis++) outer *= (size_t)state->shape[axis];
  size_t inner = ortolan_view_bytes(&token) / outer;
  for (size_t part = 0; part < outer; part++)
    memmove((char *)to->buffer + part * (size_t)to->capacity * inner,
            (char *)from->buffer + (part * (size_t)from->capacity + (size_t)first) * inner,
            (size_t)count * inner);
}

/* Drop tokens that no window reaches any more, many at once, since that moves the others. */
static void slide(ortolan_engine *engine) {
  const ortolan_bundle *bundle = engine->bundle;
  int64_t kept = bundle->window - 1;
  int64_t dropped = engine->length - engine->window_start - kept;
  if (kept < 0 || dropped < (kept > CHUNK ? kept : CHUNK)) return;
  for (size_t i = 0; i < bundle->state_count; i++) {
    tensor *state = &engine->states[0][i];
    if (bundle->states[i].window > 0) copy_tokens(&bundle->states[i], state, dropped, state, kept);
  }
  engine->window_start += (int32_t)dropped;
}

/* Move a state to a larger buffer, if it has no room for this many tokens. */
static bool grow(ortolan_engine *engine, size_t place, int64_t needed) {
  const ortolan_state *state = &engine->bundle->states[place];
  tensor *old = &engine->states[0][place], grown;
  if (needed <= old->capacity) return true;
  int64_t context = engine->bundle->context_length, capacity = old->capacity * 3 / 2;
  if (capacity < needed) capacity = needed;
  capacity = (capacity + CAPACITY_STEP - 1) / CAPACITY_STEP * CAPACITY_STEP;
  bool ok = create_state(engine, state, capacity < context ? capacity : context, &grown);
  int64_t tokens = engine->length - (state->window > 0 ? engine->window_start : 0);
  if (ok && tokens > 0) copy_tokens(state, old, 0, &grown, tokens);
  release_tensor(engine, ok ? old : &grown);
  if (ok) *old = grown;
  return ok;
}

/* Make room for this many tokens, and in windows for `next`. */
static bool reserve(ortolan_engine *engine, int64_t length, int64_t next) {
  const ortolan_bundle *bundle = engine->bundle;
  bool ok = length <= bundle->context_length ||
            ortolan_fail(ORTOLAN_CONTEXT_LENGTH,
                         "The context holds at most %lld tokens (got %lld). Use a shorter prompt "
                         "or fewer new tokens.",
                         (long long)bundle->context_length, (long long)length);
  for (size_t i = 0; ok && i < bundle->state_count; i++)
    if (bundle->states[i].update == ORTOLAN_APPEND)
      ok = grow(engine, i, bundle->states[i].window > 0 ? next - engine->window_start : length);
  return ok;
}

void ortolan_engine_reset(ortolan_engine *engine) {
  const ortolan_bundle *bundle = engine->bundle;
  engine->length = engine->window_start = 0;
  for (size_t i = 0; i < bundle->state_count; i++) {
    const ortolan_view view = view_of(&bundle->states[i], 0);
    if (bundle->states[i].update == ORTOLAN_REPLACE)
      memset(engine->states[engine->turn][i].buffer, 0, ortolan_view_bytes(&view));
  }
}

/* --- opening --- */

static bool allocate(ortolan_engine *engine) {
  static const char *const texts[] = {"input_ids", "lengths", "token_type_ids"};
  static const char *const sounds[] = {"mel"}, *const outputs[] = {"output"};
  static const char *const names[] = {"input_ids", "seqlens_k", "total_sequence_length",
                                      "logit_positions"};
  const ortolan_bundle *bundle = engine->bundle;
  ortolan_names *step = &engine->step, *source = &engine->source;
  bool hears = bundle->sound.rate > 0;
  *source = (ortolan_names){hears ? sounds : texts, engine->source_outputs, hears ? 1 : 2, 0};
  *step = (ortolan_names){texts, outputs, bundle->types > 1 ? 3 : 2, 1};
  if (bundle->kind == ORTOLAN_ENCODER) return true;
  *step = (ortolan_names){engine->inputs, engine->outputs, 4, 1};
  memcpy(engine->inputs, names, sizeof names);
  engine->outputs[0] = "logits";
  if (bundle->window > 0) engine->inputs[step->input_count++] = "window_starts";
  if (bundle->kind == ORTOLAN_SEQ2SEQ) engine->inputs[step->input_count++] = "source_lengths";
  for (size_t i = 0; i < bundle->state_count; i++) {
    const ortolan_state *state = &bundle->states[i];
    engine->inputs[step->input_count++] = state->input;
    if (state->update == ORTOLAN_SOURCE)
      engine->source_outputs[source->output_count++] = state->output;
    else engine->outputs[step->output_count++] = state->output;
    for (int turn = 0; turn < 2 && state->update == ORTOLAN_REPLACE; turn++)
      if (!create_state(engine, state, 0, &engine->states[turn][i])) return false;
  }
  return reserve(engine, 1, 1);
}

ortolan_engine *ortolan_engine_open(const ortolan_bundle *bundle, int threads) {
  ortolan_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) {
    ortolan_no_memory();
    return NULL;
  }
  engine->bundle = bundle;
  const ortolan_host *host = &engine->host;
  bool two_graphs =
      bundle->prefill.file != NULL && strcmp(bundle->prefill.file, bundle->decode.file) != 0;
  bool ok = ortolan_host_open(&engine->host) && allocate(engine) &&
            ortolan_session_open(host, bundle, &bundle->decode, &engine->step, threads,
                                 &engine->decode) &&
            (!two_graphs || ortolan_session_open(host, bundle, &bundle->prefill, &engine->step,
                                                 threads, &engine->prefill)) &&
            (bundle->kind != ORTOLAN_SEQ2SEQ ||
             ortolan_session_open(host, bundle, &bundle->encode, &engine->source, threads,
                                  &engine->encode));
  if (!two_graphs) engine->prefill = engine->decode;
  if (ok) return engine;
  ortolan_engine_close(engine);
  return NULL;
}

void ortolan_engine_close(ortolan_engine *engine) {
  if (engine == NULL) return;
  const OrtApi *ort = engine->host.ort;
  if (ort != NULL) {
    for (size_t i = 0; i < 2 * engine->bundle->state_count; i++)
      release_tensor(engine, &engine->states[i % 2][i / 2]);
    if (engine->prefill != engine->decode) ort->ReleaseSession(engine->prefill);
    ort->ReleaseSession(engine->decode);
    ort->ReleaseSession(engine->encode);
  }
  ortolan_host_close(&engine->host);
  free(engine);
}

/* --- calls --- */

/* Bind the states and run a graph; the values of the step inputs are in `fed`. */
static bool run(ortolan_engine *engine, OrtSession *session) {
  const ortolan_bundle *bundle = engine->bundle;
  size_t output = 1, first = engine->step.input_count - bundle->state_count;
  for (size_t i = 0; i < bundle->state_count; i++) {
    int turn = bundle->states[i].update == ORTOLAN_REPLACE ? engine->turn : 0;
    int other = bundle->states[i].update == ORTOLAN_REPLACE ? 1 - turn : 0;
    engine->fed[first + i] = engine->states[turn][i].value;
    if (bundle->states[i].update != ORTOLAN_SOURCE)
      engine->written[output++] = engine->states[other][i].value;
  }
  return ortolan_run(&engine->host, session, &engine->step, engine->fed, engine->written);
}

/* One call of the graph. */
static bool call(ortolan_engine *engine, OrtSession *session, const int32_t *ids, size_t count,
                 size_t rows, float *logits) {
  const ortolan_bundle *bundle = engine->bundle;
  int64_t *wide = malloc((count + rows) * sizeof *wide);
  int64_t width = (int64_t)count, height = (int64_t)rows;
  if (wide == NULL) return ortolan_no_memory();
  for (size_t i = 0; i < count; i++) wide[i] = ids[i];
  for (size_t i = 0; i < rows; i++) wide[count + i] = (int64_t)(count - rows + i);
  int32_t total = (int32_t)(engine->length + width), last = total - 1;
  ortolan_view views[STEP_INPUTS + 1] = {{wide, ORTOLAN_INT64, 2, {1, width}},
                                         {&last, ORTOLAN_INT32, 1, {1}},
                                         {&total, ORTOLAN_INT32, 0, {0}},
                                         {wide + count, ORTOLAN_INT64, 2, {1, height}}};
  size_t inputs = 4;
  if (bundle->window > 0)
    views[inputs++] = (ortolan_view){&engine->window_start, ORTOLAN_INT32, 1, {1}};
  if (bundle->kind == ORTOLAN_SEQ2SEQ)
    views[inputs++] = (ortolan_view){&engine->source_length, ORTOLAN_INT32, 1, {1}};
  views[inputs] = (ortolan_view){logits, ORTOLAN_FLOAT, 3, {1, height, bundle->vocab_size}};
  OrtValue *values[STEP_INPUTS + 1] = {NULL};
  bool ok = ortolan_tensors(&engine->host, views, inputs + 1, values);
  for (size_t i = 0; i < inputs; i++) engine->fed[i] = values[i];
  engine->written[0] = values[inputs];
  ok = ok && run(engine, session);
  ortolan_release(&engine->host, values, STEP_INPUTS + 1);
  free(wide);
  if (!ok) return false;
  engine->length = total;
  engine->turn = 1 - engine->turn;
  return true;
}

/* Run a graph without states. */
static bool run_encoder(ortolan_engine *engine, OrtSession *session, const ortolan_names *names,
                        const ortolan_view *inputs, OrtValue **outputs) {
  OrtValue *values[3] = {NULL};
  bool ok = ortolan_tensors(&engine->host, inputs, names->input_count, values) &&
            ortolan_run(&engine->host, session, names, (const OrtValue *const *)values, outputs);
  ortolan_release(&engine->host, values, 3);
  return ok;
}

bool ortolan_engine_read(ortolan_engine *engine, const ortolan_view *inputs, int64_t length) {
  OrtValue *outputs[ORTOLAN_MAX_STATES] = {NULL};
  bool ok = run_encoder(engine, engine->encode, &engine->source, inputs, outputs);
  for (size_t i = 0, output = 0; ok && i < engine->bundle->state_count; i++) {
    if (engine->bundle->states[i].update != ORTOLAN_SOURCE) continue;
    release_tensor(engine, &engine->states[0][i]);
    engine->states[0][i].value = outputs[output++];
  }
  engine->source_length = (int32_t)length;
  return ok;
}

bool ortolan_engine_encode(ortolan_engine *engine, const ortolan_view *inputs,
                           ortolan_view output) {
  OrtValue *result = NULL;
  bool ok = ortolan_tensors(&engine->host, &output, 1, &result) &&
            run_encoder(engine, engine->decode, &engine->step, inputs, &result);
  ortolan_release(&engine->host, &result, 1);
  return ok;
}

bool ortolan_engine_append(ortolan_engine *engine, const int32_t *ids, size_t count, size_t rows,
                           float *logits) {
  const ortolan_bundle *bundle = engine->bundle;
  bool is_short = (int64_t)count < bundle->prefill.min_new_tokens;
  OrtSession *session = is_short ? engine->decode : engine->prefill;
  int64_t length = engine->length + (int64_t)count;
  slide(engine);
  if (!reserve(engine, length, length)) return false;
  if (count == 1 || !(is_short ? bundle->decode : bundle->prefill).takes_one)
    return call(engine, session, ids, count, rows, logits);
  for (size_t i = 0; i < count; i++) {
    /* the first row takes what no caller wants, and then what one does */
    size_t row = i + rows < count ? 0 : i + rows - count;
    if (!call(engine, session, ids + i, 1, 1, logits + row * (size_t)bundle->vocab_size))
      return false;
  }
  return true;
}

bool ortolan_engine_prefill(ortolan_engine *engine, const int32_t *ids, size_t count,
                            float *logits) {
  if (!reserve(engine, engine->length + (int64_t)count, engine->length)) return false;
  int64_t heads = engine->bundle->query_heads > 0 ? engine->bundle->query_heads : 1;
  for (size_t start = 0, size; start < count; start += size) {
    /* attention holds one score per head, new token and token */
    int64_t most = SCORE_BYTES / (4 * (engine->length + 128)) / heads;
    size = (size_t)(most > CHUNK ? CHUNK : most < FEWEST ? FEWEST : most);
    if (size > count - start) size = count - start;
    /* every chunk computes one row of logits: some kernels mishandle empty tensors */
    if (!ortolan_engine_append(engine, ids + start, size, 1, logits)) return false;
  }
  return true;
}
