/* embed.c - one greedy answer through the library: cc embed.c $(pkg-config --cflags --libs deepinfer) */
#include <deepinfer.h>
#include <stdio.h>

int main(int argc, char **argv) {
    const char *prompt = "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>";
    di_error error;
    di_engine *engine;
    if (di_open(argc > 1 ? argv[1] : NULL, NULL, 0, &engine, &error) != DI_OK) return puts(error.message), 1;

    di_segment segment = {0};
    int32_t *ids = NULL;
    di_request_params params;
    di_request *request = NULL;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.temperature = 0;
    di_status status = di_tokenize(engine, prompt, DI_ZSTRING, true, &ids, &segment.token_count, &error);
    segment.token_ids = ids;
    if (status == DI_OK) status = di_submit(engine, &params, &request, &error);
    if (status != DI_OK) puts(error.message);
    for (di_event event; request && di_request_next(request, -1, &event); status = event.status)
        fwrite(event.text, 1, event.text_length, stdout);
    putchar('\n');
    di_request_free(request);
    di_free(ids);
    di_close(engine);
    return status == DI_OK ? 0 : 1;
}
