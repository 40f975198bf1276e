/* Byte-pair encoding: merges the pair of the lowest rank until none is left. */
#include "tokenizer.h"

#define MAX_AFFIX_BYTES 64

typedef struct {
  int32_t id, before, after; /* neighbors, or -1 */
  bool merged;               /* into the symbol before it */
} symbol;

typedef struct {
  uint32_t rank, place;
  int32_t id;
} candidate;

typedef struct {
  const ortolan_token_model *model;
  symbol *symbols;
  candidate *heap;
  size_t count, room, heap_count, heap_room;
  bool failed;
} word;

static uint64_t pair_of(int32_t left, int32_t right) {
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* The slot of a pair, or the empty one where it belongs. */
static ortolan_merge *slot_of(const ortolan_token_model *model, uint64_t pair) {
  size_t mask = model->merge_slots - 1, slot = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 29) & mask;
  while (model->merges[slot].rank != UINT32_MAX && model->merges[slot].pair != pair)
    slot = (slot + 1) & mask;
  return &model->merges[slot];
}

static const ortolan_merge *find(const ortolan_token_model *model, int32_t left, int32_t right) {
  const ortolan_merge *merge = slot_of(model, pair_of(left, right));
  return merge->rank == UINT32_MAX ? NULL : merge;
}

/* --- reading --- */

/* The two texts of a merge: ["a", "b"] or "a b". */
static bool read_pair(const json_value *item, const char **left, size_t *left_size,
                      const char **right) {
  const json_value *first = item->item;
  if (item->type == JSON_ARRAY && item->count == 2 && first->type == JSON_STRING &&
      first->next->type == JSON_STRING) {
    *left = first->string, *left_size = strlen(first->string), *right = first->next->string;
    return true;
  }
  const char *space = item->type == JSON_STRING ? strchr(item->string, ' ') : NULL;
  if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
  *left = item->string, *left_size = (size_t)(space - item->string), *right = space + 1;
  return true;
}

static bool add_merge(ortolan_token_model *model, const json_value *item, uint32_t rank,
                      ortolan_text *joined) {
  const char *left, *right;
  size_t left_size;
  if (!read_pair(item, &left, &left_size, &right)) return false;
  joined->size = 0;
  ortolan_text_add(joined, left, left_size);
  ortolan_text_add(joined, right, strlen(right));
  if (joined->failed) return false;
  int32_t first = ortolan_vocabulary_find(&model->vocabulary, left, left_size);
  int32_t second = ortolan_vocabulary_find(&model->vocabulary, right, strlen(right));
  int32_t id = ortolan_vocabulary_find(&model->vocabulary, joined->bytes, joined->size);
  if (first < 0 || second < 0 || id < 0) return false;
  uint64_t pair = pair_of(first, second);
  *slot_of(model, pair) = (ortolan_merge){pair, rank, id};
  return true;
}

bool ortolan_bpe_read(ortolan_token_model *model, const json_value *value) {
  const json_value *merges = ortolan_array(value, "merges", SIZE_MAX);
  const json_value *dropout = ortolan_json_field(value, "dropout");
  const char *prefix = "", *suffix = "";
  if (merges == NULL || !ortolan_optional_string(value, "continuing_subword_prefix", &prefix) ||
      !ortolan_optional_string(value, "end_of_word_suffix", &suffix) ||
      !ortolan_copy(suffix, &model->affix, &model->affix_size))
    return false;
  if (model->affix_size > MAX_AFFIX_BYTES)
    return ortolan_invalid(value, "end_of_word_suffix", "a short text");
  if (*prefix != 0) return ortolan_unknown_part("continuing_subword_prefix of BPE", prefix);
  if (dropout != NULL && dropout->type == JSON_NUMBER && dropout->number != 0)
    return ortolan_unknown_part("model with", "dropout");
  for (model->merge_slots = 64; model->merge_slots < 2 * merges->count;) model->merge_slots *= 2;
  model->merges = malloc(model->merge_slots * sizeof *model->merges);
  if (model->merges == NULL) return ortolan_no_memory();
  for (size_t i = 0; i < model->merge_slots; i++) model->merges[i].rank = UINT32_MAX;
  ortolan_text joined = {.size = 0};
  const json_value *item = merges->item;
  for (uint32_t rank = 0; item != NULL && add_merge(model, item, rank, &joined); rank++)
    item = item->next;
  free(joined.bytes);
  return item == NULL ||
         ortolan_invalid(value, "merges", "pairs of the vocabulary that join to an entry");
}

/* --- encoding --- */

static void add_symbol(word *w, int32_t id) {
  if (!ortolan_grow(&w->symbols, &w->room, w->count, sizeof *w->symbols)) w->failed = true;
  if (w->failed) return;
  int32_t place = (int32_t)w->count;
  w->symbols[w->count++] = (symbol){id, place - 1, place + 1, false};
}

static bool comes_first(const candidate *left, const candidate *right) {
  return left->rank < right->rank || (left->rank == right->rank && left->place < right->place);
}

/* Add the merge of a symbol with the one behind it, if there is one. */
static void push(word *w, int32_t place) {
  int32_t after = place < 0 ? -1 : w->symbols[place].after;
  if (after < 0) return;
  const ortolan_merge *merge = find(w->model, w->symbols[place].id, w->symbols[after].id);
  if (merge == NULL) return;
  if (!ortolan_grow(&w->heap, &w->heap_room, w->heap_count, sizeof *w->heap)) w->failed = true;
  if (w->failed) return;
  candidate new = {merge->rank, (uint32_t)place, merge->id};
  size_t at = w->heap_count++;
  for (; at > 0 && comes_first(&new, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
    w->heap[at] = w->heap[(at - 1) / 2];
  w->heap[at] = new;
}

static candidate pop(word *w) {
  candidate top = w->heap[0], last = w->heap[--w->heap_count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < w->heap_count; at = child) {
    if (child + 1 < w->heap_count && comes_first(&w->heap[child + 1], &w->heap[child])) child++;
    if (!comes_first(&w->heap[child], &last)) break;
    w->heap[at] = w->heap[child];
  }
  w->heap[at] = last;
  return top;
}

static void merge_all(word *w) {
  if (w->count > 0 && !w->failed) w->symbols[w->count - 1].after = -1;
  for (size_t i = 0; i < w->count; i++) push(w, (int32_t)i);
  while (w->heap_count > 0 && !w->failed) {
    candidate top = pop(w);
    symbol *left = &w->symbols[top.place];
    if (left->merged || left->after < 0) continue;
    symbol *right = &w->symbols[left->after];
    const ortolan_merge *merge = find(w->model, left->id, right->id);
    if (merge == NULL || merge->id != top.id) continue; /* one of them has been merged since */
    left->id = top.id;
    right->merged = true;
    left->after = right->after;
    if (right->after >= 0) w->symbols[right->after].before = (int32_t)top.place;
    push(w, left->before);
    push(w, (int32_t)top.place);
  }
}

/* Add the symbols of a character that is not in the vocabulary. */
static void add_unknown(word *w, const char *text, size_t size, bool *waits) {
  bool has_all = w->model->has_bytes;
  for (size_t i = 0; i < size; i++) has_all &= w->model->bytes[(unsigned char)text[i]] >= 0;
  if (has_all) {
    for (size_t i = 0; i < size; i++) add_symbol(w, w->model->bytes[(unsigned char)text[i]]);
    return;
  }
  if (w->model->unknown < 0) return;
  if (*waits && !w->model->fuses_unknown) add_symbol(w, w->model->unknown);
  *waits = true;
}

static void split(word *w, const char *text, size_t size, ortolan_text *last) {
  const ortolan_token_model *model = w->model;
  bool waits = false; /* an unknown token that may grow */
  uint32_t point;
  for (size_t at = 0, length; at < size; at += length) {
    length = ortolan_utf8_read(text + at, &point);
    const char *bytes = text + at;
    size_t count = length;
    if (at + length == size && model->affix_size > 0) {
      ortolan_text_add(last, bytes, length);
      ortolan_text_add(last, model->affix, model->affix_size);
      if (last->failed) return;
      bytes = last->bytes, count = last->size;
    }
    int32_t id = ortolan_vocabulary_find(&model->vocabulary, bytes, count);
    if (id < 0) {
      add_unknown(w, bytes, count, &waits);
      continue;
    }
    if (waits) add_symbol(w, model->unknown);
    waits = false;
    add_symbol(w, id);
  }
  if (waits) add_symbol(w, model->unknown);
}

void ortolan_bpe_encode(const ortolan_token_model *model, const char *text, size_t size,
                        ortolan_ids *ids) {
  word w = {.model = model};
  ortolan_text last = {.size = 0};
  split(&w, text, size, &last);
  merge_all(&w);
  for (size_t i = 0; i < w.count; i++)
    if (!w.symbols[i].merged) ortolan_ids_add(ids, w.symbols[i].id);
  if (w.failed || last.failed) ids->failed = true;
  free(last.bytes);
  free(w.symbols);
  free(w.heap);
}
