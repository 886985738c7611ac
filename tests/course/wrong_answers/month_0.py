"""Month 0: answers that must fail, each with its hint, and other right answers."""

from tests.course.answers import Alternative, Wrong

ANSWERS = [
    Wrong("0.1", "V forgotten", "K and V, both", "bytes_per_token = 409600"),
    Wrong("0.1", "one layer only", "40 layers", "bytes_per_token = 2 * 40 * 128 * 2"),
    Wrong("0.1", "KiB for bytes", "asks for bytes", "bytes_per_token = 800"),
    Wrong("0.1", "fp32", "not 4", "bytes_per_token = 2 * 40 * 40 * 128 * 4"),
    Wrong("0.1", "max_len times hidden size", "counts neither the layers", "bytes_per_token = 2048 * 5120 * 2"),
    Wrong("0.1", "a text", "Write the number", "bytes_per_token = '800 KiB'"),
    Alternative("0.1", "through the hidden size", "bytes_per_token = 40 * 5120 * 2 * 2"),
    Wrong("0.2", "query heads", "Count KV heads", "gqa_bytes_per_token = 524288"),
    Wrong("0.2", "V forgotten", "K and V", "gqa_bytes_per_token = 32 * 8 * 128 * 2"),
    Wrong("0.2", "all heads together", "no entry in the cache", "gqa_bytes_per_token = 32 * (32 + 8) * 128 * 2 * 2"),
    Wrong("0.2", "a float", "make it an integer", "gqa_bytes_per_token = 524288 / 4"),
    Alternative("0.2", "a quarter of full attention", "gqa_bytes_per_token = 524288 // 4"),
    Wrong("0.3", "GB for GiB", "GiB = 2^30", "num_slots = 14648"),
    Wrong("0.3", "rounded up", "round down", "num_slots = -(-12 * 2**30 // 819200)"),
    Wrong("0.3", "the paper's rounded number", "exact number", "num_slots = 15700"),
    Wrong("0.3", "half a slot", "K and V", "num_slots = 12 * 2**30 // 409600"),
    Alternative("0.3", "in KiB", "num_slots = 12 * 1024 * 1024 // 800"),
    Wrong("0.4", "all three", "read an old query", "cached, reason = {'Q', 'K', 'V'}, 'b'"),
    Wrong("0.4", "Q alone", "read an old query", "cached, reason = {'Q'}, 'b'"),
    Wrong("0.4", "V forgotten", "V will be read again", "cached, reason = {'K'}, 'b'"),
    Wrong("0.4", "right letters, wrong reason", "Size is not the reason", "cached, reason = {'K', 'V'}, 'a'"),
    Wrong("0.4", "Q from K and V", "comes from the hidden state", "cached, reason = {'K', 'V'}, 'd'"),
    Alternative("0.4", "a list, small letters", "cached, reason = ['v', 'k'], 'B'"),
    Wrong("0.5", "position 0 in every step", "not 0", """
def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[0]
    cache_k.append(hidden @ model.w_k)
    cache_v.append(hidden @ model.w_v)
    return torch.softmax(torch.stack(cache_k) @ (hidden @ model.w_q) * model.scale, 0) @ torch.stack(cache_v)
"""),
    Wrong("0.5", "does not look at itself", "attends to itself", """
def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[len(cache_k)]
    out = torch.softmax(torch.stack(cache_k) @ (hidden @ model.w_q) * model.scale, 0) @ torch.stack(cache_v)
    cache_k.append(hidden @ model.w_k)
    cache_v.append(hidden @ model.w_v)
    return out
"""),
    Wrong("0.5", "keeps nothing", "append both", """
def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[len(cache_k)]
    keys = torch.stack(cache_k + [hidden @ model.w_k])
    values = torch.stack(cache_v + [hidden @ model.w_v])
    return torch.softmax(keys @ (hidden @ model.w_q) * model.scale, 0) @ values
"""),
    Wrong("0.5", "no scale", "model.scale", """
def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[len(cache_k)]
    cache_k.append(hidden @ model.w_k)
    cache_v.append(hidden @ model.w_v)
    return torch.softmax(torch.stack(cache_k) @ (hidden @ model.w_q), 0) @ torch.stack(cache_v)
"""),
    Wrong("0.5", "one position too far", "before you append", """
def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[len(cache_k) + 1]
    cache_k.append(hidden @ model.w_k)
    cache_v.append(hidden @ model.w_v)
    return torch.softmax(torch.stack(cache_k) @ (hidden @ model.w_q) * model.scale, 0) @ torch.stack(cache_v)
"""),
    Alternative("0.5", "plain loops", """
import math

def decode_step(model, token_id, cache_k, cache_v):
    hidden = model.token_embedding[token_id] + model.position_embedding[len(cache_v)]
    cache_k += [hidden @ model.w_k]
    cache_v += [hidden @ model.w_v]
    query = hidden @ model.w_q
    scores = [math.exp(float(query @ key) * model.scale) for key in cache_k]
    return sum(score / sum(scores) * value for score, value in zip(scores, cache_v))
"""),
    Wrong("0.6", "the newest counted", "not fed yet", """
def cache_entries(num_prompt, num_sampled):
    return num_prompt + num_sampled
"""),
    Wrong("0.6", "nothing sampled", "not one token less", """
def cache_entries(num_prompt, num_sampled):
    return num_prompt + num_sampled - 1
"""),
    Wrong("0.6", "the prompt forgotten", "not fed yet", """
def cache_entries(num_prompt, num_sampled):
    return num_sampled - 1
"""),
    Alternative("0.6", "counts what is fed, step by step", """
def cache_entries(num_prompt, num_sampled):
    entries, waiting = num_prompt, False
    for _ in range(num_sampled):
        entries, waiting = entries + waiting, True
    return entries
"""),
    Wrong("0.7", "the last token counted, with a cache", "attention is still O(t)", """
def kv_projections(num_prompt, num_new, use_cache):
    return num_prompt + num_new if use_cache else sum(num_prompt + i for i in range(num_new))
"""),
    Wrong("0.7", "the last token counted, without a cache", "never fed", """
def kv_projections(num_prompt, num_new, use_cache):
    return num_prompt + num_new - 1 if use_cache else sum(num_prompt + i for i in range(num_new + 1))
"""),
    Wrong("0.7", "the sequence does not grow", "The sequence grows", """
def kv_projections(num_prompt, num_new, use_cache):
    return num_prompt + num_new - 1 if use_cache else num_prompt * num_new
"""),
    Wrong("0.7", "no prefill", "in the prefill", """
def kv_projections(num_prompt, num_new, use_cache):
    return num_new if use_cache else sum(num_prompt + i for i in range(num_new))
"""),
    Alternative("0.7", "the closed form", """
def kv_projections(num_prompt, num_new, use_cache):
    if use_cache:
        return num_prompt - 1 + num_new
    return num_prompt * num_new + num_new * (num_new - 1) // 2
"""),
    Wrong("0.8", "reserved and internal exchanged", "ever use the slot", """
labels = (["used"] * 4 + ["internal"] + ["reserved"] * 3 + ["external"] * 3
          + ["duplicate"] * 2 + ["used"] + ["internal"] * 2 + ["reserved"] + ["external"] * 3)
"""),
    Wrong("0.8", "all that is unwritten is reserved", "ever use the slot", """
labels = (["used"] * 4 + ["reserved"] * 4 + ["external"] * 3
          + ["duplicate"] * 2 + ["used"] + ["reserved"] * 3 + ["external"] * 3)
"""),
    Wrong("0.8", "holes taken for internal", "belong to a reservation", """
labels = (["used"] * 4 + ["reserved"] + ["internal"] * 6
          + ["duplicate"] * 2 + ["used"] + ["reserved"] * 2 + ["internal"] * 4)
"""),
    Wrong("0.8", "the copy not seen", "equal positions", """
labels = (["used"] * 4 + ["reserved"] + ["internal"] * 3 + ["external"] * 3
          + ["used"] * 3 + ["reserved"] * 2 + ["internal"] + ["external"] * 3)
"""),
    Wrong("0.8", "a different token called a copy", "all tokens before it agree", """
labels = (["used"] * 4 + ["reserved"] + ["internal"] * 3 + ["external"] * 3
          + ["duplicate"] * 3 + ["reserved"] * 2 + ["internal"] + ["external"] * 3)
"""),
    Wrong("0.8", "one slot missing", "Slots 0 to 19", """
labels = (["used"] * 4 + ["reserved"] + ["internal"] * 3 + ["external"] * 3
          + ["duplicate"] * 2 + ["used"] + ["reserved"] * 2 + ["internal"] + ["external"] * 2)
"""),
    Alternative("0.8", "a tuple, through single letters", """
names = dict(u="used", r="reserved", i="internal", e="external", d="duplicate")
labels = tuple(names[letter] for letter in "uuuuriiieeedduRRieee".lower())
"""),
]
