/* Conversations: texts around messages, which export has found in the chat template. */
#define _POSIX_C_SOURCE 200809L

#include <time.h>

#include "tokenizer.h"

#define DATE "\xEE\x80\x80" /* U+E000 stands for the date */
#define MAX_MESSAGES 16384

static const char *const roles[] = {"system", "user", "assistant"}; /* by ortolan_role */
enum { WHITE_SPACE, TRAILING_WHITE_SPACE, LEADING_LINES, NONE };
static const char *const trims[] = {"white_space", "trailing_white_space", "leading_lines"};

/* --- reading --- */

static bool read_system(ortolan_chat_form *form, const json_value *chat) {
  static const char *const places[] = {"first", "last"};
  const char *place = "first";
  size_t count = 0;
  if (!ortolan_optional_string(chat, "system_place", &place)) return false;
  form->system_is_last = ortolan_place(places, 2, place) == 1;
  if (ortolan_place(places, 2, place) == 2)
    return ortolan_invalid(chat, "system_place", "first or last");
  return ortolan_json_field(chat, "system") == NULL ||
         (ortolan_string_list(chat, "system", 2, form->system, &count) &&
          (count == 2 || ortolan_invalid(chat, "system", "two texts")));
}

static bool read_trims(ortolan_chat_form *form, const json_value *chat) {
  for (int role = 0; role < 3; role++) form->trims[role] = NONE;
  if (ortolan_json_field(chat, "trims") == NULL) return true;
  const json_value *object = ortolan_object(chat, "trims");
  for (const json_value *item = object == NULL ? NULL : object->item; item; item = item->next) {
    size_t role = ortolan_place(roles, 3, item->key);
    size_t trim = item->type == JSON_STRING ? ortolan_place(trims, NONE, item->string) : NONE;
    if (role == 3 || trim == NONE) return ortolan_invalid(chat, "trims", "trims of roles");
    form->trims[role] = (int)trim;
  }
  return object != NULL;
}

bool ortolan_chat_read(ortolan_bundle *bundle, const json_value *root) {
  const json_value *chat = ortolan_json_field(root, "chat");
  ortolan_chat_form *form = &bundle->chat;
  const char **const texts[] = {&form->opening, &form->between[0], &form->between[1],
                                &form->closing};
  static const char *const names[] = {"opening", "answer", "next", "closing"};
  if (chat == NULL) return true;
  if (ortolan_object(root, "chat") == NULL ||
      !ortolan_known_keys(chat,
                          "opening answer next closing system system_place trims date ends "
                          "control"))
    return false;
  for (int i = 0; i < 4; i++)
    if ((*texts[i] = ortolan_string(chat, names[i])) == NULL) return false;
  bundle->has_chat = true;
  return ortolan_optional_string(chat, "date", &form->date) && read_system(form, chat) &&
         read_trims(form, chat) &&
         ortolan_id_list(chat, "ends", ORTOLAN_MAX_STOP_TOKENS, bundle->vocab_size, form->ends,
                         &form->end_count) &&
         ortolan_id_list(chat, "control", ORTOLAN_MAX_SUPPRESSED, bundle->vocab_size, form->control,
                         &form->control_count);
}

/* --- writing --- */

/* A prompt, and for each of its bytes whether it is of a message. */
typedef struct {
  ortolan_text text, own;
  char date[128];
} prompt;

static void put(prompt *p, const char *bytes, size_t size, char own) {
  ortolan_text_add(&p->text, bytes, size);
  for (size_t i = 0; i < size; i++) ortolan_text_add(&p->own, &own, 1);
}

static void put_form(prompt *p, const char *text) {
  for (const char *mark; (mark = strstr(text, DATE)) != NULL; text = mark + strlen(DATE)) {
    put(p, text, (size_t)(mark - text), 0);
    put(p, p->date, strlen(p->date), 0);
  }
  put(p, text, strlen(text), 0);
}

/* Cut off white space, as Python does. */
static void strip(const char **text, size_t *size, bool start) {
  size_t before;
  do { /* Python counts four more control characters as white space */
    before = *size;
    ortolan_strip(text, size, start, true);
    if (start && *size > 0 && **text >= 0x1C && **text <= 0x1F) (*text)++, (*size)--;
    if (*size > 0 && (*text)[*size - 1] >= 0x1C && (*text)[*size - 1] <= 0x1F) (*size)--;
  } while (*size != before);
}

static void put_message(prompt *p, const ortolan_chat_form *form, const ortolan_message *message) {
  const char *text = message->text;
  size_t size = message->size;
  int trim = form->trims[message->role];
  if (trim == WHITE_SPACE || trim == TRAILING_WHITE_SPACE) strip(&text, &size, trim == WHITE_SPACE);
  for (; trim == LEADING_LINES && size > 0 && *text == '\n'; size--) text++;
  put(p, text, size, 1);
}

static bool check_message(const ortolan_chat_form *form, const ortolan_message *messages,
                          size_t count, size_t place) {
  const ortolan_message *message = &messages[place];
  bool missing, begins = messages[0].role == ORTOLAN_SYSTEM;
  size_t wrong, valid = ortolan_utf8_valid(message->text, message->size, &missing, &wrong);
  ortolan_role expected = (place - begins) % 2 == 0 ? ORTOLAN_USER : ORTOLAN_ASSISTANT;
  if (valid < message->size)
    return ortolan_fail(ORTOLAN_INPUT, "messages[%zu] is not UTF-8 at byte %zu.", place, valid);
  if (place == 0 && begins) {
    if (form->system[0] == NULL)
      return ortolan_fail(ORTOLAN_INPUT,
                          "The chat template of this model accepts no system message. Put it into "
                          "the first message of the user.");
    return message->size > 0 ||
           ortolan_fail(ORTOLAN_INPUT, "The system message is empty. Leave it out.");
  }
  return (message->role == expected && (place + 1 < count || expected == ORTOLAN_USER)) ||
         ortolan_fail(ORTOLAN_INPUT,
                      "messages[%zu]: after a system message, if there is one, messages of the "
                      "user and of the assistant must alternate, and the last one must be the "
                      "user's.",
                      place);
}

static bool write_date(prompt *p, const ortolan_chat_form *form) {
  time_t now = time(NULL);
  struct tm local;
  return form->date == NULL ||
         (localtime_r(&now, &local) != NULL &&
          strftime(p->date, sizeof p->date, form->date, &local) > 0) ||
         ortolan_fail(ORTOLAN_INPUT, "The date of the chat template cannot be written.");
}

static bool check_control(const prompt *p, const ortolan_chat_form *form,
                          const ortolan_tokenizer *tokenizer) {
  char text[64] = "";
  size_t size;
  int32_t token = -1;
  if (!ortolan_tokenizer_control(tokenizer, &p->text, p->own.bytes, form->control,
                                 form->control_count, &token))
    return false;
  if (token < 0) return true;
  ortolan_decode(tokenizer, &token, 1, false, text, sizeof text - 1, &size, NULL);
  return ortolan_fail(ORTOLAN_INPUT,
                      "A message contains the control token `%s`, or joins to it. Remove it from "
                      "the text.",
                      text);
}

static bool write_prompt(ortolan_model *model, const ortolan_message *messages, size_t count,
                         prompt *p) {
  const ortolan_chat_form *form = &model->bundle.chat;
  if (!ortolan_check_kind(model, ORTOLAN_DECODER)) return false;
  const ortolan_tokenizer *tokenizer = ortolan_model_tokenizer(model, NULL);
  if (tokenizer == NULL) return false;
  if (!model->bundle.has_chat)
    return ortolan_fail(ORTOLAN_INPUT,
                        "%s. Write the prompt yourself for ortolan_generate_text, or use Ortolan's "
                        "Python runtime.",
                        ortolan_bundle_find(&model->bundle, "chat_template.jinja") == NULL
                            ? "This bundle has no chat template"
                            : "chat_template.jinja of this bundle does more than put texts around "
                              "messages, or was exported by an older version");
  if (count < 1 || count > MAX_MESSAGES)
    return ortolan_fail(ORTOLAN_INPUT, "messages must be 1 to %d (got %zu).", MAX_MESSAGES, count);
  for (size_t i = 0; i < count; i++)
    if (!check_message(form, messages, count, i)) return false;
  if (!write_date(p, form)) return false;
  const ortolan_message *system = messages[0].role == ORTOLAN_SYSTEM ? messages : NULL;
  size_t first = system != NULL;
  if (system == NULL || form->system_is_last) put_form(p, form->opening);
  for (size_t i = first; i < count; i++) {
    if (i > first) put_form(p, form->between[(i - first + 1) % 2]);
    if (system != NULL && i == (form->system_is_last ? count - 1 : first)) {
      put_form(p, form->system[0]);
      put_message(p, form, system);
      put_form(p, form->system[1]);
    }
    put_message(p, form, &messages[i]);
  }
  put_form(p, form->closing);
  if (p->text.failed || p->own.failed) return ortolan_text_error(&p->text);
  return check_control(p, form, tokenizer);
}

bool ortolan_chat_prompt(ortolan_model *model, const ortolan_message *messages, size_t count,
                         char *text, size_t capacity, size_t *size, ortolan_error *error) {
  prompt p = {.date = ""};
  bool ok = write_prompt(model, messages, count, &p);
  if (ok) ortolan_text_copy(&p.text, text, capacity, size);
  free(p.text.bytes);
  free(p.own.bytes);
  return ortolan_done(ok, error);
}

bool ortolan_chat(ortolan_model *model, const ortolan_message *messages, size_t count,
                  const ortolan_text_options *options, ortolan_finish *finish,
                  ortolan_error *error) {
  prompt p = {.date = ""};
  ortolan_ids ids = {.count = 0};
  bool ok = write_prompt(model, messages, count, &p) &&
            ortolan_tokenizer_encode(model->tokenizer,
                                     (ortolan_input){.text = p.text.bytes, .size = p.text.size},
                                     false, 0, &ids, NULL) &&
            ortolan_complete(model, &ids, NULL, &model->bundle.chat, options, finish);
  free(p.text.bytes);
  free(p.own.bytes);
  free(ids.items);
  return ortolan_done(ok, error);
}
