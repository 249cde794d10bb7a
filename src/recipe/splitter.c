/* Output of a chat turn, token by token: reasoning and content. */
#include "recipe/recipe.h"

#include <string.h>

void di_splitter_init(di_splitter *splitter, const di_recipe *recipe, di_answer_start start) {
    *splitter = (di_splitter){
        .think_end = recipe->ids[DI_CONTROL_THINK_END],
        .reasoning = start == DI_START_REASONING || start == DI_START_REASONING_CONTINUED,
        .leading = start == DI_START_REASONING || start == DI_START_ANSWER,
    };
}

static void put_held(di_splitter *splitter, di_text *reasoning) {
    for (; splitter->held; splitter->held--) di_text_putc(reasoning, '\n');
}

static void put(di_splitter *splitter, const char *text, size_t length, di_text *reasoning, di_text *content) {
    while (splitter->leading && length && *text == '\n') {
        text++;
        length--;
    }
    if (!length) return;
    splitter->leading = false;
    if (!splitter->reasoning) {
        di_text_append(content, text, length);
        return;
    }
    size_t end = length;
    while (end && text[end - 1] == '\n') end--;
    if (end) {
        put_held(splitter, reasoning);
        di_text_append(reasoning, text, end);
    }
    splitter->held += length - end;
}

void di_splitter_push(di_splitter *splitter, int32_t token_id, const char *text, size_t length, di_text *reasoning,
                      di_text *content) {
    if (splitter->reasoning) splitter->reasoning_tokens++;
    if (token_id != splitter->think_end) {
        put(splitter, text, length, reasoning, content);
        return;
    }
    /* What stands before the mark's own text was held back by the detokeniser until now. */
    const char *mark = di_control_text(DI_CONTROL_THINK_END);
    size_t mark_length = strlen(mark);
    if (length >= mark_length && memcmp(text + length - mark_length, mark, mark_length) == 0) length -= mark_length;
    put(splitter, text, length, reasoning, content);
    splitter->leading = splitter->reasoning; /* a stray mark in an answer is dropped */
    splitter->reasoning = false;
    splitter->held = 0;
}

void di_splitter_finish(di_splitter *splitter, const char *text, size_t length, di_text *reasoning, di_text *content) {
    put(splitter, text, length, reasoning, content);
    if (splitter->reasoning) put_held(splitter, reasoning);
}
