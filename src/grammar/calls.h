/* calls.h - tool calls in DeepSeek's markup as a grammar: names that exist, arguments that follow their schemas.
 *
 *   <｜DSML｜ calls>                                                    behind the opening that the source leaves out
 *   <｜DSML｜ invoke name="NAME">                                       one or more
 *   <｜DSML｜ parameter name="KEY" string="true">TEXT</｜DSML｜ parameter>      strings; TEXT never holds </｜DSML｜
 *   <｜DSML｜ parameter name="KEY" string="false">JSON</｜DSML｜ parameter>     everything else
 *   </｜DSML｜ invoke>
 *   </｜DSML｜ calls>
 *
 * ｜DSML｜ is one token of the vocabulary, whatever its text. Parameters come in the order of the schema, required ones
 * always; undeclared ones are left out (documented narrowings). No parameters: one empty line.
 */
#ifndef DI_GRAMMAR_CALLS_H
#define DI_GRAMMAR_CALLS_H

#include "grammar/symbols.h"

/* Source text: {"mark": token id, "gap": " " or "", "block": "calls" or "tool_calls", "opening": text before the first
 * call, the mark written as ｜DSML｜, "one": bool, "tools": [{"name", "parameters": schema of an object or absent,
 * "strict": bool}]}. The arguments of a tool that is not strict and whose schema cannot be enforced exactly are free.
 */
bool di_calls_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                      di_grammar_fault *fault);

#endif
