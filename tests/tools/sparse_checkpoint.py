"""Writes a checkpoint that has real headers and no data: shards of full size, all holes.

    sparse_checkpoint.py CONFIG FOLDER [--cut]

CONFIG is a nested config.json of the DeepSeek-V4.1 family. The tensors are listed here a second time, written from the
layout's description and not from the program's source, so that either list checks the other. --cut ends every shard
right after its header. Shards are laid out as in the release: vision, embedding, one for each layer, head, one for each
draft stage, one for the Engram tensors of each Engram layer.
"""
import json
import os
import shutil
import sys

SIZES = {"F32": 4, "BF16": 2, "I8": 1, "F8_E4M3": 1, "F8_E8M0": 1}


def fp8(name, rows, columns):
    return [(name + ".weight", "F8_E4M3", [rows, columns]), (name + ".scale", "F8_E8M0", [-(-rows // 32), columns // 32])]


def fp4(name, rows, columns):
    return [(name + ".weight", "I8", [rows, columns // 2]), (name + ".scale", "F8_E8M0", [rows, columns // 32])]


def bf16(name, *shape):
    return [(name, "BF16", list(shape))]


def f32(name, *shape):
    return [(name, "F32", list(shape))]


def block(t, p, experts):
    """What every layer and every draft stage has."""
    d, f, h = t["hidden_size"], t["moe_intermediate_size"], t["num_attention_heads"]
    s, m = t["head_dim"], t["hc_mult"]
    q, o, g = t["q_lora_rank"], t["o_lora_rank"], t["o_groups"]
    out = bf16(p + "attn_norm.weight", d) + bf16(p + "ffn_norm.weight", d)
    for site in ("attn", "ffn"):
        hc = f"{p}hc_{site}_"
        out += f32(hc + "fn", (2 + m) * m, m * d) + f32(hc + "base", (2 + m) * m) + f32(hc + "scale", 3)
    a = p + "attn."
    out += f32(a + "attn_sink", h) + fp8(a + "wq_a", q, d) + bf16(a + "q_norm.weight", q) + fp8(a + "wq_b", h * s, q)
    out += fp8(a + "wkv", s, d) + bf16(a + "kv_norm.weight", s)
    out += fp8(a + "wo_a", g * o, h * s // g) + fp8(a + "wo_b", d, g * o)
    m = p + "ffn."
    out += bf16(m + "gate.weight", experts, d) + f32(m + "gate.bias", experts) + f32(m + "gate.bias_vl", experts)
    for e in range(experts):
        x = f"{m}experts.{e}."
        out += fp4(x + "w1", f, d) + fp4(x + "w3", f, d) + fp4(x + "w2", d, f)
    x = m + "shared_experts."
    return out + fp8(x + "w1", f, d) + fp8(x + "w3", f, d) + fp8(x + "w2", d, f)


def layer(t, number):
    p, d, s, i = f"layers.{number}.attn.", t["hidden_size"], t["head_dim"], t["index_head_dim"]
    out = block(t, f"layers.{number}.", t["n_routed_experts"])
    if number in t["kv_source_layer_ids"]:
        out += bf16(p + "compressor.wkv.weight", s, d)
        if t["compress_ratios"][number] == 2:
            out += bf16(p + "compressor.wgate.weight", s, d)
        out += bf16(p + "compressor.norm.weight", s)
        out += bf16(p + "indexer.wk.weight", i, s) + bf16(p + "indexer.k_norm.weight", i)
    if number in t["index_source_layer_ids"]:
        out += fp8(p + "indexer.wq_b", t["index_n_heads"] * i, t["q_lora_rank"])
        out += bf16(p + "indexer.weights_proj.weight", t["index_n_heads"], d)
    return out


def draft(t, stage):
    p, d, v, r = f"mtp.{stage}.", t["hidden_size"], t["vocab_size"], t["dspark_markov_rank"]
    out = block(t, p, t["dspark_n_routed_experts"])
    if stage == 0:
        out += fp8(p + "main_proj", d, d * len(t["dspark_target_layer_ids"])) + bf16(p + "main_norm.weight", d)
    if stage == t["num_nextn_predict_layers"] - 1:
        out += bf16(p + "norm.weight", d) + bf16(p + "markov_head.embed.weight", v, r)
        out += bf16(p + "markov_head.head.weight", v, r) + bf16(p + "confidence_head.proj.weight", 1, d + r)
    return out


def engram(t, number, rows):
    p, d, m, s = f"layers.{number}.engram.", t["hidden_size"], t["hc_mult"], t["engram_head_dim"]
    columns = (t["engram_max_ngram_size"] - 1) * t["engram_n_heads"]
    out = [(p + "embed.weight", "F8_E4M3", [rows, s]), (p + "embed.scale", "F8_E8M0", [rows, s // 32])]
    return out + fp8(p + "wkv", (m + 1) * d, columns * s) + bf16(p + "q_weight", m, d) + bf16(p + "k_weight", m, d)


def vision(t, c):
    d, v, f = t["hidden_size"], c["hidden_size"], c["intermediate_size"]
    out = bf16("vision.patch_embed.proj.weight", v, 3 * c["patch_size"] ** 2) + bf16("vision.patch_embed.proj.bias", v)
    for b in range(c["num_hidden_layers"]):
        p = f"vision.blocks.{b}."
        out += bf16(p + "norm1.weight", v) + bf16(p + "norm2.weight", v)
        out += bf16(p + "attn.wqkv.weight", 3 * v, v) + bf16(p + "attn.wqkv.bias", 3 * v)
        out += bf16(p + "attn.wo.weight", v, v) + bf16(p + "attn.wo.bias", v)
        out += bf16(p + "mlp.w1.weight", 2 * f, v) + bf16(p + "mlp.w2.weight", v, f)
    out += bf16("vision.norm.weight", v) + bf16("aligner.w1.weight", d, v * c["downsample_ratio"] ** 2)
    return out + bf16("aligner.w1.bias", d) + bf16("aligner.w2.weight", d, d) + bf16("aligner.w2.bias", d)


def shards(config):
    t, d = config["text_config"], config["text_config"]["hidden_size"]
    embed = bf16("embed.weight", t["vocab_size"], d)
    if config.get("vision_config"):
        yield vision(t, config["vision_config"])
        embed += bf16("image_start", d) + bf16("image_end", d) + bf16("image_newline", d)
    yield embed
    for number in range(t["num_hidden_layers"]):
        yield layer(t, number)
    yield bf16("head.weight", t["vocab_size"], d) + bf16("norm.weight", d)
    for stage in range(t["num_nextn_predict_layers"]):
        yield draft(t, stage)
    for number, rows in zip(t["engram_layer_ids"], t["engram_num_embeddings"]):
        yield engram(t, number, rows)


def write(config_path, folder, cut):
    with open(config_path, encoding="utf-8") as file:
        config = json.load(file)
    os.makedirs(folder, exist_ok=True)
    shutil.copy(config_path, os.path.join(folder, "config.json"))
    lists = list(shards(config))
    where, total = {}, 0
    for i, tensors in enumerate(lists):
        name = f"model-{i + 1:05}-of-{len(lists):05}.safetensors"
        header, end = {}, 0
        for tensor, dtype, shape in tensors:
            size = SIZES[dtype]
            for n in shape:
                size *= n
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            where[tensor] = name
            end += size
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        with open(os.path.join(folder, name), "wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            if not cut:
                file.truncate(8 + len(raw) + end)
        total += end
    with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": where}, file, indent=1)
    return total


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--cut"]):
        sys.exit(__doc__)
    print(write(sys.argv[1], sys.argv[2], len(sys.argv) == 4))
