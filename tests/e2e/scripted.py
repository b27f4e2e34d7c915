"""A server of models that say what a script says (make_scripted.py), so that each test knows the answer.

Their templates are in the style of Qwen 3, of Qwen 3 2507 (which opens the reasoning itself), of Llama 3.1 and of Mistral.
"""

import contextlib

import make_scripted
import serving
from unit_tool import compile_plan

QWEN3 = r"""{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\n' }}{%- endfor %}
    {{- 'Call them within <tool_call></tool_call>.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"""
OPEN = r"""{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}
{{- '<|im_start|>assistant\n<think>\n' }}"""
LLAMA = r"""{{- '<|begin_of_text|>' }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + message.tool_calls[0].function.name + '", ' }}
        {{- '"parameters": ' + message.tool_calls[0].function.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) + '<|end_header_id|>\n\n' }}
        {%- if tools and loop.first %}{%- for tool in tools %}{{- tool | tojson + '\n\n' }}{%- endfor %}{%- endif %}
        {{- message.content + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"""
MISTRAL = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}
        {%- endfor %}
        {{- ']</s>' }}
    {%- elif message.role == 'tool' %}{{- '[TOOL_RESULTS]{"content": ' + message.content + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{- message.content + '</s>' }}
    {%- endif %}
{%- endfor %}"""

CHATML = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADERS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>", "<|eot_id|>"]
INST = ["<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "</s>"]
THINK, TAGS = ["<think>", "</think>"], ["<tool_call>", "</tool_call>"]

# The reasoning goes round for ever where </think> is forbidden; then there is an answer or, where "The" is, a call.
THOUGHT = {"\nLet": " me", " me": " think:", " think:": " h\u00e9", " h\u00e9": " 😀.\n", " 😀.\n": ["</think>", " me"],
           "</think>": "\n\n"}
REASONING = "Let me think: h\u00e9 😀."
ANSWER = {"The": " answer", " answer": " is", " is": " 42."}
CONTENT = "The answer is 42."


def call_script(end):
    """From the beginning of a call, whole or begun by the server, to its last brace."""
    return {' "add",': end[0], end[0]: ' {"a":', " ": '{"a":', '"': 'mul",', 'mul",': end[0], ' {"a":': " 1}", '{"a":': " 1}",
            " 1}": end[1]}


SCRIPTS = {
    "qwen3": (QWEN3, CHATML, THINK + TAGS, "<|im_end|>", THOUGHT | ANSWER | call_script([' "arguments":', "}\n"]) | {
        "\n": ["<think>", "<tool_call>", "The"], "<think>": "\nLet", "\n\n": ["The", "<tool_call>"], " 42.": "<|im_end|>",
        "<tool_call>": '\n{"name":', '\n{"name":': ' "add",', "}\n": "</tool_call>", "</tool_call>": "<|im_end|>"}),
    "open": (OPEN, CHATML, THINK, "<|im_end|>", THOUGHT | ANSWER | {"\n": "\nLet", "\n\n": "The", " 42.": "<|im_end|>"}),
    "llama": (LLAMA, HEADERS, [], "<|eot_id|>", ANSWER | call_script([' "parameters":', "}"]) | {
        "\n\n": ['{"name":', "<|python_tag|>", "The"], "<|python_tag|>": '{"name":', '{"name":': ' "add",', "}": "<|eot_id|>",
        " 42.": "<|eot_id|>"}),
    "mistral": (MISTRAL, INST, [], "</s>", ANSWER | call_script([' "arguments":', "}]"]) | {
        "[/INST]": ["[TOOL_CALLS]", "The"], "[/TOOL_RESULTS]": "The", "[TOOL_CALLS]": '[{"name":', '[{"name":': ' "add",',
        "}]": "</s>", " 42.": "</s>"}),
}


@contextlib.contextmanager
def serve(folder, *options):
    """The server has all of SCRIPTS, by these names; its `ids` are {model: {token: id}}."""
    ids, models = {}, []
    for name, (template, control, marks, end, script) in SCRIPTS.items():
        gguf, plan = folder / f"{name}.gguf", folder / f"{name}.plan"
        ids[name] = make_scripted.make(gguf, name, script, template, control, marks, end)
        compile_plan(gguf, plan, 1024, 4, 128)
        models.append(f"{name}={plan}")
    with serving.serve(*models, "--threads", 1, *options) as s:
        s.ids = ids
        yield s
