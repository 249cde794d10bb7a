/* unicode.c - General_Category by utf8proc's tables; see unicode.h. */
#include "grammar/unicode.h"

#include <string.h>
#include <utf8proc.h>

static const struct {
    const char *name, *members; /* two-letter categories, or one letter for a group of them */
} names[] = {
    {"Letter", "L"},
    {"Cased_Letter", "LC"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"punct", "P"},
    {"Connector_Punctuation", "Pc"},
    {"Dash_Punctuation", "Pd"},
    {"Open_Punctuation", "Ps"},
    {"Close_Punctuation", "Pe"},
    {"Initial_Punctuation", "Pi"},
    {"Final_Punctuation", "Pf"},
    {"Other_Punctuation", "Po"},
    {"Symbol", "S"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Modifier_Symbol", "Sk"},
    {"Other_Symbol", "So"},
    {"Separator", "Z"},
    {"Space_Separator", "Zs"},
    {"Line_Separator", "Zl"},
    {"Paragraph_Separator", "Zp"},
    {"Other", "C"},
    {"Control", "Cc"},
    {"Format", "Cf"},
    {"Private_Use", "Co"},
    {"Unassigned", "Cn"},
};

static bool equal(const char *name, size_t length, const char *text) {
    return strlen(text) == length && memcmp(name, text, length) == 0;
}

static void add_range(di_points *set, int32_t *from, int32_t end, bool in) {
    if (in && *from < 0) *from = end;
    if (in || *from < 0) return;
    di_points_add(set, (uint32_t)*from, (uint32_t)end - 1);
    *from = -1;
}

static bool in_category(int32_t point, const char *category) {
    const char *own = utf8proc_category_string(point);
    if (strcmp(category, "LC") == 0) return own[0] == 'L' && (own[1] == 'u' || own[1] == 'l' || own[1] == 't');
    return own[0] == category[0] && (!category[1] || own[1] == category[1]);
}

static void add_category(di_points *set, const char *category) {
    int32_t from = -1;
    for (int32_t point = 0; point <= 0x110000; point++)
        add_range(set, &from, point, point < 0x110000 && in_category(point, category));
}

bool di_unicode_property(const char *name, size_t length, di_points *set) {
    static const char *const prefixes[] = {"General_Category=", "gc="};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(prefixes[i]);
        if (length > n && memcmp(name, prefixes[i], n) == 0) name += n, length -= n;
    }
    if (equal(name, length, "Any")) return di_points_add(set, 0, 0x10FFFF), true;
    if (equal(name, length, "ASCII")) return di_points_add(set, 0, 0x7F), true;
    if (equal(name, length, "White_Space")) {
        static const uint32_t spaces[][2] = {{0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                             {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                             {0x205F, 0x205F}, {0x3000, 0x3000}};
        for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) di_points_add(set, spaces[i][0], spaces[i][1]);
        return true;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!equal(name, length, names[i].name) && !equal(name, length, names[i].members)) continue;
        add_category(set, names[i].members);
        return true;
    }
    return false;
}
