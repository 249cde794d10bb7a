/* formats.c - the `format` names that are enforced, as regular expressions over the decoded string; see schema.h. */
#include <string.h>

#include "grammar/schema.h"

#define MONTHS                                                                                                         \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"
#define LEAP_YEAR     "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE          "(?!0000)(?:\\d{4}-" MONTHS "|" LEAP_YEAR "-02-29)"
#define ZONE          "(?:[zZ]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define TIME          "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?" ZONE "|23:59:60(?:\\.\\d+)?(?:[zZ]|[+-]00:00))"
#define DURATION_TIME "T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
#define DURATION                                                                                                       \
    "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:" DURATION_TIME ")?|" DURATION_TIME ")"
#define LABEL                                                                                                          \
    "(?:[A-Za-z0-9](?:[A-Za-z0-9-]?[A-Za-z0-9])?|[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9]{2}|-[A-Za-z0-9])|"              \
    "[A-Za-z0-9][A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9])"
#define HOSTNAME "(?=[^]{1,253}$)" LABEL "(?:\\." LABEL ")*"
#define OCTET    "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define IPV4     OCTET "(?:\\." OCTET "){3}"
#define H16      "[0-9A-Fa-f]{1,4}"
#define LS32     "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                           \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16            \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16      \
    ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16   \
    "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define ATOM   "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define QUOTED "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\""
#define EMAIL                                                                                                          \
    "(?:" ATOM "(?:\\." ATOM ")*|" QUOTED ")@(?:" LABEL "(?:\\." LABEL ")*|\\[" IPV4 "\\]|\\[IPv6:" IPV6 "\\])"
#define IDN_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u{80}-\\u{10FFFF}-]+"
#define IDN_LABEL                                                                                                      \
    "[A-Za-z0-9\\u{80}-\\u{10FFFF}](?:[A-Za-z0-9\\u{80}-\\u{10FFFF}-]{0,61}[A-Za-z0-9\\u{80}-\\u{10FFFF}])?"
#define IDN_EMAIL IDN_ATOM "(?:\\." IDN_ATOM ")*@" IDN_LABEL "(?:\\." IDN_LABEL ")*"

/* RFC 3986; U: further characters of IRIs. */
#define PERCENT         "%[0-9A-Fa-f]{2}"
#define PCHAR(U)        "(?:[A-Za-z0-9._~!$&'()*+,;=:@" U "-]|" PERCENT ")"
#define SEGMENTS(U)     "(?:/" PCHAR(U) "*)*"
#define REG_NAME(U)     "(?:[A-Za-z0-9._~!$&'()*+,;=" U "-]|" PERCENT ")*"
#define USER(U)         "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:" U "-]|" PERCENT ")*@)?"
#define IP_LITERAL      "\\[(?:" IPV6 "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]"
#define AUTHORITY(U)    "//" USER(U) "(?:" IP_LITERAL "|" REG_NAME(U) ")(?::\\d*)?"
#define ROOTED(U)       "/(?:" PCHAR(U) "+" SEGMENTS(U) ")?"
#define QUERY(U, P)     "(?:\\?(?:" PCHAR(U P) "|[/?])*)?"
#define FRAGMENT(U)     "(?:#(?:" PCHAR(U) "|[/?])*)?"
#define HIER(U)         "(?:" AUTHORITY(U) SEGMENTS(U) "|" ROOTED(U) "|" PCHAR(U) "+" SEGMENTS(U) "|)"
#define NO_COLON(U)     "(?:[A-Za-z0-9._~!$&'()*+,;=@" U "-]|" PERCENT ")+"
#define RELATIVE(U)     "(?:" AUTHORITY(U) SEGMENTS(U) "|" ROOTED(U) "|" NO_COLON(U) SEGMENTS(U) "|)"
#define SCHEME          "[A-Za-z][A-Za-z0-9+.-]*:"
#define URI(U, P)       SCHEME HIER(U) QUERY(U, P) FRAGMENT(U)
#define REFERENCE(U, P) "(?:" URI(U, P) "|" RELATIVE(U) QUERY(U, P) FRAGMENT(U) ")"
#define INTERNATIONAL                                                                                                  \
    "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-\\u{1FFFD}\\u{20000}-\\u{2FFFD}"
#define PRIVATE "\\u{E000}-\\u{F8FF}"
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define VARNAME "(?:[A-Za-z0-9_]|" PERCENT ")(?:\\.?(?:[A-Za-z0-9_]|" PERCENT "))*"
#define VARSPEC VARNAME "(?:\\*|:[1-9]\\d{0,3})?"
#define TEMPLATE                                                                                                       \
    "(?:[!#$&(-;=?-\\[\\]_a-z~\\u{A0}-\\u{10FFFF}]|" PERCENT "|\\{[+#./;?&=,!@|]?" VARSPEC "(?:," VARSPEC ")*\\})*"

static const struct {
    const char *name, *expression;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[tT]" TIME},
    {"duration", DURATION},
    {"email", EMAIL},
    {"idn-email", IDN_EMAIL},
    {"hostname", HOSTNAME},
    {"idn-hostname", HOSTNAME},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"},
    {"uri", URI("", "")},
    {"uri-reference", REFERENCE("", "")},
    {"iri", URI(INTERNATIONAL, PRIVATE)},
    {"iri-reference", REFERENCE(INTERNATIONAL, PRIVATE)},
    {"uri-template", TEMPLATE},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9]\\d*)(?:#|" POINTER ")"},
};

const char *di_format_expression(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].expression;
    return NULL;
}
