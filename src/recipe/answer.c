/* The parts of an answer joined. */
#include <stdlib.h>
#include <string.h>

#include "recipe/parser.h"

static char *copy(const char *text) {
    return text ? strdup(text) : NULL;
}

static void begin_call(di_answer *answer, const di_part *part) {
    if (answer->call_count == answer->call_capacity) {
        size_t capacity = answer->call_capacity ? 2 * answer->call_capacity : 4;
        di_answer_call *calls = realloc(answer->calls, capacity * sizeof *calls);
        if (!calls) {
            answer->failed = true;
            return;
        }
        answer->calls = calls;
        answer->call_capacity = capacity;
    }
    di_answer_call *call = &answer->calls[answer->call_count++];
    *call = (di_answer_call){
        .id = copy(part->id), .name = copy(part->name), .space = copy(part->space), .tool = part->tool};
    answer->failed |= !call->id || !call->name || (part->space && !call->space);
}

void di_answer_take(void *arg, const di_part *part) {
    di_answer *answer = arg;
    if (part->kind == DI_PART_CALL_BEGIN) {
        begin_call(answer, part);
        return;
    }
    di_answer_call *call = part->call < answer->call_count ? &answer->calls[part->call] : NULL;
    switch (part->kind) {
    case DI_PART_REASONING:
        di_text_append(&answer->reasoning, part->text, part->length);
        break;
    case DI_PART_CONTENT:
        di_text_append(&answer->content, part->text, part->length);
        break;
    case DI_PART_CALL_BEGIN:
        break;
    case DI_PART_CALL_ARGUMENTS:
        if (call) di_text_append(&call->arguments, part->text, part->length);
        break;
    case DI_PART_CALL_END:
        if (call) call->complete = part->complete;
        break;
    }
    answer->failed |= answer->reasoning.failed || answer->content.failed || (call && call->arguments.failed);
}

void di_answer_free(di_answer *answer) {
    for (size_t i = 0; i < answer->call_count; i++) {
        free(answer->calls[i].id);
        free(answer->calls[i].name);
        free(answer->calls[i].space);
        di_text_free(&answer->calls[i].arguments);
    }
    free(answer->calls);
    di_text_free(&answer->reasoning);
    di_text_free(&answer->content);
    *answer = (di_answer){0};
}
