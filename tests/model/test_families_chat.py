"""Chat templates as transformers renders them, begin tokens, and what generation_config.json says."""

import json
import shutil

import pytest
import tokenizers

from minipaged import LLM, SamplingParams
from minipaged.cli import main
from minipaged.model import TINY_FOLDER, CheckpointError, ModelConfig, Tokenizer, load_model

MESSAGES = [
    {"role": "system", "content": " Answer <briefly> & well. "},
    {"role": "user", "content": "Wie heißt du?"},
    {"role": "assistant", "content": "minipaged"},
    {"role": "user", "content": "And why?"},
]
TEMPLATES = {
    "llama 3": (
        "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{- bos_token }}\n"
        "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
        "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}\n"
        "{{- '<|start|>system\\n\\n' + 'Today: ' + strftime_now('%Y') + '\\n' + system + eos_token }}\n"
        "{%- for message in messages %}\n"
        "    {{- '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + eos_token }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|start|>assistant\\n\\n' }}{%- endif %}"
    ),
    "qwen": (
        "{%- if tools %}{{- tools | tojson }}{%- endif %}\n"
        "{%- set ns = namespace(last=messages|length - 1) %}\n"
        "{%- for message in messages[::-1] %}{%- if message.role == 'user' %}\n"
        "{%- set ns.last = loop.index0 %}{%- break %}{%- endif %}{%- endfor %}\n"
        "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
        "{%- endfor %}\n{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\n"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- 'none' }}{%- endif %}{%- endif %}"
        "{{ ns.last }}"
    ),
    "mistral": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% else %}{{ message | tojson }}"
        "{% endif %}{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_rendered_as_by_transformers(name, add_generation_prompt):
    from transformers import PreTrainedTokenizerFast

    core = tokenizers.Tokenizer.from_file(str(TINY_FOLDER / "tokenizer.json"))
    special = {"bos_token": "<|system|>", "eos_token": "<|end|>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATES[name], **special)
    expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=add_generation_prompt)
    ours = Tokenizer(core, TEMPLATES[name], **special)
    assert ours.apply_chat_template(MESSAGES, add_generation_prompt) == expected
    assert ours.encode_chat(MESSAGES) == theirs.apply_chat_template(
        MESSAGES, add_generation_prompt=True, return_dict=False
    )


@pytest.fixture
def with_bos(tmp_path):
    """The bundled tokenizer, made to begin every text with a token, as Llama's does."""
    shutil.copytree(TINY_FOLDER, tmp_path, dirs_exist_ok=True)
    core = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    begin = ("<|system|>", core.token_to_id("<|system|>"))
    core.post_processor = tokenizers.processors.TemplateProcessing(single="<|system|> $A", special_tokens=[begin])
    core.save(str(tmp_path / "tokenizer.json"))
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"bos_token": {"content": "<|system|>"}}))
    return tmp_path


def test_begin_token_once(with_bos):
    tokenizer = Tokenizer.from_folder(with_bos)
    begin = tokenizer.bos_token_id
    assert tokenizer.encode("fathers")[0] == begin
    chat = tokenizer.apply_chat_template([{"role": "system", "content": "fathers"}])
    assert tokenizer.encode(chat)[:2] == [begin, *tokenizer.encode("fathers")[1:2]]
    assert tokenizer.encode_chat([{"role": "system", "content": "fathers"}]) == tokenizer.encode(chat)
    user = [{"role": "user", "content": "fathers"}]
    assert begin not in tokenizer.encode_chat(user)  # the template has the last word, as in transformers


def test_named_templates(with_bos):
    file = with_bos / "tokenizer_config.json"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": named}))
    assert Tokenizer.from_folder(with_bos).apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "hi"}], 7])
def test_content_that_the_template_cannot_take(content):
    tokenizer = load_model("tiny")[1]
    tokenizer.chat_template = "{{ messages[0].content + eos_token }}"
    with pytest.raises(ValueError, match=r"cannot take these messages \(TypeError.*plain text"):
        tokenizer.apply_chat_template([{"role": "user", "content": content}])


@pytest.mark.parametrize("template", [7, {"default": "x"}])
def test_template_that_is_none(with_bos, template):
    (with_bos / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: chat_template is a (int|dict); expected"):
        Tokenizer.from_folder(with_bos)


def test_chat_on_the_command_line(capsys):
    assert main(["generate", "--chat", "What is a block?"]) == 0
    chat = capsys.readouterr().out
    prompt = load_model("tiny")[1].apply_chat_template([{"role": "user", "content": "What is a block?"}])
    assert main(["generate", prompt]) == 0
    assert capsys.readouterr().out == chat


@pytest.fixture
def recommending(tmp_path):
    shutil.copytree(TINY_FOLDER, tmp_path, dirs_exist_ok=True)

    def write(**values):
        (tmp_path / "generation_config.json").write_text(json.dumps(values))
        return tmp_path

    return write


def test_every_end_token_of_generation_config_ends_a_text(recommending):
    model, tokenizer = load_model("tiny")
    prompt = "Four score and seven years ago our"
    tokens = LLM((model, tokenizer)).generate(prompt, SamplingParams(max_tokens=8))[0].outputs[0].token_ids
    folder = recommending(eos_token_id=[model.config.eos_token_id, tokens[4], tokens[2]])
    config = ModelConfig.from_folder(folder)
    assert (config.eos_token_id, config.stop_token_ids) == (model.config.eos_token_id, (tokens[4], tokens[2]))
    llm = LLM(folder)
    [ended] = llm.generate(prompt, SamplingParams(max_tokens=8))[0].outputs
    assert (ended.token_ids, ended.finish_reason) == (tokens[:3], "stop")
    [whole] = llm.generate(prompt, SamplingParams(max_tokens=8, ignore_eos=True))[0].outputs
    assert whole.token_ids == tokens


def test_recommended_sampling_only_where_asked(recommending, capsys):
    folder = recommending(do_sample=True, temperature=0.7, top_k=20, top_p=0.8)
    llm = LLM(folder)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.7, top_k=20, top_p=0.8)
    assert llm.get_default_sampling_params(top_k=3, seed=1).top_k == 3
    assert llm.generate("Four score")[0].outputs == LLM("tiny").generate("Four score")[0].outputs
    asked = ["generate", "--model", str(folder), "Four", "--max-tokens", "20", "--seed", "1"]
    assert main([*asked, "--generation-config"]) == 0
    drawn = capsys.readouterr().out
    assert main([*asked, "--temperature", "0.7", "--top-k", "20", "--top-p", "0.8"]) == 0
    assert capsys.readouterr().out == drawn
    assert main([*asked, "--generation-config", "--temperature", "0"]) == 0
    assert main(["generate", "Four", "--beam", "2", "--generation-config"]) == 2


def test_greedy_unless_do_sample(recommending):
    assert LLM(recommending(temperature=0.7)).get_default_sampling_params().greedy
    sampled = LLM(recommending(do_sample=True)).get_default_sampling_params()
    assert (sampled.temperature, sampled.top_k, sampled.top_p) == (1.0, 50, 1.0)


def test_what_cannot_be_followed_is_named(recommending):
    folder = recommending(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05)
    llm = LLM(folder)
    llm.generate("Four score", SamplingParams(max_tokens=1))
    with pytest.raises(
        ValueError, match=r"repetition_penalty = 1.05, which.*SamplingParams\(temperature=0.7, top_k=20"
    ):
        llm.get_default_sampling_params()
    assert LLM(recommending(repetition_penalty=1.0, num_beams=1)).get_default_sampling_params().greedy


@pytest.mark.parametrize("ends", [[3, -1], "</s>", [True], 10**6])
def test_end_tokens_that_are_none(recommending, ends):
    with pytest.raises(CheckpointError, match=r"eos_token_id holds .* between 0 and 1023"):
        load_model(recommending(eos_token_id=ends))
