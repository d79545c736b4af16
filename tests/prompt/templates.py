"""Cards with real templates (fixtures/templates), and small ones of our own for what Llama's, Mistral's and Hermes' do.

Thread: any
"""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lattice_cli.model.card import ModelCard
from tests.engine.letters import LETTERS

FOLDER = Path(__file__).parents[2] / "fixtures" / "templates"

# As Llama 3.1: calls are bare JSON with `parameters`, one a turn, and the key `tool_calls` alone makes a turn a call.
LLAMA3 = """{{- bos_token }}{% if tools is not none %}<|user|>Respond with {"name": function name, "parameters": ...}.
{% for t in tools %}{{ t | tojson(indent=4) }}
{% endfor %}{% endif %}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|assistant|>{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ '}<|end|>' }}
{%- else %}
{{- '<|' + message.role + '|>' + message.content | trim + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

# As Mistral Nemo: ids of nine letters, roles in turn, tools before the last question, the system in it.
MISTRAL = """{%- set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}
{%- set asked = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in loop_messages %}
{%- if message.role == 'user' %}
{%- if tools is not none and message == asked[-1] %}{{ '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{{- '[INST]' }}{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- message.content + '[/INST]' }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{% if not loop.last %}, {% endif %}
{%- endfor %}]</s>
{%- elif message.role == 'assistant' %}{{ message.content + '</s>' }}
{%- elif message.role == 'tool' %}{{ '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{%- endfor %}"""

# As Hermes 2 Pro's `tool_use`: it adds to descriptions without asking for one, and goes through all properties.
HERMES = """<|im_start|>system
<tools>{% for tool in tools %}{{ tool.function.name + ' - ' + tool.function.description }}
{%- for name, fields in tool.function.parameters.properties | items %}{{ ' ' + name }}{% endfor %}
{{ tool | tojson }}{% endfor %}</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-dict>}
</tool_call><|im_end|>
{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.tool_calls is defined %}{% for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# As Gemma: no words of the system.
NO_SYSTEM = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
<{{ m.role }}>{{ m.content | trim }}
{% endfor %}"""

_OWN = {"llama3": LLAMA3, "mistral": MISTRAL, "hermes": HERMES, "no-system": NO_SYSTEM}


def card_of(name: str) -> ModelCard:
    """A card whose tokens are letters and whose template is the one of that name."""
    source = _OWN.get(name) or (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return replace(LETTERS, chat_template=source, bos_token="<s>", eos_token="</s>")
