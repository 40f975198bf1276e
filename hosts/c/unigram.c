/* Unigram: the pieces of a text with the highest sum of scores. */
#include "tokenizer.h"

#define UNKNOWN_PENALTY 10.0
#define MAX_PIECE_BYTES 4096

bool ortolan_unigram_read(ortolan_token_model *model, const json_value *value) {
  const json_value *pieces = ortolan_array(value, "vocab", 1 << 24);
  if (pieces == NULL) return false;
  model->scores = malloc((pieces->count + 1) * sizeof *model->scores);
  if (model->scores == NULL) return ortolan_no_memory();
  int32_t id = 0;
  for (const json_value *item = pieces->item; item != NULL; item = item->next, id++) {
    const json_value *text = item->item;
    if (item->type != JSON_ARRAY || item->count != 2 || text->type != JSON_STRING ||
        text->next->type != JSON_NUMBER || strlen(text->string) > MAX_PIECE_BYTES)
      return ortolan_invalid(value, "vocab", "pairs of a piece and its score");
    model->scores[id] = text->next->number;
    if (id == 0 || model->scores[id] < model->least) model->least = model->scores[id];
    if (!ortolan_vocabulary_add(&model->vocabulary, text->string, strlen(text->string), id))
      return ortolan_no_memory();
  }
  model->unknown = -1;
  return ortolan_id(value, "unk_id", (int64_t)pieces->count, &model->unknown);
}

typedef struct {
  double score;
  size_t start; /* SIZE_MAX: no path ends here */
  int32_t id;
} node;

static void improve(node *end, double score, size_t start, int32_t id) {
  if (end->start == SIZE_MAX || score > end->score) *end = (node){score, start, id};
}

/* Fill the best path to each offset. Returns false if a character has no piece. */
static bool find_paths(const ortolan_token_model *model, const char *text, size_t size,
                       node *nodes) {
  uint32_t point;
  for (size_t at = 0, width; at < size; at += width) {
    width = ortolan_utf8_read(text + at, &point);
    uint32_t hash = ORTOLAN_HASH;
    bool has_character = false;
    size_t most = model->vocabulary.longest < size - at ? model->vocabulary.longest : size - at;
    for (size_t length = 1; length <= most; length++) {
      hash = ortolan_hash(hash, text + at + length - 1, 1);
      int32_t id = ortolan_vocabulary_lookup(&model->vocabulary, hash, text + at, length);
      if (id < 0) continue;
      improve(&nodes[at + length], model->scores[id] + nodes[at].score, at, id);
      has_character |= length == width;
    }
    if (has_character) continue;
    if (model->unknown < 0) return false;
    improve(&nodes[at + width], model->least - UNKNOWN_PENALTY + nodes[at].score, at,
            model->unknown);
  }
  return true;
}

/* Add the ids of a piece, which may be a run of unknown characters. */
static void add_piece(const ortolan_token_model *model, const char *text, size_t size,
                      ortolan_ids *ids) {
  int32_t id = ortolan_vocabulary_find(&model->vocabulary, text, size);
  bool has_all = id < 0 && model->has_bytes;
  for (size_t i = 0; i < size; i++) has_all = has_all && model->bytes[(unsigned char)text[i]] >= 0;
  for (size_t i = 0; has_all && i < size; i++)
    ortolan_ids_add(ids, model->bytes[(unsigned char)text[i]]);
  if (!has_all) ortolan_ids_add(ids, id >= 0 ? id : model->unknown);
}

bool ortolan_unigram_encode(const ortolan_token_model *model, const char *text, size_t size,
                            ortolan_ids *ids) {
  node *nodes = malloc((size + 1) * sizeof *nodes);
  size_t *ends = malloc((size + 1) * sizeof *ends), count = 0;
  bool fits = nodes != NULL && ends != NULL;
  if (!fits) ids->failed = true, size = 0;
  for (size_t i = 0; fits && i <= size; i++) nodes[i] = (node){0, SIZE_MAX, 0};
  bool ok = find_paths(model, text, size, nodes);
  for (size_t end = size; ok && end > 0; end = nodes[end].start) {
    /* neighboring unknown characters are one piece */
    bool fuses = count > 0 && nodes[end].id == model->unknown &&
                 nodes[ends[count - 1]].id == model->unknown;
    if (!fuses) ends[count++] = end;
  }
  for (size_t start = 0; ok && count > 0; start = ends[--count])
    add_piece(model, text + start, ends[count - 1] - start, ids);
  free(nodes);
  free(ends);
  return ok;
}
