/* Tokens around a text, or a pair of texts. */
#include "tokenizer.h"

#define FIRST (-1)
#define SECOND (-2)

static bool add(ortolan_template *templates, bool pair, int64_t id, int64_t type) {
  size_t place = templates->counts[pair];
  if (place == ORTOLAN_MAX_TEMPLATE) return false;
  templates->items[pair][place] = (ortolan_template_item){(int32_t)id, (int32_t)type};
  templates->counts[pair]++;
  return true;
}

static bool add_special(ortolan_template *templates, bool pair, const json_value *value,
                        const char *name, int64_t type) {
  const json_value *tokens = ortolan_object(value, "special_tokens");
  const json_value *token = tokens == NULL ? NULL : ortolan_object(tokens, name);
  const json_value *ids = token == NULL ? NULL : ortolan_array(token, "ids", ORTOLAN_MAX_TEMPLATE);
  if (ids == NULL) return false;
  for (const json_value *id = ids->item; id != NULL; id = id->next)
    if (!ortolan_is_id(id, 1 << 24) || !add(templates, pair, id->integer, type))
      return ortolan_invalid(token, "ids", "a list of a few ids");
  return true;
}

/* Read `single` or `pair` of TemplateProcessing. */
static bool read_side(ortolan_template *templates, bool pair, const json_value *value) {
  const json_value *items = ortolan_array(value, pair ? "pair" : "single", ORTOLAN_MAX_TEMPLATE);
  int texts[2] = {0, 0};
  if (items == NULL) return false;
  for (const json_value *item = items->item; item != NULL; item = item->next) {
    const json_value *special = ortolan_json_field(item, "SpecialToken");
    const json_value *piece = special != NULL ? special : ortolan_json_field(item, "Sequence");
    if (piece == NULL) return ortolan_invalid(items, NULL, "a list of tokens and texts");
    const char *id = ortolan_string(piece, "id");
    int64_t type;
    if (id == NULL || !ortolan_integer(piece, "type_id", 0, 1 << 20, &type)) return false;
    if (special != NULL) {
      if (!add_special(templates, pair, value, id, type)) return false;
      continue;
    }
    bool second = strcmp(id, "B") == 0;
    texts[second]++;
    if (!add(templates, pair, second ? SECOND : FIRST, type)) texts[0] = 2;
  }
  return (texts[0] == 1 && texts[1] == pair) ||
         ortolan_invalid(items, NULL, "a list with each text once");
}

static bool read_token(const json_value *value, const char *key, int64_t *id) {
  const json_value *pair = ortolan_array(value, key, 2);
  if (pair == NULL) return false;
  const json_value *number = pair->count == 2 ? pair->item->next : NULL;
  if (number == NULL || !ortolan_is_id(number, 1 << 24))
    return ortolan_invalid(value, key, "a pair of a token and its id");
  *id = number->integer;
  return true;
}

/* BERT: [CLS] A [SEP] B [SEP]. RoBERTa: <s> A </s> </s> B </s>, all of type 0. */
static bool read_fixed(ortolan_template *templates, const json_value *value, bool roberta) {
  int64_t begin = 0, end = 0;
  if (!read_token(value, "cls", &begin) || !read_token(value, "sep", &end)) return false;
  for (int pair = 0; pair < 2; pair++) {
    add(templates, pair, begin, 0);
    add(templates, pair, FIRST, 0);
    add(templates, pair, end, 0);
    if (!pair) continue;
    if (roberta) add(templates, pair, end, 0);
    add(templates, pair, SECOND, !roberta);
    add(templates, pair, end, roberta ? 0 : 1);
  }
  return true;
}

static bool read_part(ortolan_template *templates, const json_value *value, size_t *count) {
  const char *type = ortolan_string(value, "type");
  if (type == NULL) return false;
  if (strcmp(type, "ByteLevel") == 0) return true; /* moves offsets only */
  if (++*count > 1) return ortolan_unknown_part("second post_processor", type);
  if (strcmp(type, "TemplateProcessing") == 0)
    return read_side(templates, false, value) && read_side(templates, true, value);
  bool roberta = strcmp(type, "RobertaProcessing") == 0;
  if (!roberta && strcmp(type, "BertProcessing") != 0)
    return ortolan_unknown_part("post_processor", type);
  return read_fixed(templates, value, roberta);
}

bool ortolan_template_read(ortolan_template *templates, const json_value *root) {
  const json_value *value = ortolan_json_field(root, "post_processor");
  const json_value *list = ortolan_json_field(value, "processors"); /* of a Sequence */
  const json_value *item = list == NULL ? value : list->item;
  size_t count = 0;
  for (; item != NULL; item = list == NULL ? NULL : item->next)
    if (!read_part(templates, item, &count)) return false;
  if (count == 0) {
    add(templates, false, FIRST, 0);
    add(templates, true, FIRST, 0);
    add(templates, true, SECOND, value != NULL);
  }
  return true;
}
