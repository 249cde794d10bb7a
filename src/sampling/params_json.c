/* sampling_params as JSON. */
#include "sampling/sampling_internal.h"

#include <string.h>

typedef di_status (*read_value)(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                                di_error *error);

static di_status wrong_type(const char *name, const char *wanted, const di_json *value, di_error *error) {
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s must be %s, not %s", name, wanted,
                   di_json_type_name(value->type));
}

static di_status out_of_memory(const char *name, di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, name, "out of memory for %s", name);
}

/* A positive number that the float cannot hold becomes a refusal, not zero. */
static di_status read_number(const di_sampling_field *field, const di_json *value, di_sampling *sampling,
                             di_error *error) {
    char *at = (char *)sampling + field->offset;
    if (value->type != DI_JSON_NUMBER)
        return wrong_type(field->name, field->type == DI_SAMPLING_FLOAT ? "a number" : "an integer", value, error);
    double number = 0;
    int64_t integer = 0;
    bool readable = field->type == DI_SAMPLING_FLOAT ? di_json_double(value, &number) : di_json_int64(value, &integer);
    if (readable && field->type != DI_SAMPLING_FLOAT) number = (double)integer;
    if (readable && di_sampling_in_range(field, number)) {
        if (field->type == DI_SAMPLING_INT32)
            *(int32_t *)(void *)at = (int32_t)integer;
        else if (field->type == DI_SAMPLING_INT64)
            *(int64_t *)(void *)at = integer;
        else if ((float)number != 0.0f || number == 0.0)
            *(float *)(void *)at = (float)number;
        else
            readable = false;
        if (readable) return DI_OK;
    }
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->name, "%s must be %s%s, not %.40s", field->name,
                   field->type == DI_SAMPLING_FLOAT ? "" : "an integer ", field->range, value->text);
}

static di_status read_bool(const char *name, const di_json *value, bool *out, di_error *error) {
    if (value->type != DI_JSON_TRUE && value->type != DI_JSON_FALSE)
        return wrong_type(name, "true or false", value, error);
    *out = di_json_is_true(value);
    return DI_OK;
}

static di_status read_ignore_eos(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                                 di_error *error) {
    (void)arena;
    return read_bool(name, value, &sampling->ignore_eos, error);
}

static di_status read_logits_hash(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                                  di_error *error) {
    (void)arena;
    return read_bool(name, value, &sampling->logits_hash, error);
}

static di_status read_seed(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                           di_error *error) {
    (void)arena;
    if (value->type != DI_JSON_NUMBER) return wrong_type(name, "an integer", value, error);
    if (!di_json_uint64(value, &sampling->seq_seed))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, name,
                       "%s must be an integer in 0 .. 18446744073709551615, not %.40s", name, value->text);
    sampling->has_seed = true;
    return DI_OK;
}

static di_status read_stop(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                           di_error *error) {
    bool single = value->type == DI_JSON_STRING;
    if (!single && value->type != DI_JSON_ARRAY) return wrong_type(name, "a string or a list of strings", value, error);
    size_t count = single ? 1 : value->count;
    const char **strings = di_arena_array(arena, count + 1, sizeof *strings);
    if (!strings) return out_of_memory(name, error);
    const di_json *item = single ? value : value->first;
    for (size_t i = 0; i < count; i++, item = item->next) {
        if (item->type != DI_JSON_STRING)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s[%zu] must be a string, not %s", name, i,
                           di_json_type_name(item->type));
        if (!item->length || strlen(item->text) != item->length)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s[%zu] is empty or holds a zero character", name, i);
        strings[i] = item->text;
    }
    sampling->stop = count ? strings : NULL;
    sampling->stop_count = count;
    return DI_OK;
}

static di_status read_ids(di_arena *arena, const char *name, const di_json *value, int32_t minimum, const int32_t **ids,
                          size_t *count, di_error *error) {
    if (value->type != DI_JSON_ARRAY) return wrong_type(name, "a list of token ids", value, error);
    int32_t *list = di_arena_array(arena, (size_t)value->count + 1, sizeof *list);
    if (!list) return out_of_memory(name, error);
    size_t i = 0;
    for (const di_json *item = value->first; item; item = item->next) {
        int64_t id;
        if (!di_json_int64(item, &id) || id < minimum || id > INT32_MAX)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s[%zu] must be a token id%s", name, i,
                           minimum < 0 ? " or -1 (sample)" : "");
        list[i++] = (int32_t)id;
    }
    *ids = i ? list : NULL;
    *count = i;
    return DI_OK;
}

static di_status read_stop_ids(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                               di_error *error) {
    return read_ids(arena, name, value, 0, &sampling->stop_token_ids, &sampling->stop_token_count, error);
}

static di_status read_golden_ids(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                                 di_error *error) {
    return read_ids(arena, name, value, -1, &sampling->golden_token_ids, &sampling->golden_token_count, error);
}

/* Decimal digits without sign or leading zeros; -1 otherwise. */
static int64_t id_of_key(const char *key, size_t length) {
    if (length == 0 || length > 10 || (length > 1 && key[0] == '0')) return -1;
    int64_t id = 0;
    for (size_t i = 0; i < length; i++) {
        if (key[i] < '0' || key[i] > '9') return -1;
        id = id * 10 + (key[i] - '0');
    }
    return id <= INT32_MAX ? id : -1;
}

static di_status read_bias(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                           di_error *error) {
    if (value->type != DI_JSON_OBJECT) return wrong_type(name, "an object {id: bias}", value, error);
    di_logit_bias *list = di_arena_array(arena, (size_t)value->count + 1, sizeof *list);
    if (!list) return out_of_memory(name, error);
    size_t i = 0;
    for (const di_json *item = value->first; item; item = item->next) {
        int64_t id = id_of_key(item->key, item->key_length);
        double bias;
        if (id < 0)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s: the key \"%.40s\" is not a token id", name,
                           item->key);
        if (!di_json_double(item, &bias) || !(bias >= -100 && bias <= 100))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name,
                           "%s of id %lld must be a number in -100 .. 100, not %.40s", name, (long long)id,
                           item->type == DI_JSON_NUMBER ? item->text : di_json_type_name(item->type));
        list[i++] = (di_logit_bias){(int32_t)id, (float)bias};
    }
    sampling->logit_bias = i ? list : NULL;
    sampling->logit_bias_count = i;
    return DI_OK;
}

/* The text of a schema; one that is given as JSON is written out again, numbers and repeated keys as they are. */
static di_status read_schema(di_arena *arena, const di_json *value, di_so_args *args, di_error *error) {
    static const char name[] = "so_args.schema";
    if (value->type == DI_JSON_STRING) {
        if (strlen(value->text) != value->length)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s holds a zero character", name);
        args->schema = value->text;
        return DI_OK;
    }
    if (value->type != DI_JSON_OBJECT && value->type != DI_JSON_TRUE && value->type != DI_JSON_FALSE)
        return wrong_type(name, "a string or a JSON Schema", value, error);
    di_text text = {0};
    di_json_writer w;
    di_json_begin(&w, &text);
    di_json_value(&w, value);
    args->schema = text.failed ? NULL : di_arena_copy(arena, text.data, text.length);
    di_text_free(&text);
    return args->schema ? DI_OK : out_of_memory(name, error);
}

static di_status read_so_member(di_arena *arena, const di_json *value, di_so_args *args, di_error *error) {
    const char *key = value->key;
    if (strcmp(key, "schema") == 0) return read_schema(arena, value, args, error);
    if (strcmp(key, "trigger_required") == 0)
        return read_bool("so_args.trigger_required", value, &args->trigger_required, error);
    if (strcmp(key, "trigger_token_ids") == 0)
        return read_ids(arena, "so_args.trigger_token_ids", value, 0, &args->trigger_token_ids,
                        &args->trigger_token_count, error);
    if (strcmp(key, "bound_token_id") == 0) {
        int64_t id;
        if (!di_json_int64(value, &id) || id < 0 || id > INT32_MAX)
            return wrong_type("so_args.bound_token_id", "a token id", value, error);
        args->bound_token_id = (int32_t)id;
        return DI_OK;
    }
    if (strcmp(key, "schema_type") != 0)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args",
                       "so_args has no member '%.40s'; it has schema_type, schema, trigger_token_ids, bound_token_id, "
                       "trigger_required",
                       key);
    if (value->type != DI_JSON_STRING) return wrong_type("so_args.schema_type", "a string", value, error);
    args->schema_type = value->text;
    return DI_OK;
}

static di_status read_so_args(di_arena *arena, const char *name, const di_json *value, di_sampling *sampling,
                              di_error *error) {
    if (value->type != DI_JSON_OBJECT) return wrong_type(name, "an object", value, error);
    for (const di_json *member = value->first; member; member = member->next) {
        if (di_json_get(value, member->key) != member)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "so_args.%.40s is given twice", member->key);
        di_status status =
            member->type == DI_JSON_NULL ? DI_OK : read_so_member(arena, member, &sampling->so_args, error);
        if (status != DI_OK) return status;
    }
    if (!sampling->so_args.schema_type)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args.schema_type", "so_args.schema_type is missing");
    return DI_OK;
}

static const struct {
    const char *name;
    read_value read;
} others[] = {
    {"stop", read_stop},
    {"stop_token_ids", read_stop_ids},
    {"ignore_eos", read_ignore_eos},
    {"seq_seed", read_seed},
    {"seed", read_seed},
    {"logit_bias", read_bias},
    {"golden_token_ids", read_golden_ids},
    {"so_args", read_so_args},
    {"logits_hash", read_logits_hash},
};
enum { OTHERS = sizeof others / sizeof *others };

static di_status unknown_name(const di_json *member, di_error *error) {
    const char *names[DI_SAMPLING_FIELDS + OTHERS];
    size_t count = 0;
    for (size_t i = 0; i < DI_SAMPLING_FIELDS; i++) names[count++] = di_sampling_fields[i].name;
    for (size_t i = 0; i < OTHERS; i++) names[count++] = others[i].name;
    const char *nearest = di_nearest_name(member->key, names, count);
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, member->key, "unknown sampling parameter \"%.60s\"%s%s%s",
                   member->key, nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static bool named(const di_json *member, const char *name) {
    return member->key_length == strlen(name) && memcmp(member->key, name, member->key_length) == 0;
}

static di_status read_member(di_arena *arena, const di_json *member, di_sampling *sampling, di_error *error) {
    for (size_t i = 0; i < DI_SAMPLING_FIELDS; i++)
        if (named(member, di_sampling_fields[i].name))
            return member->type == DI_JSON_NULL ? DI_OK : read_number(&di_sampling_fields[i], member, sampling, error);
    for (size_t i = 0; i < OTHERS; i++)
        if (named(member, others[i].name))
            return member->type == DI_JSON_NULL ? DI_OK
                                                : others[i].read(arena, others[i].name, member, sampling, error);
    return unknown_name(member, error);
}

di_status di_sampling_parse(di_arena *arena, const di_json *object, di_sampling *sampling, di_error *error) {
    if (object->type != DI_JSON_OBJECT) return wrong_type("sampling_params", "an object", object, error);
    const di_json *seed = NULL;
    for (const di_json *member = object->first; member; member = member->next) {
        di_status status = read_member(arena, member, sampling, error);
        if (status != DI_OK) return status;
        bool is_seed = named(member, "seed") || named(member, "seq_seed");
        if (is_seed && member->type != DI_JSON_NULL) {
            if (seed && !named(member, seed->key))
                return di_fail(error, DI_ERR_INVALID_ARGUMENT, "seed", "seed and seq_seed are the same; give one");
            seed = member;
        }
        for (const di_json *earlier = object->first; earlier != member; earlier = earlier->next)
            if (named(earlier, member->key))
                return di_fail(error, DI_ERR_INVALID_ARGUMENT, member->key, "%s is given twice", member->key);
    }
    return DI_OK;
}
