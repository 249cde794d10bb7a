/* help.c - what deepinfer says about itself. */
#include <string.h>

#include "backend/cpu/cpu.h"
#include "cli/cli.h"
#include "cli/describe.h"
#include "server/api_endpoints.h"

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

void di_help_main(di_text *out) {
    di_text_puts(out, "deepinfer - inference for DeepSeek-V4.1-Flash with the same bits every time\n\n"
                      "usage: deepinfer COMMAND [MODEL] [options]\n\n");
    size_t count;
    const di_command *const *commands = di_commands(&count);
    for (size_t i = 0; i < count; i++) di_text_printf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    di_text_puts(out, "\nMODEL is a folder in the official checkpoint layout; left out: the embedded\n"
                      "one. Results go to standard output, everything else to standard error.\n\n"
                      "  deepinfer COMMAND --help   options of a command, with an example\n"
                      "  deepinfer help TOPIC       common sampling limits http json\n"
                      "                             environment exit-codes\n"
                      "  deepinfer --version        version, compiler, instruction set, numeric profile\n\n"
                      "example:\n"
                      "  deepinfer chat\n");
}

void di_help_command(di_text *out, const di_command *command) {
    di_text_printf(out, "usage: deepinfer %s %s\n%s\n", command->name, command->usage, command->text);
    di_config_write_help(out, command->groups);
    di_text_printf(out, "  --model, --threads, --context, --seed, ...   deepinfer help common\n\nexample:\n%s",
                   command->example);
}

static const char json_topic[] =
    "JSON lines (--json): one object a line, UTF-8, only \\n ends a line. Results come\n"
    "in the order of the input. A bad line gives {\"id\"?, \"line\", \"error\": {\"code\",\n"
    "\"message\", \"param\"}} in its place, and the exit code is 1 then.\n"
    "\n"
    "generate  in   {\"id\", \"prompt\" or \"token_ids\" or \"messages\", \"priority\"?,\n"
    "               \"sampling_params\"?}; messages: also thinking, reasoning_effort,\n"
    "               tools, tool_choice, response_format, ... as in the chat API\n"
    "          out  {\"id\", \"choices\": [{\"index\", \"text\", \"token_ids\", \"reasoning\"?,\n"
    "               \"tool_calls\"?, \"finish_reason\", \"logprobs\"?, \"prompt_logprobs\"?,\n"
    "               \"drafts\"?, \"logits_hash\"?}], \"usage\", \"seed\", \"fingerprint\",\n"
    "               \"timings\"}; usage always has the counts of drafts, but their\n"
    "               records \"drafts\" come only when --spec was given, auto or 1..8\n"
    "score     in   {\"id\", \"prompt\" or \"token_ids\"}\n"
    "          out  {\"id\", \"tokens\", \"nll\", \"perplexity\", \"token_logprobs\", \"argmax\",\n"
    "               \"logits_hash\"}\n"
    "tokenize  in   {\"text\"}, out {\"token_ids\", \"tokens\"}\n"
    "          with --decode in {\"token_ids\"}, out {\"text\"}\n"
    "\n"
    "sampling_params: temperature top_p top_k min_p max_tokens min_tokens stop\n"
    "stop_token_ids ignore_eos n seq_seed (or seed) logprobs prompt_logprobs\n"
    "repetition_penalty presence_penalty frequency_penalty logit_bias\n"
    "golden_token_ids first_n_token_no_eos logits_hash so_args\n"
    "A prompt gets BOS in front; token_ids are used as they are.\n"
    "\n"
    "example:\n"
    "  echo '{\"id\":1,\"prompt\":\"Hello\"}' | deepinfer generate --json\n";

static const char environment_topic[] =
    "Every option NAME is also read from DEEPINFER_NAME (upper case, - becomes _) and\n"
    "from the file that --config names, one \"name = value\" a line. Default < file <\n"
    "environment < command line. An unknown DEEPINFER_ variable is an error.\n"
    "\n"
    "Names of DeepSeek's DeepInfer that work here:\n"
    "  DEEPINFER_ACCELERATOR                   DEEPINFER_BATCH_INVARIANT\n"
    "  DEEPINFER_ENABLE_MTP_VARLEN             DEEPINFER_USE_NEXTN_DECODE\n"
    "  DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE  DEEPINFER_YOCO_PREFILL_KEEP_TOKENS\n"
    "\n"
    "example:\n"
    "  DEEPINFER_THREADS=2 deepinfer chat\n";

static const char exit_topic[] = "0    done\n"
                                 "1    the work failed; with --json also when a line failed\n"
                                 "2    wrong usage: command, option or value\n"
                                 "130  interrupted\n";

bool di_help_topic(di_text *out, const char *topic) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(commands[i]->name, topic) != 0) continue;
        di_help_command(out, commands[i]);
        return true;
    }
    if (strcmp(topic, "json") == 0)
        di_text_puts(out, json_topic);
    else if (strcmp(topic, "environment") == 0)
        di_text_puts(out, environment_topic);
    else if (strcmp(topic, "exit-codes") == 0)
        di_text_puts(out, exit_topic);
    else if (strcmp(topic, "configuration-markdown") == 0)
        di_config_write_markdown(out);
    else if (strcmp(topic, "api-markdown") == 0)
        di_api_write_markdown(out);
    else if (di_describe(out, topic))
        return true;
    else if (strcmp(topic, "common") == 0 || strcmp(topic, "sampling") == 0 || strcmp(topic, "limits") == 0 ||
             strcmp(topic, "http") == 0)
        di_config_write_help(out, topic);
    else
        return false;
    return true;
}

di_status di_version_text(const di_config *config, di_text *out, di_error *error) {
    di_pool *pool = NULL;
    di_backend *backend = NULL;
    char note[256] = "";
    di_status status = di_pool_new(1, &pool, error);
    if (status == DI_OK)
        status = di_cpu_backend_new(di_config_text(config, DI_OPT_CPU_ISA), pool, note, &backend, error);
    if (status == DI_OK) {
        di_text_printf(out, "deepinfer %s\ncompiler %s\nisa %s\nprofile %s\n", di_version(), COMPILER, backend->isa,
                       backend->profile);
        if (note[0]) di_text_printf(out, "note %s\n", note);
        backend->free(backend);
    }
    di_pool_free(pool);
    return status;
}
