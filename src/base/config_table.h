/* config_table.h - rows of the configuration table; included several times, see config.h.
 * DI_CONFIG_ROW(ID, name, type, default, minimum, maximum, choices, seed variable, group, help) */
#define I DI_CONFIG_TYPE_INT
#define B DI_CONFIG_TYPE_BOOL
#define Z DI_CONFIG_TYPE_SIZE
#define F DI_CONFIG_TYPE_FLOAT
#define C DI_CONFIG_TYPE_CHOICE
#define S DI_CONFIG_TYPE_STRING
#define U DI_CONFIG_TYPE_UINT64
/* clang-format off */
DI_CONFIG_ROW(MODEL,          "model",          S, "",       0, 0, "", "", "common", "model folder; default: the embedded model")
DI_CONFIG_ROW(CONFIG,         "config",         S, "",       0, 0, "", "", "common", "read options from this file")
DI_CONFIG_ROW(ACCELERATOR,    "accelerator",    C, "cpu",    0, 0, "cpu|nvidia|ascend", "DEEPINFER_ACCELERATOR", "common", "device that computes")
DI_CONFIG_ROW(THREADS,        "threads",        I, "0",      0, 1024, "", "", "common", "compute threads; 0 = one per usable core")
DI_CONFIG_ROW(CPU_ISA,        "cpu-isa",        C, "auto",   0, 0, "scalar|avx2|avx512|auto", "", "common", "instruction set; all give the same bits")
DI_CONFIG_ROW(CONTEXT,        "context",        I, "0",      0, 1048576, "", "", "common", "positions; 0 = the model's, or what fits")
DI_CONFIG_ROW(MAX_ROWS,       "max-rows",       I, "256",    1, 65536, "", "", "common", "rows of one step")
DI_CONFIG_ROW(MAX_SEQS,       "max-seqs",       I, "64",     1, 4096, "", "", "common", "sequences in flight")
DI_CONFIG_ROW(CHUNK,          "chunk",          I, "0",      0, 65536, "", "", "common", "prompt rows per step; 0 = as many as fit")
DI_CONFIG_ROW(PREFILL,        "prefill",        C, "off",    0, 0, "off|compact", "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "common", "compact: decoder half on a prompt's end only")
DI_CONFIG_ROW(PREFILL_KEEP,   "prefill-keep",   I, "0",      0, 1048576, "", "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "common", "positions compact keeps; 0 = window + 12")
DI_CONFIG_ROW(SPEC,           "spec",           C, "off",    0, 0, "auto|off|1..8", "", "common", "speculative decoding (only off yet)")
DI_CONFIG_ROW(THINKING,       "thinking",       C, "model",  0, 0, "on|off|model", "", "common", "thinking mode; model = its own default")
DI_CONFIG_ROW(EFFORT,         "effort",         C, "",       0, 0, "low|high|max|1..100", "", "common", "effort in thinking mode; default high")
DI_CONFIG_ROW(GENERATION_CONFIG, "generation-config", C, "none", 0, 0, "none|model", "", "common", "sampling defaults: none or the model's")
DI_CONFIG_ROW(CACHE_RAM,      "cache-ram",      Z, "256M",   0, 1e15, "", "", "common", "memory for the prefix cache; 0 = no cache")
DI_CONFIG_ROW(KV_RAM,         "kv-ram",         Z, "0",      0, 1e15, "", "", "common", "memory for state pages; 0 = what is needed or fits")
DI_CONFIG_ROW(SWAP_RAM,       "swap-ram",       Z, "1G",     0, 1e15, "", "", "common", "memory for states of preempted requests")
DI_CONFIG_ROW(MAX_GAP,        "max-gap",        I, "0",      0, 3600000, "", "", "common", "ms between tokens beside long prompts; 0 = auto")
DI_CONFIG_ROW(STALL_MS,       "stall-ms",       I, "30000",  0, 3600000, "", "", "limits", "milliseconds until a step counts as stalled; 0 = never")
DI_CONFIG_ROW(AGEING_MS,      "ageing-ms",      I, "10000",  1, 3600000, "", "", "limits", "waiting this long gains a level of priority")
DI_CONFIG_ROW(SNAPSHOT_INTERVAL, "snapshot-interval", I, "1024", 0, 1048576, "", "", "limits", "positions between cache snapshots; 0 = ends and branches only")
DI_CONFIG_ROW(CACHE_DIR,      "cache-dir",      S, "",       0, 0, "", "", "common", "folder of the disk cache; empty = none")
DI_CONFIG_ROW(CACHE_DISK,     "cache-disk",     Z, "8G",     0, 1e15, "", "", "common", "bytes the disk cache may take")
DI_CONFIG_ROW(SESSION_DIR,    "session-dir",    S, "",       0, 0, "", "", "common", "folder of chat sessions; default: ~/.local/state/deepinfer/sessions")
DI_CONFIG_ROW(RESTORE_MS,     "restore-ms",     I, "5000",   0, 3600000, "", "", "limits", "milliseconds to wait for the disk cache")
DI_CONFIG_ROW(LOAD_FORMAT,    "load-format",    C, "auto",   0, 0, "auto|dummy", "", "common", "dummy = made-up weights for any config")
DI_CONFIG_ROW(SEED,           "seed",           U, "",       0, 0, "", "", "common", "noise seed; default: drawn per request")
DI_CONFIG_ROW(LOG_LEVEL,      "log-level",      C, "warn",   0, 0, "error|warn|info|debug", "", "common", "what goes to the log on stderr")
DI_CONFIG_ROW(QUIET,          "quiet",          B, "off",    0, 0, "", "", "common", "no progress, notes or footer on stderr")
DI_CONFIG_ROW(JSON,           "json",           B, "off",    0, 0, "", "", "json", "JSON lines in and out")
DI_CONFIG_ROW(INPUT,          "input",          S, "",       0, 0, "", "", "input", "read from this file instead of standard input")
DI_CONFIG_ROW(OUTPUT,         "output",         S, "",       0, 0, "", "", "generate", "append results to this file")
DI_CONFIG_ROW(PROMPT,         "prompt",         S, "",       0, 0, "", "", "input", "the prompt itself")
DI_CONFIG_ROW(TOKEN_IDS,      "token-ids",      S, "",       0, 0, "", "", "input", "the prompt as ids: 1,2,3")
DI_CONFIG_ROW(UNORDERED,      "unordered",      B, "off",    0, 0, "", "", "input", "write results as they come")
DI_CONFIG_ROW(CONCURRENCY,    "concurrency",    I, "0",      0, 4096, "", "", "generate", "requests in flight; 0 = as many as fit")
DI_CONFIG_ROW(SESSION,        "session",        S, "",       0, 0, "", "", "chat", "keep the conversation by this name, or resume it")
DI_CONFIG_ROW(SYSTEM,         "system",         S, "",       0, 0, "", "", "chat", "system message")
DI_CONFIG_ROW(TEMPERATURE,    "temperature",    F, "1",      0, 1e6, "", "", "sampling", "0 = greedy")
DI_CONFIG_ROW(TOP_P,          "top-p",          F, "1",      0, 1, "", "", "sampling", "keep the best tokens up to this share")
DI_CONFIG_ROW(TOP_K,          "top-k",          I, "0",      -1, 2147483647, "", "", "sampling", "keep the K best tokens; 0 or -1 = off")
DI_CONFIG_ROW(MIN_P,          "min-p",          F, "0",      0, 1, "", "", "sampling", "drop tokens below this share of the best")
DI_CONFIG_ROW(MAX_TOKENS,     "max-tokens",     I, "-1",     -1, 1048576, "", "", "sampling", "tokens to produce; -1 = the room left")
DI_CONFIG_ROW(STOP_TOKEN_IDS, "stop-token-ids", S, "",       0, 0, "", "", "sampling", "ids that end an answer: 1,2,3")
DI_CONFIG_ROW(IGNORE_EOS,     "ignore-eos",     B, "off",    0, 0, "", "", "sampling", "go on after the end-of-sequence id")
DI_CONFIG_ROW(LOGPROBS,       "logprobs",       I, "-1",     -1, 1000, "", "", "sampling", "log-probabilities of the best N; -1 = off")
DI_CONFIG_ROW(LOGITS_HASH,    "logits-hash",    B, "off",    0, 0, "", "", "sampling", "report the hash of the logits")
DI_CONFIG_ROW(SERVED_MODEL_NAME, "served-model-name", S, "", 0, 0, "", "", "serve", "names for the model: a,b; default: its folder's name")
DI_CONFIG_ROW(API_LIKE_SAMPLING, "api-like-sampling", B, "off", 0, 0, "", "", "serve", "the hosted service's own sampling values")
DI_CONFIG_ROW(STRICT_FIELDS,  "strict-fields",  B, "off",    0, 0, "", "", "serve", "refuse unknown fields of a request")
DI_CONFIG_ROW(DECODE,         "decode",         B, "off",    0, 0, "", "", "tokenize", "ids to text")
DI_CONFIG_ROW(CONTROL,        "control",        B, "off",    0, 0, "", "", "tokenize", "recognise added tokens in the text")
DI_CONFIG_ROW(LOGITS,         "logits",         S, "",       0, 0, "", "", "score", "float32 [tokens][vocabulary] as .npy")
DI_CONFIG_ROW(TOKENS,         "tokens",         I, "0",      0, 1e12, "", "", "verify", "tokens to compare, however long it takes; 0 = as many as two minutes allow, about 15000")
DI_CONFIG_ROW(ROWS,           "rows",           S, "",       0, 0, "", "", "verify", "rows of the matrix to run: T1,T3; default: all")
DI_CONFIG_ROW(PLANT_FAULT,    "plant-fault",    B, "off",    0, 0, "", "", "verify", "flip one bit in the engine: it must be found")
DI_CONFIG_ROW(TENSORS,        "tensors",        B, "off",    0, 0, "", "", "inspect", "list every tensor")
DI_CONFIG_ROW(LIMIT_PROMPT_BYTES, "limit-prompt-bytes", Z, "64M", 1, 1e12, "", "", "limits", "bytes of one prompt")
DI_CONFIG_ROW(LIMIT_LINE_BYTES,   "limit-line-bytes",   Z, "64M", 1, 1e12, "", "", "limits", "bytes of one JSON line")
DI_CONFIG_ROW(LIMIT_QUEUE,        "max-queue",          I, "512", 1, 1048576, "", "", "limits", "requests waiting")
DI_CONFIG_ROW(LIMIT_EVENT_BYTES,  "limit-event-bytes",  Z, "64M", 65536, 1e12, "", "", "limits", "unread events that pause a request")
DI_CONFIG_ROW(LIMIT_STOP_STRINGS, "limit-stop-strings", I, "16",  0, 1024, "", "", "limits", "stop strings of one request")
DI_CONFIG_ROW(LIMIT_CHOICES,      "limit-choices",      I, "128", 1, 4096, "", "", "limits", "choices of one HTTP request (n)")
DI_CONFIG_ROW(LIMIT_PROMPTS,      "limit-prompts",      I, "128", 1, 1048576, "", "", "limits", "prompts of one completion request")
DI_CONFIG_ROW(LIMIT_MESSAGES,     "limit-messages",     I, "10000", 1, 1e9, "", "", "limits", "messages of one conversation")
DI_CONFIG_ROW(LIMIT_TOOLS,        "limit-tools",        I, "1024", 0, 1e6, "", "", "limits", "tools of one request")
DI_CONFIG_ROW(LIMIT_LOGIT_BIAS,   "limit-logit-bias",   I, "1024", 0, 1e6, "", "", "limits", "ids in logit_bias")
DI_CONFIG_ROW(LIMIT_JSON_DEPTH,   "limit-json-depth",   I, "64",  8, 256, "", "", "limits", "nesting of a JSON body")
/* clang-format on */
#undef I
#undef B
#undef Z
#undef F
#undef C
#undef S
#undef U
