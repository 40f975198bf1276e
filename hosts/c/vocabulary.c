#include "tokenizer.h"

#define MAX_ID (1 << 24)
#define MAX_MATCH 4096 /* bytes of an entry that a text begins with: bounds the time of a search \
                        */

uint32_t ortolan_hash(uint32_t hash, const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)bytes[i]) * 16777619u;
  return hash;
}

/* The slot of an entry, or the empty one where it belongs. */
static size_t slot_of(const ortolan_vocabulary *vocabulary, uint32_t hash, const char *bytes,
                      size_t size) {
  size_t slot = (hash ^ hash >> 15) & (vocabulary->slot_count - 1);
  for (;; slot = (slot + 1) & (vocabulary->slot_count - 1)) {
    uint32_t place = vocabulary->slots[slot];
    if (place == 0) return slot;
    const ortolan_entry *entry = &vocabulary->entries[place - 1];
    if (entry->hash == hash && entry->size == size &&
        memcmp(vocabulary->text.bytes + entry->start, bytes, size) == 0)
      return slot;
  }
}

static bool rehash(ortolan_vocabulary *vocabulary) {
  size_t count = vocabulary->slot_count == 0 ? 64 : 2 * vocabulary->slot_count;
  uint32_t *slots = calloc(count, sizeof *slots);
  if (slots == NULL) return false;
  free(vocabulary->slots);
  vocabulary->slots = slots, vocabulary->slot_count = count;
  for (size_t i = 0; i < vocabulary->count; i++) {
    const ortolan_entry *entry = &vocabulary->entries[i];
    slots[slot_of(vocabulary, entry->hash, vocabulary->text.bytes + entry->start, entry->size)] =
        (uint32_t)i + 1;
  }
  return true;
}

static bool name_id(ortolan_vocabulary *vocabulary, int32_t id, size_t place) {
  if ((size_t)id >= vocabulary->id_room) {
    size_t room = ((size_t)id + 1) * 3 / 2 + 64;
    uint32_t *larger = realloc(vocabulary->by_id, room * sizeof *larger);
    if (larger == NULL) return false;
    memset(larger + vocabulary->id_room, 0, (room - vocabulary->id_room) * sizeof *larger);
    vocabulary->by_id = larger, vocabulary->id_room = room;
  }
  if ((size_t)id >= vocabulary->id_count) vocabulary->id_count = (size_t)id + 1;
  vocabulary->by_id[id] = (uint32_t)place + 1;
  return true;
}

bool ortolan_vocabulary_add(ortolan_vocabulary *vocabulary, const char *bytes, size_t size,
                            int32_t id) {
  uint32_t hash = ortolan_hash(ORTOLAN_HASH, bytes, size);
  if (id < 0 || id >= MAX_ID) return false;
  if (2 * (vocabulary->count + 1) > vocabulary->slot_count && !rehash(vocabulary)) return false;
  size_t slot = slot_of(vocabulary, hash, bytes, size);
  uint32_t place = vocabulary->slots[slot];
  if (place > 0) {
    vocabulary->entries[place - 1].id = id;
    return name_id(vocabulary, id, place - 1);
  }
  size_t start = vocabulary->text.size;
  ortolan_text_add(&vocabulary->text, bytes, size);
  if (vocabulary->text.failed || !ortolan_grow(&vocabulary->entries, &vocabulary->room,
                                               vocabulary->count, sizeof *vocabulary->entries))
    return false;
  vocabulary->entries[vocabulary->count] = (ortolan_entry){start, (uint32_t)size, hash, id};
  vocabulary->slots[slot] = (uint32_t)++vocabulary->count;
  if (size > vocabulary->longest) vocabulary->longest = size;
  return name_id(vocabulary, id, vocabulary->count - 1);
}

int32_t ortolan_vocabulary_lookup(const ortolan_vocabulary *vocabulary, uint32_t hash,
                                  const char *bytes, size_t size) {
  if (vocabulary->slot_count == 0) return -1;
  uint32_t place = vocabulary->slots[slot_of(vocabulary, hash, bytes, size)];
  return place == 0 ? -1 : vocabulary->entries[place - 1].id;
}

int32_t ortolan_vocabulary_find(const ortolan_vocabulary *vocabulary, const char *bytes,
                                size_t size) {
  return ortolan_vocabulary_lookup(vocabulary, ortolan_hash(ORTOLAN_HASH, bytes, size), bytes,
                                   size);
}

int32_t ortolan_vocabulary_longest(const ortolan_vocabulary *vocabulary, const char *text,
                                   size_t size, size_t *length) {
  uint32_t hash = ORTOLAN_HASH;
  int32_t best = -1;
  for (size_t i = 1; i <= size && i <= vocabulary->longest && i <= MAX_MATCH; i++) {
    hash = ortolan_hash(hash, text + i - 1, 1);
    int32_t id = ortolan_vocabulary_lookup(vocabulary, hash, text, i);
    if (id >= 0) best = id, *length = i;
  }
  return best;
}

const char *ortolan_vocabulary_text(const ortolan_vocabulary *vocabulary, int32_t id,
                                    size_t *size) {
  if (id < 0 || (size_t)id >= vocabulary->id_count || vocabulary->by_id[id] == 0) return NULL;
  const ortolan_entry *entry = &vocabulary->entries[vocabulary->by_id[id] - 1];
  *size = entry->size;
  return vocabulary->text.bytes + entry->start;
}

void ortolan_vocabulary_free(ortolan_vocabulary *vocabulary) {
  free(vocabulary->text.bytes);
  free(vocabulary->entries);
  free(vocabulary->slots);
  free(vocabulary->by_id);
}
