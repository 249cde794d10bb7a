/* schema_refs.c - where the parts of a schema document are: pointers for errors, $id, anchors and $ref. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

static uint64_t hash_node(const di_json *node) {
    return di_mix(0, (uint64_t)(uintptr_t)node >> 4);
}

static uint32_t find(const compiler *c, const di_json *node) {
    if (!c->map_size) return UINT32_MAX;
    for (uint64_t at = hash_node(node);; at++) {
        uint32_t slot = c->map[at & (c->map_size - 1)];
        if (!slot) return UINT32_MAX;
        if (c->infos[slot - 1].node == node) return slot - 1;
    }
}

static uint32_t add_info(compiler *c, const di_json *node, uint32_t parent, uint32_t res) {
    if ((uint64_t)c->info_count * 2 >= c->map_size) {
        uint32_t size = c->map_size ? c->map_size * 2 : 128, *map = calloc(size, sizeof *map);
        if (!map) return c->x->failed = DI_ERR_MEMORY, 0;
        for (uint32_t i = 0; i < c->info_count; i++) {
            uint64_t at = hash_node(c->infos[i].node);
            while (map[at & (size - 1)]) at++;
            map[at & (size - 1)] = i + 1;
        }
        free(c->map);
        c->map = map;
        c->map_size = size;
    }
    if (!di_grow(&c->infos, &c->info_capacity, (uint64_t)c->info_count + 1, sizeof *c->infos))
        return c->x->failed = DI_ERR_MEMORY, 0;
    c->infos[c->info_count] = (node_info){.node = node, .parent = parent, .resource = res};
    uint64_t at = hash_node(node);
    while (c->map[at & (c->map_size - 1)]) at++;
    c->map[at & (c->map_size - 1)] = ++c->info_count;
    return c->info_count - 1;
}

uint32_t di_schema_node(compiler *c, const di_json *node) {
    uint32_t found = find(c, node);
    return found != UINT32_MAX ? found : add_info(c, node, UINT32_MAX, 0);
}

void di_schema_pointer(const compiler *c, const di_json *node, char *out, size_t size) {
    uint32_t path[512], depth = 0, at = node ? find(c, node) : UINT32_MAX;
    for (; at != UINT32_MAX && c->infos[at].parent != UINT32_MAX && depth < 512; at = c->infos[at].parent)
        path[depth++] = at;
    size_t used = 0;
    out[0] = '\0';
    while (depth && used + 3 < size) {
        const di_json *child = c->infos[path[--depth]].node, *parent = c->infos[c->infos[path[depth]].parent].node;
        out[used++] = '/';
        if (parent->type == DI_JSON_ARRAY) {
            unsigned index = 0;
            for (const di_json *i = parent->first; i && i != child; i = i->next) index++;
            used += (size_t)snprintf(out + used, size - used, "%u", index);
            if (used >= size) used = size - 1;
        } else {
            for (size_t i = 0; i < child->key_length && used + 3 < size; i++) {
                char k = child->key[i];
                if (k == '~' || k == '/') out[used++] = '~';
                out[used++] = k == '~' ? '0' : k == '/' ? '1' : k;
            }
        }
        out[used] = '\0';
    }
}

/* ------------------------------------------------------------------------------------------------------------- URIs */

static size_t scheme_length(const char *uri) {
    size_t i = 0;
    if ((uri[0] | 0x20) < 'a' || (uri[0] | 0x20) > 'z') return 0;
    while ((uri[i] >= '0' && uri[i] <= '9') || ((uri[i] | 0x20) >= 'a' && (uri[i] | 0x20) <= 'z') || uri[i] == '+' ||
           uri[i] == '-' || uri[i] == '.')
        i++;
    return uri[i] == ':' ? i + 1 : 0;
}

/* Takes . and .. out of the path behind `from`. */
static void remove_dots(char *uri, size_t from) {
    char *in = uri + from, *out = in, *base = in;
    while (*in) {
        if (strncmp(in, "/./", 3) == 0) {
            in += 2;
        } else if (strncmp(in, "/../", 4) == 0 || strcmp(in, "/..") == 0) {
            in += in[3] ? 3 : 2;
            if (*in == '.') *in = '/';
            while (out > base && *--out != '/') {
            }
        } else if (strcmp(in, "/.") == 0) {
            in[1] = '\0';
        } else {
            do *out++ = *in++;
            while (*in && *in != '/');
        }
    }
    *out = '\0';
}

/* `reference` without its fragment against `base`, in the arena. */
static char *resolve_uri(compiler *c, const char *base, const char *reference, size_t length) {
    const char *hash = memchr(reference, '#', length);
    if (hash) length = (size_t)(hash - reference);
    char *out = di_schema_alloc(c, strlen(base) + length + 2);
    if (!out) return NULL;
    size_t scheme = scheme_length(base), authority = scheme;
    if (strncmp(base + scheme, "//", 2) == 0) authority += 2 + strcspn(base + scheme + 2, "/");
    size_t keep = strlen(base);
    if (scheme_length(reference))
        keep = 0;
    else if (length >= 2 && memcmp(reference, "//", 2) == 0)
        keep = scheme;
    else if (length && reference[0] == '/')
        keep = authority;
    else if (length)
        while (keep > authority && base[keep - 1] != '/') keep--;
    memcpy(out, base, keep);
    memcpy(out + keep, reference, length);
    out[keep + length] = '\0';
    scheme = scheme_length(out);
    if (strncmp(out + scheme, "//", 2) == 0) remove_dots(out, scheme + 2 + strcspn(out + scheme + 2, "/"));
    return out;
}

/* ------------------------------------------------------------------------------------------------------------ index */

/* What a keyword of a schema makes of its value, of any draft: identifiers count in schemas only. */
static node_role role_of_keyword(const di_json *value) {
    static const char *const named[] = {"properties", "patternProperties", "dependentSchemas",
                                        "$defs",      "definitions",       "dependencies"};
    static const char *const schemas[] = {
        "items", "prefixItems", "additionalItems",      "unevaluatedItems",      "contains", "allOf",
        "anyOf", "oneOf",       "additionalProperties", "unevaluatedProperties", "not",      "if",
        "then",  "else",        "propertyNames",        "contentSchema"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(value->key, named[i]) == 0) return value->type == DI_JSON_OBJECT ? ROLE_NAMED : ROLE_OTHER;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++)
        if (strcmp(value->key, schemas[i]) == 0) return ROLE_SCHEMA;
    return ROLE_OTHER;
}

static node_role role_of(const node_info *parent, const di_json *child) {
    if (parent->role == ROLE_OTHER) return ROLE_OTHER;
    if (parent->role == ROLE_NAMED || parent->node->type == DI_JSON_ARRAY) return ROLE_SCHEMA;
    return role_of_keyword(child);
}

static void add_anchor(compiler *c, const di_json *node, uint32_t res, const char *name, size_t length, bool dynamic) {
    if (!di_grow(&c->anchors, &c->anchor_capacity, (uint64_t)c->anchor_count + 1, sizeof *c->anchors)) {
        c->x->failed = DI_ERR_MEMORY;
        return;
    }
    c->anchors[c->anchor_count++] = (anchor){res, name, length, node, dynamic};
}

static const di_json *identifier(const compiler *c, const di_json *node) {
    const di_json *id = di_json_get(node, c->draft <= DI_DRAFT_4 ? "id" : "$id");
    return id && id->type == DI_JSON_STRING ? id : NULL;
}

/* A schema object with an identifier of its own begins a resource; returns that, or the one around it. */
static uint32_t own_resource(compiler *c, const di_json *node, uint32_t res) {
    const di_json *id = identifier(c, node), *name;
    bool hidden = c->draft <= DI_DRAFT_7 && di_json_get(node, "$ref");
    if (id && !hidden) {
        if (id->text[0] == '#') {
            add_anchor(c, node, res, id->text + 1, id->length - 1, false);
        } else if (res == UINT32_MAX || c->resources[res].root != node) {
            if (!di_grow(&c->resources, &c->resource_capacity, (uint64_t)c->resource_count + 1, sizeof(resource)))
                return c->x->failed = DI_ERR_MEMORY, 0;
            const char *base = res == UINT32_MAX ? "" : c->resources[res].uri;
            c->resources[c->resource_count] = (resource){resolve_uri(c, base, id->text, id->length), node};
            res = c->resource_count++;
        }
    }
    if ((name = di_json_get(node, "$anchor")) && name->type == DI_JSON_STRING)
        add_anchor(c, node, res, name->text, name->length, false);
    if ((name = di_json_get(node, "$dynamicAnchor")) && name->type == DI_JSON_STRING)
        add_anchor(c, node, res, name->text, name->length, true);
    return res;
}

bool di_schema_index(compiler *c) {
    if (!di_grow(&c->resources, &c->resource_capacity, 1, sizeof(resource))) return c->x->failed = DI_ERR_MEMORY, false;
    c->resources[c->resource_count++] = (resource){"", c->root};
    const di_json *id = identifier(c, c->root);
    if (id && id->text[0] != '#') c->resources[0].uri = resolve_uri(c, "", id->text, id->length);
    add_info(c, c->root, UINT32_MAX, 0);
    /* Breadth first: the infos themselves are the queue. */
    for (uint32_t i = 0; i < c->info_count && !di_schema_failed(c); i++) {
        node_info parent = c->infos[i];
        if (parent.node->type == DI_JSON_OBJECT && parent.role == ROLE_SCHEMA)
            parent.resource = own_resource(c, parent.node, parent.resource);
        else if (parent.node->type == DI_JSON_OBJECT && parent.role == ROLE_OTHER)
            parent.stray = parent.stray || identifier(c, parent.node);
        c->infos[i] = parent;
        for (const di_json *child = parent.node->first; child && !di_schema_failed(c); child = child->next) {
            uint32_t added = add_info(c, child, i, parent.resource);
            if (di_schema_failed(c)) break;
            c->infos[added].role = role_of(&parent, child);
            c->infos[added].stray = parent.stray;
        }
        di_exprs_spend(c->x, parent.role != ROLE_OTHER || i % 16 == 0); /* little is asked about values */
    }
    return !di_schema_failed(c);
}

/* ------------------------------------------------------------------------------------------------------- references */

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') return (c | 0x20) - 'a' + 10;
    return -1;
}

/* %XX taken out, in the arena. */
static char *decode_percent(compiler *c, const char *text, size_t length, size_t *out_length) {
    char *out = di_schema_alloc(c, length + 1);
    size_t n = 0;
    for (size_t i = 0; out && i < length; i++) {
        if (text[i] == '%' && i + 2 < length && hex(text[i + 1]) >= 0 && hex(text[i + 2]) >= 0) {
            out[n++] = (char)(hex(text[i + 1]) << 4 | hex(text[i + 2]));
            i += 2;
        } else {
            out[n++] = text[i];
        }
    }
    *out_length = n;
    return out;
}

/* Member of an object whose name may hold zero bytes; the last one counts. */
static const di_json *member(compiler *c, const di_json *node, const char *name, size_t length) {
    const di_json *found = NULL;
    if (node->type != DI_JSON_OBJECT || !di_exprs_spend(c->x, node->count / 256)) return NULL;
    for (const di_json *i = node->first; i; i = i->next)
        if (i->key_length == length && memcmp(i->key, name, length) == 0) found = i;
    return found;
}

/* The item that this part of a pointer names: its index, without zeros in front (RFC 6901). */
static const di_json *item_of(compiler *c, const di_json *list, const char *digits, size_t length) {
    uint64_t index = 0;
    if (!length || (length > 1 && digits[0] == '0')) return NULL;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') return NULL;
        index = index * 10 + (uint64_t)(digits[i] - '0');
        if (index >= list->count) return NULL;
    }
    if (!di_exprs_spend(c->x, index / 256)) return NULL;
    const di_json *item = list->first;
    while (item && index--) item = item->next;
    return item;
}

static const di_json *follow(compiler *c, const di_json *node, char *pointer, size_t length) {
    size_t at = 0;
    while (node && at < length) {
        if (pointer[at] != '/') return NULL;
        char *name = pointer + ++at;
        size_t n = 0;
        for (; at < length && pointer[at] != '/'; at++) {
            char ch = pointer[at];
            if (ch == '~') {
                if (++at == length || (pointer[at] != '0' && pointer[at] != '1')) return NULL;
                ch = pointer[at] == '1' ? '/' : '~';
            }
            name[n++] = ch;
        }
        node = node->type == DI_JSON_ARRAY ? item_of(c, node, name, n) : member(c, node, name, n);
    }
    return node;
}

static uint32_t find_resource(const compiler *c, const char *uri) {
    for (uint32_t i = 0; i < c->resource_count; i++) {
        if (strcmp(c->resources[i].uri, uri) == 0) return i;
    }
    return UINT32_MAX;
}

const di_json *di_schema_resolve(compiler *c, const di_json *at, const di_json *reference) {
    if (reference->type != DI_JSON_STRING) {
        di_schema_refuse(c, DI_REASON_SYNTAX, reference, "a reference must be a string");
        return NULL;
    }
    uint32_t place = di_schema_node(c, at);
    if (di_schema_failed(c)) return NULL;
    uint32_t own = c->infos[place].resource, res = own;
    if (c->infos[place].stray && !scheme_length(reference->text)) {
        di_schema_refuse(c, DI_REASON_UNSUPPORTED, reference,
                         "this reference stands below an identifier that belongs to no schema: what it is relative to "
                         "is not defined");
        return NULL;
    }
    if (!di_exprs_spend(c->x, (reference->length + c->anchor_count) / 64)) return NULL;
    if (reference->text[0] != '#') {
        if (!di_exprs_spend(c->x, (strlen(c->resources[own].uri) + c->resource_count) / 64)) return NULL;
        const char *uri = resolve_uri(c, c->resources[own].uri, reference->text, reference->length);
        if (!uri) return NULL;
        res = find_resource(c, uri);
    }
    if (res == UINT32_MAX) {
        di_schema_refuse(c, DI_REASON_UNSUPPORTED, reference, "\"%.100s\" is not in this document", reference->text);
        return NULL;
    }
    const char *hash = memchr(reference->text, '#', reference->length);
    const di_json *found = c->resources[res].root;
    if (hash && hash + 1 < reference->text + reference->length) {
        size_t length = 0;
        char *fragment = decode_percent(c, hash + 1, (size_t)(reference->text + reference->length - hash - 1), &length);
        if (!fragment) return NULL;
        if (fragment[0] == '/') {
            found = follow(c, found, fragment, length);
        } else {
            found = NULL;
            for (uint32_t i = 0; i < c->anchor_count; i++)
                if (c->anchors[i].resource == res && c->anchors[i].length == length &&
                    memcmp(c->anchors[i].name, fragment, length) == 0)
                    found = c->anchors[i].node;
        }
    }
    if (!found)
        di_schema_refuse(c, DI_REASON_UNSUPPORTED, reference, "\"%.100s\" leads nowhere in this document",
                         reference->text);
    return found;
}
