/* Replays the certificate of a bundle: computes its probes, and compares the logits with those that
 * PyTorch computed.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "certificate.bin is little-endian: this file needs a machine that is"
#endif

#define SCHEMA 1
#define MAX_PROBES 1024
#define BLOCK_LOGITS ((size_t)1 << 24) /* logits in memory at once: 64 MiB */
#define TAIL 64                        /* last tokens of a probe, decoded one by one */
#define REST 1e-5                      /* least probability of all tokens that were not kept */
#define TINY 1e-300                    /* avoids log(0) */

typedef struct {
  const char *file;
  ortolan_json *document;
  char *bytes; /* certificate.bin */
  size_t size;
  size_t probes, tokens, kept; /* kept: logits per token */
  const int32_t *lengths, *token_ids, *top_ids;
  const float *top_logits, *log_sum_exp;
  double mean_kl, max_delta, near_tie; /* tolerances; negative or infinite for none */
} certificate;

/* --- reading --- */

/* The name of the file with the arrays: certificate.json becomes certificate.bin. */
static void arrays_name(const char *name, char *result, size_t size) {
  const char *dot = strrchr(name, '.');
  int stem = (int)(dot == NULL ? strlen(name) : (size_t)(dot - name));
  snprintf(result, size, "%.*s.bin", stem, name);
}

/* Find an array, and check its type, its shape and that it is inside of the file. */
static const void *find_array(const certificate *c, const ortolan_fields *in, const char *name,
                              const char *dtype, size_t rows, size_t columns) {
  const json_value *root = ortolan_json_root(c->document);
  const json_value *arrays = ortolan_array(in, root, "", "arrays", 2048), *found = NULL;
  if (arrays == NULL) return NULL;
  for (const json_value *item = arrays->item; item != NULL; item = item->next) {
    const json_value *label = ortolan_json_field(item, "name");
    if (label != NULL && label->type == JSON_STRING && strcmp(label->string, name) == 0)
      found = item;
  }
  char path[64], expected[96];
  snprintf(path, sizeof path, "arrays.%s", name);
  const json_value *type = ortolan_json_field(found, "dtype");
  const json_value *shape = ortolan_json_field(found, "shape");
  const json_value *offset = ortolan_json_field(found, "offset");
  size_t rank = columns > 0 ? 2 : 1, bytes = 4 * rows * (columns > 0 ? columns : 1);
  bool fits = type != NULL && type->type == JSON_STRING && strcmp(type->string, dtype) == 0 &&
              shape != NULL && shape->type == JSON_ARRAY && shape->count == rank &&
              shape->item->is_integer && (uint64_t)shape->item->integer == rows &&
              (rank == 1 || (shape->item->next->is_integer &&
                             (uint64_t)shape->item->next->integer == columns)) &&
              offset != NULL && offset->is_integer && offset->integer >= 0 &&
              offset->integer % 4 == 0 && (uint64_t)offset->integer <= c->size &&
              bytes <= c->size - (size_t)offset->integer;
  if (fits) return c->bytes + offset->integer;
  snprintf(expected, sizeof expected, "%s, %zu by %zu, inside of the file", dtype, rows,
           columns > 0 ? columns : 1);
  ortolan_invalid(in, path, expected);
  return NULL;
}

static bool check_integers(const ortolan_fields *in, const char *name, const int32_t *values,
                           size_t count, int64_t least, int64_t most) {
  for (size_t i = 0; i < count; i++)
    if (values[i] < least || values[i] > most)
      return ortolan_fail(in->error, in->code,
                          "%s: %s must be %lld to %lld (got %ld). Copy the bundle again.",
                          in->file, name, (long long)least, (long long)most, (long)values[i]);
  return true;
}

static bool check_finite(const ortolan_fields *in, const char *name, const float *values,
                         size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!isfinite(values[i])) return ortolan_invalid(in, name, "finite");
  return true;
}

static bool read_arrays(certificate *c, const ortolan_bundle *bundle, const ortolan_fields *in) {
  c->lengths = find_array(c, in, "lengths", "int32", c->probes, 0);
  if (c->lengths == NULL ||
      !check_integers(in, "lengths", c->lengths, c->probes, 1, bundle->context_length))
    return false;
  for (size_t i = 0; i < c->probes; i++) c->tokens += (size_t)c->lengths[i];
  c->token_ids = find_array(c, in, "token_ids", "int32", c->tokens, 0);
  if (c->token_ids == NULL) return false;
  c->top_ids = find_array(c, in, "top_ids", "int32", c->tokens, c->kept);
  if (c->top_ids == NULL) return false;
  c->top_logits = find_array(c, in, "top_logits", "float32", c->tokens, c->kept);
  if (c->top_logits == NULL) return false;
  c->log_sum_exp = find_array(c, in, "log_sum_exp", "float32", c->tokens, 0);
  return c->log_sum_exp != NULL &&
         check_integers(in, "token_ids", c->token_ids, c->tokens, 0, bundle->vocab_size - 1) &&
         check_integers(in, "top_ids", c->top_ids, c->tokens * c->kept, 0,
                        bundle->vocab_size - 1) &&
         check_finite(in, "top_logits", c->top_logits, c->tokens * c->kept) &&
         check_finite(in, "log_sum_exp", c->log_sum_exp, c->tokens);
}

static bool read_tolerances(certificate *c, const ortolan_fields *in) {
  const json_value *root = ortolan_json_root(c->document);
  const json_value *thresholds = ortolan_object(in, root, "", "thresholds");
  if (thresholds == NULL ||
      !ortolan_bound(in, thresholds, "thresholds", "mean_kl", &c->mean_kl) ||
      !ortolan_bound(in, thresholds, "thresholds", "max_abs_delta", &c->max_delta) ||
      !ortolan_bound(in, thresholds, "thresholds", "near_tie", &c->near_tie))
    return false;
  if (c->mean_kl < 0) return ortolan_invalid(in, "thresholds.mean_kl", "a number");
  double largest = 1;
  for (size_t i = 0; i < c->tokens * c->kept; i++)
    largest = fmax(largest, fabs((double)c->top_logits[i]));
  c->max_delta = c->max_delta < 0 ? INFINITY : c->max_delta * largest;
  return true;
}

static bool read_certificate(certificate *c, const ortolan_bundle *bundle, ortolan_error *error) {
  const ortolan_fields in = {.file = c->file, .code = ORTOLAN_CERTIFICATE, .error = error};
  char name[128];
  int64_t schema, kept;
  size_t size;
  if (c->file == NULL)
    return ortolan_fail(error, ORTOLAN_CERTIFICATE,
                        "This bundle has no certificate, so there is nothing to compare with. "
                        "Export the checkpoint with Ortolan to get one.");
  char *text = ortolan_bundle_read(bundle, c->file, &size, error);
  if (text == NULL) return false;
  c->document = ortolan_document(&in, text, size);
  free(text);
  if (c->document == NULL) return false;
  const json_value *root = ortolan_json_root(c->document);
  if (!ortolan_integer(&in, root, "", "schema", 0, INT32_MAX, &schema)) return false;
  if (schema != SCHEMA) return ortolan_invalid(&in, "schema", "1");
  if (!ortolan_integer(&in, root, "", "top_k", 2, bundle->vocab_size, &kept)) return false;
  const json_value *probes = ortolan_array(&in, root, "", "probes", MAX_PROBES);
  if (probes == NULL) return false;
  if (probes->count == 0) return ortolan_invalid(&in, "probes", "at least one probe");
  c->probes = probes->count;
  c->kept = (size_t)kept;
  arrays_name(c->file, name, sizeof name);
  c->bytes = ortolan_bundle_read(bundle, name, &c->size, error);
  return c->bytes != NULL && read_arrays(c, bundle, &in) && read_tolerances(c, &in);
}

/* Find a file that is not as it was exported: low-bit tolerances hide small changes of a graph. */
static const char *changed_file(const certificate *c, const ortolan_bundle *bundle) {
  const char *const graphs[] = {bundle->decode.file, bundle->prefill.file};
  const json_value *root = ortolan_json_root(c->document);
  const json_value *files = ortolan_json_field(ortolan_json_field(root, "surroundings"), "files");
  if (files == NULL) return NULL;
  for (const json_value *item = files->item; item != NULL; item = item->next) {
    const ortolan_file *file = item->key ? ortolan_bundle_find(bundle, item->key) : NULL;
    if (file == NULL) return "manifest.json"; /* it lists another file instead */
    if (item->type != JSON_STRING || strcmp(item->string, file->sha256) != 0) return file->name;
  }
  for (size_t i = 0; i < 2; i++)
    if (ortolan_json_field(files, graphs[i]) == NULL) return graphs[i];
  return NULL;
}

/* --- comparing --- */

static double log_sum_exp(const float *logits, size_t count, size_t *best) {
  double sum = 0;
  *best = 0;
  for (size_t i = 1; i < count; i++)
    if (logits[i] > logits[*best]) *best = i;
  for (size_t i = 0; i < count; i++) sum += exp((double)logits[i] - (double)logits[*best]);
  return logits[*best] + log(sum);
}

/* KL divergence from the kept log probabilities p to q, with all other tokens as one.
 *
 * By the chain rule it is that of (kept, not kept) plus that among the kept tokens. The second part
 * does not need the sum over the vocabulary, whose rounding error would exceed the result.
 */
static double divergence(const float *expected, double expected_sum, const float *logits,
                         double sum, const int32_t *ids, size_t count) {
  double p_kept = 0, q_kept = 0, among = 0;
  for (size_t i = 0; i < count; i++) {
    p_kept += exp(expected[i] - expected_sum);
    q_kept += exp(logits[ids[i]] - sum);
  }
  double p_log = log(fmax(p_kept, TINY)), q_log = log(fmax(q_kept, TINY));
  for (size_t i = 0; i < count; i++) {
    double p = expected[i] - expected_sum - p_log, q = logits[ids[i]] - sum - q_log;
    among += exp(p) * (p - q);
  }
  p_kept = fmin(fmax(p_kept, TINY), 1 - REST);
  q_kept = fmin(fmax(q_kept, TINY), 1 - REST);
  double outside = p_kept * log(p_kept / q_kept) +
                   (1 - p_kept) * log((1 - p_kept) / (1 - q_kept));
  return fmax(outside + p_kept * among, 0);
}

typedef struct {
  ortolan_report *report;
  double sum_kl;
  size_t same, changed;
} totals;

/* Compare the logits after one token, which is number `row` of the certificate. */
static void compare(const certificate *c, size_t row, const float *logits, size_t vocab_size,
                    totals *all) {
  const float *expected = c->top_logits + row * c->kept;
  const int32_t *ids = c->top_ids + row * c->kept;
  ortolan_report *report = all->report;
  report->positions++;
  for (size_t i = 0; i < vocab_size; i++) {
    if (isfinite(logits[i])) continue;
    report->non_finite++;
    return;
  }
  size_t best;
  double sum = log_sum_exp(logits, vocab_size, &best);
  double kl = divergence(expected, (double)c->log_sum_exp[row], logits, sum, ids, c->kept);
  all->sum_kl += kl;
  report->max_kl = fmax(report->max_kl, kl);
  for (size_t i = 0; i < c->kept; i++)
    report->max_abs_delta =
        fmax(report->max_abs_delta, fabs((double)logits[ids[i]] - (double)expected[i]));
  if (best == (size_t)ids[0]) {
    all->same++;
    return;
  }
  all->changed++;
  if (c->near_tie >= 0 && (double)expected[0] - (double)expected[1] <= c->near_tie)
    report->near_ties++;
}

static ortolan_verdict verdict(const certificate *c, const totals *all) {
  const ortolan_report *report = all->report;
  bool failed = report->changed_file != NULL || report->non_finite > 0 || report->max_abs_delta > c->max_delta ||
                (c->near_tie >= 0 && all->changed > report->near_ties) ||
                !(report->mean_kl <= c->mean_kl);
  return failed ? ORTOLAN_FAIL : report->near_ties > 0 ? ORTOLAN_AMBIGUOUS : ORTOLAN_PASS;
}

/* Compute one probe in one call for each block of positions, which bounds memory. */
static bool in_one_call(ortolan_model *model, const certificate *c, size_t start, size_t length,
                        float *logits, size_t block, totals *all, ortolan_error *error) {
  size_t vocab_size = (size_t)model->bundle.vocab_size;
  for (size_t first = 0; first < length; first += block) {
    size_t rows = length - first < block ? length - first : block;
    ortolan_engine_reset(model->engine);
    if (!ortolan_engine_append(model->engine, c->token_ids + start, length, first, rows, logits,
                               error))
      return false;
    for (size_t row = 0; row < rows; row++)
      compare(c, start + first + row, logits + row * vocab_size, vocab_size, all);
  }
  return true;
}

/* Compute the end of one probe token by token. */
static bool one_by_one(ortolan_model *model, const certificate *c, size_t start, size_t length,
                       float *logits, totals *all, ortolan_error *error) {
  size_t first = length > TAIL ? length - TAIL : 0;
  ortolan_engine_reset(model->engine);
  if (!ortolan_engine_prefill(model->engine, c->token_ids + start, first, logits, error))
    return false;
  for (size_t position = first; position < length; position++) {
    if (!ortolan_engine_append(model->engine, c->token_ids + start + position, 1, 0, 1, logits,
                               error))
      return false;
    compare(c, start + position, logits, (size_t)model->bundle.vocab_size, all);
  }
  return true;
}

static bool replay(ortolan_model *model, const certificate *c, totals *all,
                   ortolan_error *error) {
  size_t vocab_size = (size_t)model->bundle.vocab_size, longest = 0, start = 0;
  for (size_t i = 0; i < c->probes; i++)
    if ((size_t)c->lengths[i] > longest) longest = (size_t)c->lengths[i];
  size_t block = BLOCK_LOGITS / vocab_size < longest ? BLOCK_LOGITS / vocab_size : longest;
  float *logits = malloc(block * vocab_size * sizeof *logits);
  bool ok = logits != NULL || ortolan_no_memory(error);
  for (size_t i = 0; ok && i < c->probes; i++) {
    size_t length = (size_t)c->lengths[i];
    ok = in_one_call(model, c, start, length, logits, block, all, error) &&
         one_by_one(model, c, start, length, logits, all, error);
    start += length;
  }
  free(logits);
  return ok;
}

bool ortolan_verify(ortolan_model *model, ortolan_report *report, ortolan_error *error) {
  certificate c = {.file = model->bundle.certificate};
  totals all = {.report = report};
  if (error != NULL) *error = (ortolan_error){.code = ORTOLAN_OK};
  *report = (ortolan_report){.verdict = ORTOLAN_FAIL};
  if (model->bundle.kind != ORTOLAN_DECODER)
    return ortolan_fail(error, ORTOLAN_KIND,
                        "This library verifies decoders only. Use `ortolan verify` for others.");
  bool ok = read_certificate(&c, &model->bundle, error) && replay(model, &c, &all, error);
  if (ok) {
    size_t finite = report->positions - report->non_finite;
    report->mean_kl = all.sum_kl / (double)(finite > 0 ? finite : 1);
    report->mean_kl_limit = c.mean_kl;
    report->top1_agreement = (double)all.same / (double)report->positions;
    report->changed_file = changed_file(&c, &model->bundle);
    report->verdict = verdict(&c, &all);
  }
  ortolan_json_free(c.document);
  free(c.bytes);
  return ok;
}
