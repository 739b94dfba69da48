"""Chat templates in the manners of public models, written for these tests: what each manner asks of a renderer.

TRNRT_TEMPLATES names a folder of real checkpoints' *.jinja to be compared as well.
"""

import json
import os
import re
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.small_tokenizer import small_tokenizer

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

STYLES = {
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "llama3": "{{- bos_token }}\n{%- if not date_string is defined %}{%- set date_string = '1 Jan 2025' %}{%- endif %}"
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content']|trim %}"
    "{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}"
    "{{- '<|start_header_id|>system<|end_header_id|>\n\n' + 'Today: ' + date_string + '\n\n' }}"
    "{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}{%- endif %}"
    "{{- system }}{{- '<|eot_id|>' }}"
    "{%- for message in messages %}{%- if 'tool_calls' in message %}"
    "{%- if not message.tool_calls|length == 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    "{%- set c = message.tool_calls[0].function %}"
    '{{- \'<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "\' + c.name + \'", "parameters": \' }}'
    "{{- c.arguments | tojson }}{{- '}<|eot_id|>' }}"
    "{%- elif message.role == 'tool' %}{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}"
    "{%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}"
    "{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}"
    "{%- else %}{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}",
    "qwen3": "{%- if tools %}{{- '<|im_start|>system\n' }}{%- if messages[0].role == 'system' %}"
    "{{- messages[0].content + '\n\n' }}{%- endif %}{{- '<tools>' }}{%- for t in tools %}{{- '\n' }}{{- t | tojson }}"
    "{%- endfor %}{{- '\n</tools><|im_end|>\n' }}{%- elif messages[0].role == 'system' %}"
    "{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}"
    "{%- set ns = namespace(searching=true, last=messages|length - 1) %}"
    "{%- for m in messages[::-1] %}{%- set i = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.searching and m.role == 'user' and m.content is string %}"
    "{%- set ns.searching = false %}{%- set ns.last = i %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}"
    "{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{%- set why = '' %}{%- if m.reasoning_content is string %}{%- set why = m.reasoning_content %}"
    "{%- elif '</think>' in content %}"
    "{%- set why = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n' }}{%- if loop.index0 > ns.last and (loop.last or why) %}"
    "{{- '<think>\n' + why.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- content }}{%- endif %}"
    "{%- for c in m.tool_calls or [] %}{%- if (loop.first and content) or not loop.first %}{{- '\n' }}{%- endif %}"
    '{%- if c.function %}{%- set c = c.function %}{%- endif %}{{- \'<tool_call>\n{"name": "\' }}{{- c.name }}'
    '{{- \'", "arguments": \' }}{%- if c.arguments is string %}{{- c.arguments }}{%- else %}'
    "{{- c.arguments | tojson }}{%- endif %}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.first or (messages[loop.index0 - 1].role != 'tool') %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' }}{{- content }}{{- '\n</tool_response>' }}"
    "{%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}{{- '<|im_end|>\n' }}{%- endif %}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}",
    "mistral": "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) and m.role in ['user', 'assistant']"
    " and not m.tool_calls %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{% if loop.last and tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}{% if loop.last and system is defined %}{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}"
    "{% else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}"
    "{% elif m.tool_calls is defined %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% set out = c.function | tojson %}{{ out[:-1] }}"
    "{% if c.id|length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ ', \"id\": \"' + c.id + '\"}' }}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content|trim + eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] {\"content\": {{ m.content | tojson }}}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "gemma parts": "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' }}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text | trim }}{% endif %}{% endfor %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    "phi": "{% for m in messages %}{{ '<|' + m['role'] + '|>' + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "deepseek": "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% set ns = namespace(system='', tool=false) %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = ns.system + m.content %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% elif m.role == 'assistant' and m.tool_calls %}{{ '<｜Assistant｜></think><｜tool▁calls▁begin｜>' }}"
    "{% for c in m.tool_calls %}{{ '<｜tool▁call▁begin｜>' + c['function']['name'] + '<｜tool▁sep｜>'"
    " + c['function']['arguments'] + '<｜tool▁call▁end｜>' }}{% endfor %}"
    "{{ '<｜tool▁calls▁end｜>' + eos_token }}{% elif m.role == 'assistant' %}"
    "{% set content = m.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>', 1)[1] %}{% endif %}"
    "{{ '<｜Assistant｜></think>' + content + eos_token }}"
    "{% elif m.role == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{{ '<think>' if thinking else '</think>' }}"
    "{% endif %}",
    "kimi": "{% if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>"
    "{% endif %}{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_system|>system<|im_middle|>You are a helper.<|im_end|>{% endif %}"
    "{% set name = m.name or m.role %}{% if m.role == 'user' %}<|im_user|>{{ name }}<|im_middle|>"
    "{% elif m.role == 'assistant' %}<|im_assistant|>{{ name }}<|im_middle|>{% else %}"
    "<|im_system|>{{ name }}<|im_middle|>{% endif %}{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n"
    "{% endif %}{% if m.content is string %}{{ m.content }}{% endif %}{% if m.tool_calls %}"
    "<|tool_calls_section_begin|>{% for c in m.tool_calls %}<|tool_call_begin|>{{ c['id'] }}"
    "<|tool_call_argument_begin|>{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    "{{ c.function.arguments | tojson }}{% endif %}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>"
    "{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
    "glm4": "[gMASK]<sop>\n{%- macro visible(content) -%}{%- if content is string -%}{{- content }}"
    "{%- elif content is iterable and content is not mapping -%}{%- for item in content -%}"
    "{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{%- endmacro -%}{%- for m in messages %}{%- if m.role == 'user' -%}<|user|>\n{{ visible(m.content) }}"
    "{{- '/nothink' if (enable_thinking is defined and not enable_thinking"
    " and not visible(m.content).endswith('/nothink')) else '' -}}{%- elif m.role == 'assistant' -%}<|assistant|>\n"
    "{%- if m.reasoning_content is string %}{{ '<think>' + m.reasoning_content.strip() + '</think>' }}{%- endif %}"
    "{{ '\n' + visible(m.content).strip() }}{%- for c in m.tool_calls or [] %}{{ '\n<tool_call>' + c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>\n{% endfor %}</tool_call>"
    "{%- endfor %}{%- elif m.role == 'tool' -%}<|observation|>{{- '\n' + visible(m.content) }}"
    "{%- elif m.role == 'system' -%}<|system|>\n{{ visible(m.content) }}{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>"
    "{{- '\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}",
    "hermes": "{{bos_token}}{% if tools %}{{ '<|im_start|>system\n<tools> ' }}{% for t in tools %}"
    "{{ {'type': 'function', 'function': t.function} | tojson(sort_keys=true) }}{% if not loop.last %}{{ '\n' }}"
    "{% endif %}{% endfor %}{{ ' </tools><|im_end|>\n' }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'assistant' and m.tool_calls is defined %}{{ '<|im_start|>assistant' }}"
    "{% for c in m.tool_calls %}{% set c = c.function %}{{ '\n<tool_call>\n' }}"
    "{{ dict(name=c.name, arguments=c.arguments) | tojson }}{{ '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{% if not loop.previtem or loop.previtem.role != 'tool' %}{{ '<|im_start|>tool\n' }}"
    "{% endif %}{{ '<tool_response>\n' + m.content }}{% if not loop.last %}{{ '\n</tool_response>\n' }}{% else %}"
    "{{ '\n</tool_response>' }}{% endif %}{% if not loop.last and loop.nextitem.role != 'tool' %}{{ '<|im_end|>' }}"
    "{% elif loop.last %}{{ '<|im_end|>' }}{% endif %}{% else %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "granite": "{%- if tools %}{{ '<|start_of_role|>available_tools<|end_of_role|>\n' }}{%- for t in tools %}\n"
    "{{- t | tojson(indent=4) }}\n{%- if not loop.last %}{{ '\n\n' }}{%- endif %}{%- endfor %}"
    "{{ '<|end_of_text|>\n' }}{%- endif %}{%- for m in messages %}{%- if m['role'] == 'tool' %}"
    "{{- '<|start_of_role|>tool_response<|end_of_role|>' + m['content'] + '<|end_of_text|>\n' }}"
    "{%- else %}{{- '<|start_of_role|>' + m['role'] + '<|end_of_role|>' }}"
    "{{- m['content'] if m['content'] else m['tool_calls']|tojson }}{{- '<|end_of_text|>\n' }}{%- endif %}"
    "{%- if loop.last and add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"
    "{%- endfor %}",
    "command r": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}"
    "{% set system_message = 'You are Command.' %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% if system_message != false %}"
    "{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% for m in loop_messages %}{% set content = m['content'] %}{% if m['role'] == 'user' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}"
    "{% elif m['role'] == 'assistant' %}"
    "{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    "smollm": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helper<|im_end|>\n' }}{% endif %}"
    "{%- if message.role == 'assistant' -%}{% generation %}{{ '<|im_start|>assistant\n' + message.content"
    " + '<|im_end|>\n' }}{% endgeneration %}{%- else -%}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{%- endif -%}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
}

if "TRNRT_TEMPLATES" in os.environ:
    STYLES |= {path.stem: path.read_text() for path in Path(os.environ["TRNRT_TEMPLATES"]).glob("*.jinja")}

_CONTROL = re.compile(r"<[|｜][^|｜<>]+[|｜]>|</?[a-z_]+>|\[/?[A-Z_]{4,}\]")


def control_texts_of(style: str) -> tuple[str, ...]:
    written = [*_CONTROL.findall(STYLES[style]), *VARIABLES.values()]
    roles = ("<|user|>", "<|assistant|>", "<|system|>")
    return tuple(dict.fromkeys([*written, *(roles if style == "phi" else ())]))


@cache
def tokenizer_of(style: str) -> Tokenizer:
    """The small tokenizer with this style's control texts; phi's take the whitespace behind them."""
    tokenizer = Tokenizer.from_str(small_tokenizer().to_str())
    tokens = [
        AddedToken(text, special=True, normalized=False, rstrip=style == "phi") for text in control_texts_of(style)
    ]
    tokenizer.add_special_tokens(tokens)
    return tokenizer


@cache
def transformers_of(style: str) -> PreTrainedTokenizerFast:
    result = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_of(style).to_str()), **VARIABLES)
    result.chat_template = STYLES[style]
    return result


def write_folder(style: str, folder: Path) -> Path:
    tokenizer_of(style).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**VARIABLES, "chat_template": STYLES[style]}))
    return folder
