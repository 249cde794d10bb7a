/* describe.h - the program described for other programs, from its tables: example configuration, manual page,
 * completions of shells.
 */
#ifndef DI_CLI_DESCRIBE_H
#define DI_CLI_DESCRIBE_H

#include "base/text.h"

/* "configuration-example", "manual-page", "completions-bash", "completions-zsh", "completions-fish"; false if `topic`
 * is none of them. */
bool di_describe(di_text *out, const char *topic);

#endif
