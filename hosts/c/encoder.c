/* Encoders of texts: vectors, and scores of labels. */
#include <math.h>

#include "tokenizer.h"

#define MAX_ROWS 32     /* inputs of a call; more do not use the cores better */
#define MAX_TOKENS 4096 /* of a call, with padding: bounds memory */

/* --- inputs --- */

/* Token ids of one input, and the types of each if the graph reads them. */
typedef struct {
  ortolan_ids ids, types;
  size_t place; /* among the inputs */
} row;

static int by_length(const void *left, const void *right) {
  const row *a = left, *b = right;
  if (a->ids.count != b->ids.count) return a->ids.count < b->ids.count ? 1 : -1;
  return (a->place > b->place) - (a->place < b->place);
}

/* The prefix that the model was trained with for this use, or NULL after an error. */
static const char *prefix_of(const ortolan_bundle *bundle, const char *name) {
  const char *chosen = name != NULL ? name : bundle->default_prompt;
  if (chosen == NULL || *chosen == 0) return "";
  const json_value *prompt = ortolan_json_field(bundle->prompts, chosen);
  if (prompt != NULL && prompt->type == JSON_STRING) return prompt->string;
  ortolan_fail(ORTOLAN_INPUT,
               "The model has no prompt `%.40s`. Put any other text before the input yourself.",
               chosen);
  return NULL;
}

static bool check_row(const ortolan_bundle *bundle, const row *read, size_t added) {
  if (read->ids.count <= added)
    return ortolan_fail(ORTOLAN_INPUT, "Input %zu has no tokens. Leave it out.", read->place);
  if (read->ids.count > (size_t)bundle->source_tokens)
    return ortolan_fail(ORTOLAN_CONTEXT_LENGTH,
                        "Input %zu has %zu tokens, and the limit is %lld. Split it, or set "
                        "truncate.",
                        read->place, read->ids.count, (long long)bundle->source_tokens);
  int32_t most = 0;
  for (size_t i = 0; i < read->types.count; i++)
    if (read->types.items[i] > most) most = read->types.items[i];
  if (most > 0 && bundle->types == 1 && !bundle->has_pairs)
    return ortolan_fail(ORTOLAN_INPUT, "Input %zu is a pair. Only classifiers read pairs.",
                        read->place);
  return bundle->types == 1 || most < bundle->types ||
         ortolan_fail(ORTOLAN_TOKENIZER,
                      "The tokenizer marks a token with type %ld, and the model has types up to "
                      "%lld. tokenizer.json belongs to another model.",
                      (long)most, (long long)bundle->types - 1);
}

/* Encode an input behind a prefix. */
static bool read_input(const ortolan_bundle *bundle, const ortolan_tokenizer *tokenizer,
                       ortolan_input input, const char *prefix, bool truncate, row *read) {
  ortolan_text whole = {.size = 0};
  ortolan_text_add(&whole, prefix, strlen(prefix));
  ortolan_text_add(&whole, input.text, input.size);
  size_t most = truncate ? (size_t)bundle->source_tokens : 0;
  bool pair = input.second != NULL;
  input.text = whole.bytes, input.size = whole.size;
  bool ok = (!whole.failed || ortolan_text_error(&whole)) &&
            ortolan_tokenizer_encode(tokenizer, input, true, most, &read->ids, &read->types) &&
            check_row(bundle, read, pair ? 0 : ortolan_tokenizer_added(tokenizer, false));
  while (ok && bundle->padding >= 0 && read->ids.count < (size_t)bundle->source_tokens) {
    ortolan_ids_add(&read->ids, bundle->padding);
    ortolan_ids_add(&read->types, 0);
    ok = (!read->ids.failed && !read->types.failed) || ortolan_no_memory();
  }
  free(whole.bytes);
  return ok;
}

/* Token ids of rows that are padded to the length of the first, then their types, in an array to
 * free. */
static int64_t *padded(const ortolan_bundle *bundle, const row *rows, size_t count) {
  size_t width = rows[0].ids.count, tokens = count * width;
  int64_t *ids = malloc((2 * tokens + 1) * sizeof *ids);
  if (ids == NULL) ortolan_no_memory();
  for (size_t i = 0; ids != NULL && i < tokens; i++) {
    const row *read = &rows[i / width];
    bool inside = i % width < read->ids.count;
    ids[i] = inside ? read->ids.items[i % width] : bundle->pad < 0 ? 0 : bundle->pad;
    ids[tokens + i] = inside ? read->types.items[i % width] : 0;
  }
  return ids;
}

bool ortolan_read_source(ortolan_model *model, const char *text, size_t size) {
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  const ortolan_input input = {.text = text, .size = size};
  row read = {.place = 0};
  bool ok = tokenizer != NULL && read_input(&model->bundle, tokenizer, input, "", false, &read);
  int64_t *ids = ok ? padded(&model->bundle, &read, 1) : NULL;
  int32_t length = (int32_t)read.ids.count;
  const ortolan_view inputs[] = {{ids, ORTOLAN_INT64, 2, {1, length}},
                                 {&length, ORTOLAN_INT32, 1, {1}}};
  ok = ids != NULL && ortolan_engine_read(model->engine, inputs, length);
  free(read.ids.items);
  free(read.types.items);
  free(ids);
  return ok;
}

/* --- calls --- */

/* Write the first numbers of a vector. One of length 1 gets length 1 again. */
static bool write_row(const float *from, size_t size, float *to, size_t kept) {
  double whole = 0, part = 0;
  for (size_t k = 0; k < size; k++) {
    if (!isfinite(from[k])) return false;
    whole += (double)from[k] * (double)from[k];
    if (k < kept) part += (double)from[k] * (double)from[k];
  }
  double scale = kept < size && fabs(whole - 1) < 1e-3 && part > 0 ? 1 / sqrt(part) : 1;
  for (size_t k = 0; k < kept; k++) to[k] = (float)(from[k] * scale);
  return true;
}

/* Compute rows in one call, and write `kept` numbers of each output to its place. */
static bool compute(ortolan_model *model, const row *rows, size_t count, float *results,
                    size_t kept) {
  const ortolan_bundle *bundle = &model->bundle;
  size_t width = rows[0].ids.count, size = (size_t)bundle->output_size;
  int64_t *ids = padded(bundle, rows, count), height = (int64_t)count;
  float *batch = ids == NULL ? NULL : malloc(count * size * sizeof *batch);
  int32_t lengths[MAX_ROWS];
  if (batch == NULL) {
    free(ids);
    return ortolan_no_memory();
  }
  for (size_t i = 0; i < count; i++) lengths[i] = (int32_t)rows[i].ids.count;
  const ortolan_view inputs[] = {{ids, ORTOLAN_INT64, 2, {height, (int64_t)width}},
                                 {lengths, ORTOLAN_INT32, 1, {height}},
                                 {ids + count * width, ORTOLAN_INT64, 2, {height, (int64_t)width}}};
  const ortolan_view output = {batch, ORTOLAN_FLOAT, 2, {height, bundle->output_size}};
  bool ok = ortolan_engine_encode(model->engine, inputs, output);
  for (size_t i = 0; ok && i < count; i++)
    ok = write_row(batch + i * size, size, results + rows[i].place * kept, kept) ||
         ortolan_fail(ORTOLAN_NUMERIC,
                      "The output for input %zu is not finite. Verify the bundle on this device.",
                      rows[i].place);
  free(ids);
  free(batch);
  return ok;
}

/* Compute rows in batches of similar length: padding costs as much as text. */
static bool compute_all(ortolan_model *model, row *rows, size_t count, float *results,
                        size_t kept) {
  bool ok = true;
  qsort(rows, count, sizeof *rows, by_length);
  for (size_t start = 0, end; ok && start < count; start = end) {
    size_t longest = rows[start].ids.count;
    for (end = start + 1; end < count && end - start < MAX_ROWS; end++)
      if ((end - start + 1) * longest > MAX_TOKENS || 4 * rows[end].ids.count < 3 * longest) break;
    ok = compute(model, rows + start, end - start, results, kept);
  }
  return ok;
}

static bool check_call(const ortolan_model *model, const ortolan_encoder_options *options,
                       bool wants_labels) {
  bool has_labels = model->bundle.label_count > 0;
  if (model->bundle.kind != ORTOLAN_ENCODER || has_labels != wants_labels)
    return ortolan_fail(ORTOLAN_KIND, "This bundle is not an encoder of texts with %s.",
                        wants_labels ? "labels. Use ortolan_embed for vectors"
                                     : "vectors. Use ortolan_classify for labels");
  return ortolan_check_size("ortolan_encoder_options", options->struct_size, sizeof *options) &&
         (options->dimensions <= (size_t)model->bundle.output_size ||
          ortolan_fail(ORTOLAN_INPUT, "dimensions must be at most %lld (got %zu).",
                       (long long)model->bundle.output_size, options->dimensions));
}

static bool encode_all(ortolan_model *model, const ortolan_input *inputs, size_t count,
                       const ortolan_encoder_options *options, bool wants_labels, float *results) {
  const ortolan_encoder_options defaults = ORTOLAN_ENCODER_OPTIONS;
  const ortolan_bundle *bundle = &model->bundle;
  if (options == NULL) options = &defaults;
  if (!check_call(model, options, wants_labels)) return false;
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  const char *prefix = tokenizer == NULL ? NULL : prefix_of(bundle, options->prompt);
  if (prefix == NULL) return false;
  row *rows = calloc(count + 1, sizeof *rows);
  if (rows == NULL) return ortolan_no_memory();
  size_t kept = wants_labels ? 0 : options->dimensions;
  bool ok = true;
  for (size_t i = 0; ok && i < count; i++) {
    rows[i].place = i;
    ok = read_input(bundle, tokenizer, inputs[i], prefix, options->truncate, &rows[i]);
  }
  ok = ok && compute_all(model, rows, count, results, kept > 0 ? kept : ortolan_output_size(model));
  for (size_t i = 0; i < count; i++) {
    free(rows[i].ids.items);
    free(rows[i].types.items);
  }
  free(rows);
  return ok;
}

size_t ortolan_output_size(const ortolan_model *model) {
  return model->bundle.kind != ORTOLAN_ENCODER ? 0 : (size_t)model->bundle.output_size;
}

const char *ortolan_label(const ortolan_model *model, size_t place) {
  return place < model->bundle.label_count ? model->bundle.labels[place] : NULL;
}

/* Turn the logits of one input into scores. */
static void score(const ortolan_bundle *bundle, float *row) {
  size_t size = bundle->label_count;
  /* a single label competes with its absence, whose logit is 0 */
  double highest = size == 1 ? 0 : row[0], total = 0;
  for (size_t k = 0; k < size; k++) highest = ortolan_larger(highest, row[k]);
  for (size_t k = 0; k < size; k++) total += exp(row[k] - highest);
  if (size == 1) total += exp(-highest);
  for (size_t k = 0; k < size; k++) {
    double value = row[k];
    if (bundle->scores == ORTOLAN_SOFTMAX) value = exp(value - highest) / total;
    if (bundle->scores == ORTOLAN_SIGMOID) value = 1 / (1 + exp(-value));
    row[k] = (float)value;
  }
}

bool ortolan_embed(ortolan_model *model, const ortolan_input *inputs, size_t count,
                   const ortolan_encoder_options *options, float *vectors, ortolan_error *error) {
  return ortolan_done(encode_all(model, inputs, count, options, false, vectors), error);
}

bool ortolan_classify(ortolan_model *model, const ortolan_input *inputs, size_t count,
                      const ortolan_encoder_options *options, float *scores, ortolan_error *error) {
  bool ok = encode_all(model, inputs, count, options, true, scores);
  for (size_t i = 0; ok && i < count; i++)
    score(&model->bundle, scores + i * model->bundle.label_count);
  return ortolan_done(ok, error);
}
