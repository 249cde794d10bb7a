/* Texts that the models were trained on. Every byte counts; tests/unit/test_recipe_examples.c holds their hashes. */
#include "recipe/recipe_internal.h"

const char di_effort_absolute[] =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root "
    "cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial "
    "scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n"
    "\n";

const char di_effort_beyond[] =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively "
    "decompose the problem into its most fundamental components, trace every causal chain to its root, and "
    "resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are "
    "certain that no assumption remains unchecked and no error remains undiscovered.\n"
    "\n";

const char di_effort_number[] =
    "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n";

/* The profiles differ in the name of the block and in what stands before the names within. */
#define TOOLS_HEAD(block, mark)                                                                                        \
    "## Tools\n"                                                                                                       \
    "\n"                                                                                                               \
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "         \
    "\"<" block ">\" block like the following:\n"                                                                      \
    "\n"                                                                                                               \
    "<" block ">\n"                                                                                                    \
    "<" mark "invoke name=\"$TOOL_NAME\">\n"                                                                           \
    "<" mark "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</" mark "parameter>\n"         \
    "...\n"                                                                                                            \
    "</" mark "invoke>\n"                                                                                              \
    "<" mark "invoke name=\"$TOOL_NAME2\">\n"                                                                          \
    "...\n"                                                                                                            \
    "</" mark "invoke>\n"                                                                                              \
    "</" block ">\n"                                                                                                   \
    "\n"                                                                                                               \
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, "            \
    "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n"                          \
    "\n"                                                                                                               \
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside "              \
    "<think>...</think> BEFORE any tool calls or final response.\n"                                                    \
    "\n"                                                                                                               \
    "Otherwise, output directly after </think> with tool calls or final response.\n"                                   \
    "\n"                                                                                                               \
    "### Available Tool Schemas\n"                                                                                     \
    "\n"

const char di_tools_head_v4[] = TOOLS_HEAD("｜DSML｜tool_calls", "｜DSML｜");
const char di_tools_head_v41[] = TOOLS_HEAD("｜DSML｜ calls", "｜DSML｜ ");

const char di_tools_tail[] =
    "\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";

const char di_format_head[] = "## Response Format:\n"
                              "\n"
                              "You MUST strictly adhere to the following schema to reply:\n";

const char di_format_json_v4[] = "You are a helpful assistant designed to output JSON.\n"
                                 "## Response Format:\n"
                                 "\n"
                                 "Reply with JSON object ONLY.";
