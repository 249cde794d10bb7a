/* recipes.h - tokenizers and chat formats for tests. Failures end the test. */
#ifndef DI_TESTS_SUPPORT_RECIPES_H
#define DI_TESTS_SUPPORT_RECIPES_H

#include "recipe/recipe.h"

/* The embedded model's tokenizer. */
di_tokenizer *di_embedded_tokenizer(void);
/* The published one where a developer has put it (build/real_tokenizer), else the embedded model's; says so, and
 * whether ids can be compared with published ones. */
di_tokenizer *di_chat_tokenizer(bool *published);
/* A recipe over this tokenizer; NULL: over the embedded model's, of which it keeps nothing. */
di_recipe di_recipe_over(di_tokenizer *tokenizer, di_recipe_profile profile);
/* The interface that a golden line's member "api" names. */
di_flavour di_line_flavour(const di_json *line);

#endif
