"""The chat template interpreter against Python's jinja2, set up as transformers does: the templates of SmolLM2
and Qwen2.5 on 200 seeded conversations, a list of snippets for each feature, and seeded random templates.

Where jinja2 fails, the interpreter must fail too (the messages differ); where it doesn't, the texts must be
the same.
"""

import datetime
import functools
import json
import os
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("ISO_BUILD", ROOT / "build"))
TOOL = BUILD / "tests/tools/tool_template"

# Python's own about the code that jinja2 makes of {{ 1[0] }}.
pytestmark = [pytest.mark.filterwarnings("ignore::SyntaxWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TOKENIZERS = pathlib.Path(os.environ.get("ISO_TOKENIZERS", pathlib.Path.home() / ".cache/isochron/tokenizers"))
SEED = 20240611
CONVERSATIONS = 200
RANDOM_LAYOUTS = 2000
RANDOM_EXPRESSIONS = 3000
RANDOM_PROGRAMS = 1500

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN25 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


class Generation(jinja2.ext.Extension):
    """The tag {% generation %}, as transformers sets it up."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("render"), [], [], body).set_lineno(line)

    def render(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


ENV = environment()


compiled = functools.lru_cache(4)(ENV.from_string)


def expected(template, context):
    """jinja2's text, or its exception."""
    if "strftime_now" in context:  # a time for us, a function for jinja2
        now = datetime.datetime.fromisoformat(context["strftime_now"])
        context = dict(context, strftime_now=now.strftime)
    try:
        return compiled(template).render(**context)
    except Exception as error:  # Python's own (TypeError, ZeroDivisionError, ...) pass through jinja2
        return error


def render(cases):
    """The interpreter's answers to pairs of a template and a context."""
    lines = "".join(json.dumps({"template": t, "context": c}) + "\n" for t, c in cases).encode()
    done = subprocess.run([TOOL], input=lines, capture_output=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:].decode()
    answers = [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]
    assert len(answers) == len(cases)
    return answers


def difference(template, context, answer):
    """What is wrong with the answer, or None."""
    want = expected(template, context)
    if isinstance(want, Exception):
        return f"{template!r}\n  jinja2 fails: {want!r}\n  we give {answer['out']!r}" if "out" in answer else None
    if answer.get("out") != want:
        return f"{template!r}\n  jinja2 gives {want!r}\n  we give {answer!r}"
    return None


def check(cases):
    wrong = [d for (t, c), a in zip(cases, render(cases)) if (d := difference(t, c, a))]
    assert not wrong, f"seed {SEED}: {len(wrong)} of {len(cases)} differ\n" + "\n".join(wrong[:10])


# ---- conversations

TEXTS = [
    "", " ", "\n", "Hello!", "  leading and trailing  ", "two\nlines\n", "tab\there", "quote ' and \" and \\",
    "你好，世界", "مرحبا", "👩‍👩‍👧 family", "e\u0301", "nul \x00 and bell \x07", "<|im_end|>", "{{ not a tag }}",
    "{% neither %}", "line\r\nwindows", "\u2028 separator", "a" * 300, "</tool_call>", "1", "None", "\ufeff",
]
NAMES = ["get_weather", "名前", "f", "a.b", "with \"quotes\""]


def random_json(rng, depth=0):
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice([0, 1, -7, 2**53 + 1, 2**63 - 1, -(2**63)])
    if kind == 3:
        return rng.choice([0.0, 0.5, -1.25, 1e16, 1e-7, 3.141592653589793, 1e300, 0.1, 123456789.125])
    if kind == 4:
        return rng.choice([True, False])
    if kind == 5:
        return None
    if kind == 6:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = [text.replace("\0", "") for text in TEXTS + NAMES]  # jansson refuses NUL in a key
    return {rng.choice(keys): random_json(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_tool(rng):
    return {
        "type": "function",
        "function": {
            "name": rng.choice(NAMES),
            "description": rng.choice(TEXTS),
            "parameters": {
                "type": "object",
                "properties": {rng.choice(NAMES): {"type": "string", "items": random_json(rng)}},
                "required": [rng.choice(NAMES)],
            },
        },
    }


def random_call(rng):
    call = {"name": rng.choice(NAMES), "arguments": random_json(rng)}
    return {"type": "function", "id": "1", "function": call} if rng.random() < 0.7 else call


def random_message(rng, first):
    role = rng.choice(["user", "assistant", "tool", "user", "assistant"] + ["system"] * (3 if first else 1))
    message = {"role": role, "content": rng.choice(TEXTS) + rng.choice(TEXTS)}
    if role == "assistant" and rng.random() < 0.5:
        message["tool_calls"] = [random_call(rng) for _ in range(rng.randrange(3))]
        if message["tool_calls"] and rng.random() < 0.3:
            message["content"] = rng.choice([None, ""])
    return message


def random_conversation(rng):
    context = {
        "messages": [random_message(rng, i == 0) for i in range(rng.randrange(1, 9))],
        "add_generation_prompt": rng.random() < 0.5,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    if rng.random() < 0.5:
        context["tools"] = [random_tool(rng) for _ in range(rng.randrange(4))]
    elif rng.random() < 0.3:
        context["tools"] = None
    return context


@pytest.mark.parametrize("template", [SMOLLM2, QWEN25], ids=["SmolLM2", "Qwen2.5"])
def test_conversations(template):
    rng = random.Random(SEED)
    cases = [(template, random_conversation(rng)) for _ in range(CONVERSATIONS)]
    check(cases)
    rendered = sum(not isinstance(expected(t, c), Exception) for t, c in cases)
    assert rendered >= CONVERSATIONS * 3 // 4, "most conversations should render, not fail"


# ---- snippets

CONTEXT = {
    "messages": [
        {"role": "system", "content": "  Be héllo.\n"},
        {"role": "user", "content": "Hi 👋", "name": "Ann"},
        {"role": "assistant", "content": "It's \"fine\"", "items": [1, 2], "tool_calls": []},
    ],
    "tools": [{"name": "t", "parameters": {"type": "object", "a": None, "b": [True, 1.5, "<é>"]}}],
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "empty": "",
    "zero": 0,
    "nothing": None,
    "numbers": [3, 1, 2],
    "nested": {"a": {"b": ["c", {"d": "e"}]}, "items": "shadowed", "x y": 1},
    "text": "  one two\tthree\n",
    "word": "straße",
}

SNIPPETS = r"""
{{ 1 }} {{ -1 }} {{ 1.5 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1e16 }} {{ 1.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ -0.0 }}
{{ 'a' "b" 'c' }} {{ 'it\'s' }} {{ "\n\t\\\x41\u00e9\U0001F600\101" }} {{ '\q' }}
{{ true }} {{ false }} {{ none }} {{ True }} {{ False }} {{ None }}
{{ [1, 'a', none, [true]] }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ {'a': 1, 'b': [2]} }} {{ {} }} {{ [] }} {{ [1,] }} {{ {'a': 1,} }} {{ {1: 2, 1.0: 3, none: 4} }}
{{ 1, 2 }} {{ 1, }}
{{ ["it's", 'say "x"', 'both \' and "', 'é\n\t\r\x00\x7f\u200b\u2028\\'] }}
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 / 2 }}
{{ 1 + true }} {{ true + true }} {{ 0.1 + 0.2 }} {{ 1e308 / 10 }} {{ 10 / 4 }} {{ 9007199254740993 == 9007199254740993.0 }}
{{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ~ nope }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'a' * 0 }} {{ 'a' * -1 }} {{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }} {{ 1 ~ 2 + 3 }}
{{ 1 + 'a' }}
{{ 'a' - 'b' }}
{{ 'a' + none }}
{{ [1] + (2,) }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1.0 % 0 }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 'é' > 'z' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == none }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ [1] == (1,) }} {{ 1 != 2 }} {{ 2 >= 2 }} {{ 3 <= 2 }} {{ {'a': 1} == {'a': 1.0} }}
{{ 'a' < 1 }}
{{ none < none }}
{{ nope < 1 }}
{{ nope == nope2 }} {{ nope == none }} {{ nope != 1 }}
{{ 'b' in 'abc' }} {{ 'd' not in 'abc' }} {{ 1 in [1, 2] }} {{ 'role' in messages[0] }} {{ 'x' in nope }} {{ '' in '' }} {{ 'x' not in {'x': 1} }} {{ not 'x' in 'x' }} {{ 2 in (1, 2) }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ [] in {} }}
{{ true and false }} {{ true or false }} {{ not true }} {{ 1 and 2 }} {{ 0 or 'x' }} {{ '' or none }} {{ 0 and nope.x }} {{ not not 1 }} {{ not 1 == 2 }} {{ 1 or 2 and 0 }} {{ [] or {} or 0 or 'end' }}
{{ 'a' if true else 'b' }} {{ 'a' if zero else 'b' }} {{ 'a' if false }} {{ 'a' if false else 'b' if false else 'c' }} {{ ('a' if true) ~ 'b' }} {{ 1 if true else nope.x }} {{ 'x' if 1 if 1 }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].role }} {{ messages.0.role }} {{ nested.a.b[1].d }} {{ nested['x y'] }} {{ messages[0].nope }} {{ messages[9] }} {{ messages['x'] }} {{ nothing.x }} {{ 'abc'[1] }} {{ 'héllo'[-1] }} {{ zero.x }} {{ numbers[true] }}
{{ messages[9].role }}
{{ nope.x }}
{{ nope['x'] }}
{{ nope[0] }}
{{ nope() }}
{{ messages[0].nope.x }}
{{ 5() }}
{{ messages[1:]|length }} {{ numbers[:2] }} {{ numbers[::-1] }} {{ numbers[-2:] }} {{ numbers[5:] }} {{ numbers[::2] }} {{ 'héllo'[1:3] }} {{ 'héllo'[::-1] }} {{ 'abc'[5:] }} {{ 'abc'[:-1] }} {{ numbers[2:0:-1] }} {{ (1, 2, 3)[1:] }} {{ 'abc'[1:1] }} {{ numbers['a':] }} {{ nested[1:] }} {{ numbers[none:none] }} {{ 'héllo wörld'[2:-2:3] }} {{ numbers[-99:99] }} {{ numbers[99:-99:-1] }}
{{ numbers[::0] }}
{{ nope[1:] }}
{{ nested['items'] }} {{ messages[2]['items'] }} {{ nested.get('a')['b'][0] }} {{ nested.get('q') }} {{ nested.get('q', 5) }}
{% for k, v in nested.items() %}{{ k }}={{ v }};{% endfor %}{% for k in nested %}{{ k }},{% endfor %}{% for v in nested.values() %}{{ v }};{% endfor %}{% for k in nested.keys() %}{{ k }}{% endfor %}
{{ nope }}|{{ nope|length }}|{% for x in nope %}x{% endfor %}|{% if nope %}x{% endif %}|{{ [nope] }}
{{ nope + 1 }}
{{ -nope }}
{{ nope|tojson }}
{{ nope is defined }} {{ empty is defined }} {{ messages[0].x is defined }} {{ nothing is none }} {{ nothing is not none }} {{ nope is undefined }} {{ 'a' is string }} {{ 1 is string }} {{ nested is mapping }} {{ [] is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ nope is iterable }} {{ 1 is number }} {{ 1.5 is number }} {{ true is number }} {{ 'a' is number }} {{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ not nope is defined }} {{ 1 is number and 2 is string }} {{ 'a' if nope is defined else 'b' }} {{ (1, 2) is iterable }}
{{ nope.x is defined }}
{{ 1 is defined is string }}
{{ text|trim }}|{{ text|upper }}|{{ 'ABC'|lower }}|{{ word|upper }}|{{ 'ÀÉ'|lower }}|{{ 'x'|length }}|{{ 'héllo👋'|length }}|{{ numbers|length }}|{{ nested|count }}|{{ none|upper }}|{{ 15|trim }}|{{ nope|trim }}|{{ 'xxaxx'|trim('x') }}|{{ '\u00a0\u3000a\x1c'|trim }}|
{{ 5|length }}
{{ messages|selectattr('role')|list|length }}|{{ messages|selectattr('role', 'equalto', 'user')|list|length }}|{{ messages|rejectattr('role', 'eq', 'user')|list|length }}
{{ messages|rejectattr('role', '==', 'user')|list|length }}|{{ messages|selectattr('role', 'in', ['user', 'tool'])|list|length }}|{{ messages|selectattr('nope', 'defined')|list|length }}
{{ numbers|first }} {{ numbers|last }} {{ word|first }} {{ word|last }} {{ []|first is defined }} {{ numbers|list }} {{ word|list }} {{ nested|list }}
{{ 5|string }}{{ 1.5|string|length }} {{ none|string }} {{ numbers|string|length }} {{ numbers[0] is eq 1 }} {{ word is equalto('x') }} {{ 1 is equalto 1 }}
{{ 5|first }}
{{ 5|list }}
{{ messages|selectattr('role', 'nosuchtest')|list }}
{{ numbers|join(', ') }} {{ numbers|join }} {{ 'abc'|join('-') }} {{ []|join(',') }} {{ ['a', 1, none]|join(d='+') }} {{ nope|join }} {{ nested|join(',') }}
{{ 5|join }}
{{ nope|default('d') }} {{ nope|default }} {{ empty|default('d') }}| {{ empty|default('d', true) }} {{ zero|default('d', boolean=true) }} {{ nothing|default('d') }} {{ nope|d(5) }} {{ messages[0].x|default('y') }} {{ nope|default(default_value='z') }}
{{ 'hello'|replace('l', 'L') }} {{ 'hello'|replace('l', 'L', 1) }} {{ 'abc'|replace('', '-') }} {{ ''|replace('', '-') }} {{ 'aaa'|replace('aa', 'b') }} {{ 123|replace(2, 'x') }} {{ 'abc'|replace('', '-', 2) }} {{ 'abc'|replace('b', '', count=none) }} {{ 'héé'|replace('é', 'ê') }} {{ 'a'|replace('b', 'c', 0) }}
{{ 'x'|replace('x') }}
{{ 'x'|replace }}
{{ 'x'|upper(1) }}
{{ 'x'|default(1, 2, 3) }}
{{ 'x'|default(nope=1) }}
{{ 'x'|default(1, default_value=2) }}
{{ tools|tojson }} {{ 'é<>&\'"\\/\n\r\t\x08\x0c\x00\x1f\x7f\u2028'|tojson }} {{ 1.0|tojson }} {{ 1e100|tojson }} {{ none|tojson }} {{ [true, false, none]|tojson }} {{ {}|tojson }} {{ []|tojson }} {{ (1, 2)|tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}
{{ tools|tojson(indent=2) }} {{ []|tojson(indent=4) }} {{ {'a': {}}|tojson(indent=1) }} {{ [1]|tojson(indent=0) }} {{ [1, 2]|tojson(separators=(',', ':')) }} {{ {'a': [1]}|tojson(indent=3, separators=('; ', '=')) }} {{ [1]|tojson(indent='--') }} {{ [1, {'b': 2}]|tojson(ensure_ascii=false, indent=none) }} {{ [1]|tojson(false, 1) }} {{ [1]|tojson(indent=-1) }}
{{ {(1, 2): 3}|tojson }}
{{ namespace(a=1)|tojson }}
{{ {[1]: 2} }}
{{ '  a '.strip() }}|{{ '  a '.lstrip() }}|{{ '  a '.rstrip() }}|{{ 'xay'.strip('xy') }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith('bc') }}|{{ 'abc'.startswith(('x', 'a')) }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ ' a b  c '.split(none, 1) }}|{{ 'abc'.split('abc') }}|{{ ''.split(',') }}|{{ ''.split() }}|{{ 'a--b'.split('--')[-1] }}|{{ 'a b c'.split(maxsplit=1) }}|{{ 'aXbXc'.split(sep='X')|length }}|{{ 'a,b'.split(',', 0) }}|{{ '\n<think>x</think>\n'.split('</think>')[-1].lstrip('\n') }}|{{ 'éaé'.strip('é') }}|{{ 'abc'.strip(none) }}|{{ 'abc'.startswith('') }}
{{ 'abc'.split('') }}
{{ 'abcabc'.replace('b', 'X') }}|{{ 'abcabc'.replace('b', '', 1) }}|{{ 'abc'.replace('', '-') }}|{{ 'abc'.replace('', '-', 2) }}|{{ 'aé'.replace('é', 'ee').lower() }}|{{ 'aÉß'.lower() }}|{{ 'aéß'.upper() }}|{{ 'aaa'.replace('aa', 'b', -1) }}|{{ 'x'.replace('x', 'y', 0) }}
{{ 'abc'.replace('b') }}
{{ 'abc'.replace(1, 'b') }}
{{ 'abc'.replace('b', none) }}
{{ 'abc'.replace('b', 'c', none) }}
{{ 'abc'.replace(old='b', new='c') }}
{{ 'abc'.lower(1) }}
{{ 'abc'.startswith(1) }}
{{ 'abc'.nope() }}
{{ 'abc'.strip(1) }}
{{ 'abc'.strip('a', 'b') }}
{{ 'abc'.startswith() }}
{{ 'a'.strip is defined }} {{ 'a'.nope is defined }} {{ messages[0].keys is defined }}
{{ (' a '|trim)|upper }} {{ ' a '|trim|upper|length }}
{{ -1|trim }} {{ -numbers[0] }} {{ +1 }} {{ - -1 }} {{ not -1 }} {{ 2 + -1 }} {{ -numbers|length }}
{% if 1 %}a{% elif 1 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}{% if 0 %}a{% endif %}{% if 0 %}a{% elif 0 %}{% elif '' %}{% elif [0] %}d{% endif %}{% if 1: %}x{% endif %}{% if 0, 0 %}tuple{% endif %}
{% for x in numbers %}{{ x }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }};{% endfor %}
{% for x in [] %}x{% else %}none{% endfor %}{% for x in [1] %}x{% else %}none{% endfor %}{% for x in 'héy' %}[{{ x }}]{% endfor %}{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }};{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}
{% for x in numbers if x > 1 %}{{ x }}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% else %}none{% endfor %}{% for x in numbers if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in numbers %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}|{% for x in numbers %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in numbers %}{% break %}{% else %}else{% endfor %}|{% for x in numbers %}{% for y in numbers %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %};{% endfor %}|{% for x in [1, 2] %}{{ x }}{% for y in [] %}{% else %}{% break %}{% endfor %}z{% endfor %}|{% for x in numbers %}{% if x == 3 %}{% continue %}{% endif %}{% else %}else{% endfor %}
{% for x in numbers %}{% for y in 'ab' %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% break %}
{% continue %}
{% for x in [1] %}{% endfor %}{{ loop }}{{ x }}
{{ loop.index }}
{% for loop in [1] %}{% endfor %}
{% for x in [1] %}{% set loop = 2 %}{% endfor %}
{% for x in [1, 2] %}{{ loop }}{{ loop|length }}{{ loop is iterable }}{{ loop.nope is defined }}{% endfor %}
{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}{% set t = 1, 2 %}{{ t }}{% set y = 5 if x else 6 %}{{ y }}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }};{% endfor %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{% if true %}{% set y = 3 %}{% endif %}{{ y }}{% endfor %}{{ y is defined }}
{% for i in [1] %}{% set zero = 9 %}{{ zero }}{% endfor %}{{ zero }}{% for zero in [7] %}{{ zero }}{% endfor %}{{ zero }}{% for i in [] %}{% else %}{% set zero = 8 %}{{ zero }}{% endfor %}{{ zero }}
{% for m in messages %}{% if m.x is defined %}{% set m = m.x %}{% endif %}{{ m.role }}{% endfor %}
{% set ns = namespace(a=1, b='x') %}{% for i in numbers %}{% set ns.a = ns.a + i %}{% set ns.c = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns['a'] }}{{ ns.nope is defined }}{{ ns }}{% set ns.a, q = 5, 6 %}{{ ns.a }}{{ q }}
{% set ns = namespace({'p': 1}, q=2) %}{{ ns.p }}{{ ns.q }}{{ namespace() }}{% if namespace() %}t{% endif %}{{ ns == ns }}{{ ns == namespace() }}
{% set x.y = 1 %}
{% set nested.y = 1 %}
{% set x = namespace(1) %}
{% set a, b = 1 %}
{% set a, b = 1, 2, 3 %}
{% for i in [1, 2] %}{% set y %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endset %}{{ y }}{% endfor %}
{% set x %}{{ nope.x }}{% endset %}
{{ raise_exception('stop ' ~ 1) }}
{% if false %}{{ raise_exception('no') }}{% endif %}fine
{{ raise_exception() }}
{% raw %}{{ x }} {% y %} {# z #}{% endraw %}|{%- raw -%}  {{ x }}  {%- endraw -%}  |  {% raw +%}
{# comment #}a{#- comment -#} b {#+ c +#}
{# a comment with {{ x }} and {% y %} #}
{{ '{{' }} {{ '%}' }} {{ "}}" }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a':{'b':1}} }} {{ [[1]][0][0] }} {% set x = {'a': '%}'} %}{{ x }} { { } } {% if '{%' == "{%" %}y{% endif %}
{% if x %}
{% for x in y %}
{% endif %}
{% endfor %}
{% else %}
{% unknown %}
{% if %}{% endif %}
{% for %}{% endfor %}
{% for x numbers %}{% endfor %}
{% set %}
{% set x %}
{% set 1 = 2 %}
{% set 'a' = 2 %}
{% set true = 2 %}
{% set [a] = [2] %}
{% set a.b.c = 2 %}
{% for a.b in [1] %}{% endfor %}
{% if 1 %}{% else %}{% elif 1 %}{% endif %}
{% if 1 %}{% endfor %}
{{ 1 + }}
{{ }}
{{ 1 2 }}
{{ (1 }}
{{ 1) }}
{{ [1, 2 }}
{{ [1 2] }}
{{ {1} }}
{{ 'a }}
{{ a.}}
{{ a. 1.5 }}
{{ a[ }}
{{ a[] }}
{{ a[1:2:3:4] }}
{{ a| }}
{{ a|nope }}
{{ a is nope }}
{{ a is }}
{{ f(a=1, 2) }}
{{ f(,) }}
{{ 1 ** }}
{{ ! }}
{{ a ? b }}
{{ $ }}
{{ not }}
{{ 'a' if }}
{{ '\x4' }}
{{ '\u12' }}
{{ 01 }}
{{ x
{% x
{# x
{% raw %} x
{{ 1 }
{% if 1 }x{% endif %}
{{ 1 %}
{{ 'trailing' }}  """

# Layouts where white space control matters, written out; the random ones below mix these at will.
LAYOUTS = [
    '{{ "a\\\nb" }}',
    "{% set x %}  block {{ 1 + 1 }}\n {% endset %}[{{ x }}]",
    "{% raw %}\n  x\n{% endraw %}\n  y",
    "a\n{% if 1 %}\nb\n{% endif %}\nc\n",
    "a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n",
    "a {% if 1 %} b {% endif %} c",
    "a\n  {%+ if 1 %}\n  b\n  {%+ endif +%}\nc",
    "a\n  {%- if 1 -%}\n  b\n  {%- endif -%}\n  c",
    "a  {{- 1 -}}  b",
    "a\n  {{ 1 }}\n  b",
    "  {{+ 1 }}",
    "\n\n{% if 1 %}\n\nx\n\n{% endif %}\n\n",
    "x{% if 1 %}\n{% if 1 %}\n  {% endif %}{% endif %}\n",
    "a\r\n{% if 1 %}\r\nb\r{% endif %}\rc\r\n",
    "a\n\n\n",
    "a\n",
    "\n",
    "",
    " \t{% if 1 %}x{% endif %}",
    "\u00a0\u2003{% if 1 %}x{% endif %}",
    "a\n\u00a0\u2003{%- if 1 %}x{% endif -%}\u3000b",
    "a {# c #} b\n  {# c #}\nd {#- c -#} e\n {#+ c +#}\nf",
    "{# c #}\n{# d #}\n{% if 1 %}\n{# e #}\nx\n{% endif %}\n",
    "{%if 1%}x{%endif%}{%-if 1-%} y {%-endif-%} z",
    "{{-1}}{{ -1 }}{{'a'-}} b",
    "a\n{% raw %}\n  b\n  {% endraw %}\n  c\n {%- raw %} d {% endraw -%} \n e",
    "a\x0b{% if 1 %}x{% endif %}\x0c\n\x0b{% if 1 %}y{% endif %}",
    "{{ 'a\r\nb\rc' }}",
    "{{ 1 }}\n{{ 2 }}\n\n{{ 3 -}}\n\n4",
    "{% set x = 1 -%}\n\n  {% set y = 2 +%}\n\n  {%- set z = 3 %}\n\n{{ x }}{{ y }}{{ z }}",
]


def test_snippets():
    check([(line, CONTEXT) for line in SNIPPETS.strip("\n").split("\n")])


MACROS = r"""
{% macro a(x) %}<{{ x }}>{% endmacro %}{{ a(1) }}{{ a('b') ~ 'c' }}{{ a(x=2) }}{{ a() }}
{% macro a(x, y=3, z='q') %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ a(1) }}{{ a(1, 2) }}{{ a(1, z=4) }}{{ a(y=1, x=2) }}
{% macro a(x, y=x) %}{{ y }}{% endmacro %}{{ a(5) }}
{% macro a(x) %}{{ x }}{% endmacro %}{{ a(1, 2) }}
{% macro a(x) %}{{ x }}{% endmacro %}{{ a(1, x=2) }}
{% macro a(x) %}{{ x }}{% endmacro %}{{ a(y=2) }}
{% macro a(x=1, y) %}{% endmacro %}
{% set v = 1 %}{% macro a() %}{{ v }}{% endmacro %}{{ a() }}{% set v = 2 %}{{ a() }}
{% macro a() %}{% set v = 5 %}{{ v }}{% endmacro %}{{ a() }}[{{ v }}]
{% macro a(x) %}{{ x }}{{ loop is defined }}{{ i is defined }}{% endmacro %}{% for i in [1, 2] %}{{ a(i) }}{% endfor %}
{% macro a(n) %}{{ n }}{% if n > 0 %}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(5) }}
{% macro b(x) %}({{ x }}){% endmacro %}{% macro a(x) %}{% for y in x %}{{ b(y) }}{% endfor %}{% endmacro %}{{ a([1, 2]) }}
{% macro a(x) %}{% for y in x %}{% if y == 2 %}{% continue %}{% endif %}{{ y }}{% endfor %}{% endmacro %}{{ a([1, 2, 3]) }}
{% if 1 %}{% macro a() %}m{% endmacro %}{% endif %}{{ a() }}
{{ a() }}{% macro a() %}m{% endmacro %}
{% macro a(x) -%}   {{ x }}   {%- endmacro %}{{ a(1) }}|{{ a(1)|length }}
{% macro a() %}m{% endmacro %}{% set t = a() %}{{ t + t }}{{ a is defined }}{{ a is none }}{% if a %}y{% endif %}
{% set ns = namespace(n=0) %}{% macro a() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}{{ a() }}{{ a() }}{{ ns.n }}
{% macro a(x) %}{% set y %}[{{ x }}]{% endset %}{{ y }}{% endmacro %}{% for i in [1, 2] %}{% set k = i %}{{ a(k) }}{{ a(a(k)) }}{% endfor %}
{% macro a(x) %}{{ x.role }}:{{ x['content'] }}{% endmacro %}{% for m in messages %}{{ a(m) }}{% endfor %}
{% macro a %}{% endmacro %}
{% macro a() %}
{% for i in range(3) %}{{ i }}{% endfor %}{{ range(2, 5)|list }}{{ range(5, 0, -2)|list }}{{ range(0)|list }}{{ 2 in range(3) }}{{ range(3)|length }}
a{% generation %} b{{ 1 }}{% set x = 2 %}{{ x }} {% endgeneration %}c{{ x }}
{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% for i in range(3) %}{%- generation -%} {{ i }}{{ loop.index }} {%- endgeneration -%}{% endfor %}
{% for i in range(3) %}{% generation %}{% for j in range(3) %}{% if j == 1 %}{% continue %}{% endif %}{{ j }}{% endfor %}{% endgeneration %}{% endfor %}
{% for i in range(3) %}{% generation %}{% break %}{% endgeneration %}{% endfor %}
{% generation %}a
{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}{% endgeneration %}
{% for i in range(messages|length) %}{{ messages[i].role }}{% endfor %}{{ range(3)[1] }}{{ range(4)|last }}
{{ range(1, 2, 0) }}
{{ range() }}
{{ range('a') }}
{{ strftime_now("%d %b %Y") }} {{ strftime_now("%A %a %B %j %H:%M:%S %I %p %y %w %m %F %T %%") }}{{ strftime_now is defined }}
{{ strftime_now(1) }}
"""


def test_macros_range_and_time():
    times = ["2026-12-02T19:37:05", "2024-02-29T00:00:59", "2000-12-31T12:30:00", "1999-03-01T23:59:59", "1970-01-01T01:02:03"]
    check([(line, dict(CONTEXT, strftime_now=now)) for line in MACROS.strip("\n").split("\n") for now in times])
    check([("{{ strftime_now is defined }}{{ strftime_now('%d') }}", CONTEXT)])
    (bad,) = render([("{{ strftime_now('%d') }}", dict(CONTEXT, strftime_now="2026-02-30T00:00:00"))])
    assert "is no time" in bad["error"]
    (unknown,) = render([("{{ strftime_now('%c') }}", dict(CONTEXT, strftime_now=times[0]))])
    assert unknown["code"] == "ISO_E_UNSUPPORTED"


def real_templates():
    """As models come with them (scripts/fetch-tokenizers)."""
    return sorted(TOKENIZERS.glob("*/tokenizer_config.json"))


def token_text(token):
    return token["content"] if isinstance(token, dict) else token or ""


@pytest.mark.skipif(not real_templates(), reason=f"{TOKENIZERS} is empty; scripts/fetch-tokenizers fills it")
@pytest.mark.parametrize("path", real_templates(), ids=lambda p: p.parent.name)
def test_real_templates(path):
    """300 conversations each, with and without tools."""
    config = json.loads(path.read_text())
    template = config.get("chat_template")
    if template is None:
        pytest.skip("it has no chat template")
    templates = [t["template"] for t in template] if isinstance(template, list) else [template]
    rng = random.Random(SEED)
    edges = {"bos_token": token_text(config.get("bos_token")), "eos_token": token_text(config.get("eos_token"))}
    for text in templates:
        cases = [(text, {**alternate(random_conversation(rng), i), **edges, "strftime_now": "2026-12-02T19:37:05",
                         "enable_thinking": i % 3 == 0}) for i in range(300)]
        check(cases)
        texts = [t for t in (expected(*case) for case in cases) if isinstance(t, str)]
        assert len(texts) > 100, f"only {len(texts)} of 300 conversations are what the template takes"


def alternate(conversation, i):
    """Two thirds of the conversations take turns, as some templates insist."""
    if i % 3:
        messages = conversation["messages"]
        system = [m for m in messages[:1] if m["role"] == "system"]
        turns = messages[len(system) :]
        conversation["messages"] = system + [
            {"role": ("user", "assistant")[j % 2], "content": m.get("content") or "x"} for j, m in enumerate(turns or [{}])]
    return conversation


def test_each_expression_alone():
    """A line above that fails hides what stands behind the failure: every print alone as well."""
    prints = []
    for line in SNIPPETS.split("\n"):
        prints += ["{{ " + part + " }}" for part in line.replace("{{", "\0").replace("}}", "\0").split("\0")[1::2]]
    check([(p, CONTEXT) for p in prints])


def test_layouts():
    check([(layout, CONTEXT) for layout in LAYOUTS])


def random_layout(rng):
    pieces = []
    for _ in range(rng.randrange(1, 9)):
        kind = rng.randrange(7)
        left, right = rng.choice(["", "", "-", "+"]), rng.choice(["", "", "-", "+"])
        if kind < 2:
            pieces.append("".join(rng.choice([" ", "\n", "\t", "x", "\r\n", "\u00a0", "{", "%", "}"]) for _ in range(4)))
        elif kind == 2:
            pieces.append("{{" + left + " 'p' " + right.replace("+", "") + "}}")
        elif kind == 3:
            pieces.append("{%" + left + " set a = 1 " + right + "%}")
        elif kind == 4:
            pieces.append("{#" + left + " c\n " + right + "#}")
        elif kind == 5:
            inner = rng.choice([" ", "\n", " \n x \n "])
            pieces.append("{%" + left + " if 1 " + right + "%}" + inner + "{%" + right + " endif " + left + "%}")
        else:
            inner = rng.choice([" ", "\n", " {{ \n %} "])
            end = right.replace("+", "")
            pieces.append("{%" + left + " raw " + end + "%}" + inner + "{%" + right + " endraw " + left + "%}")
        if rng.random() < 0.4:
            pieces.append(rng.choice(["\n", " ", "\n  ", "  \n"]))
    return "".join(pieces)


def test_random_layouts():
    rng = random.Random(SEED)
    check([(random_layout(rng), CONTEXT) for _ in range(RANDOM_LAYOUTS)])


ATOMS = ["1", "0", "-3", "2.5", "'a'", "'héllo'", "''", "none", "true", "nope", "numbers", "nested", "messages", "text",
         "[1, 'b']", "(1, 2)", "{'a': 1}", "messages[0]", "word", "7", "' x y '"]  # fmt: skip
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
AFTER = ["|length", "|upper", "|trim", "|join('-')", "|default('d')", "|tojson", "[0]", "[-1]", "[1:]", "[:2]", "[::-1]",
         ".role", "['a']", ".a", ".strip()", ".split()", "|replace('a', 'b')", " is defined", " is string", " is none",
         " is mapping", " is iterable", " is not number", ".get('a')", "|lower"]  # fmt: skip


def random_expression(rng, depth=0):
    kind = rng.randrange(9) if depth < 3 else 0
    if kind < 2:
        return rng.choice(ATOMS)
    if kind < 4:
        left, right = random_expression(rng, depth + 1), random_expression(rng, depth + 1)
        return f"{left} {rng.choice(BINARY)} {right}"
    if kind < 6:
        # Not a constant: jinja2 computes those beforehand, where 1[0:] is undefined and not an error.
        return f"({random_expression(rng, depth + 1)} if add_generation_prompt else 0){rng.choice(AFTER)}"
    if kind == 6:
        a, b, c = (random_expression(rng, depth + 1) for _ in range(3))
        return f"({a} if {b} else {c})"
    if kind == 7:
        return f"({rng.choice(['not ', '-', '+'])}{random_expression(rng, depth + 1)})"
    return rng.choice(["[{}, {}]", "({}, {})", "{{'k': {}, 'l': {}}}"]).format(
        random_expression(rng, depth + 1), random_expression(rng, depth + 1)
    )


def test_random_expressions():
    rng = random.Random(SEED)
    cases = []
    while len(cases) < RANDOM_EXPRESSIONS:
        template = "{{ " + random_expression(rng) + " }}"
        if not knowingly_different(template):
            cases.append((template, CONTEXT))
    check(cases)


NAMES_SET = ["a", "b", "zero", "text"]


def random_block(rng, depth, loops):
    return "".join(random_statement(rng, depth, loops) for _ in range(rng.randrange(1, 4)))


def random_statement(rng, depth, loops):
    kind = rng.randrange(9) if depth < 3 else rng.randrange(3)
    name = rng.choice(NAMES_SET)
    if kind == 0:
        return f"[{{{{ {name} }}}}]"
    if kind == 1:
        value = rng.choice(["1", "2", f"{rng.choice(NAMES_SET)} ~ 'x'", "[1, 2]"])
        return f"{{% set {name} = {value} %}}"
    if kind == 2:
        return f"{{{{ {name} is defined }}}}"
    otherwise = "{% else %}" + random_block(rng, depth + 1, loops) if kind < 7 and rng.random() < 0.4 else ""
    if kind in (3, 4):
        test = rng.choice(["a", "zero", "1", "0", "b is defined", "loop is defined"])
        return f"{{% if {test} %}}{random_block(rng, depth + 1, loops)}{otherwise}{{% endif %}}"
    if kind in (5, 6):
        over = rng.choice(["[1, 2]", "[]", "numbers", "'xy'"]) + rng.choice(["", "", " if a", f" if {name} > 1"])
        body = "{{ loop.index }}" + random_block(rng, depth + 1, loops + 1)
        return f"{{% for {name} in {over} %}}{body}{otherwise}{{% endfor %}}"
    if kind == 7 and loops:
        return rng.choice(["{% break %}", "{% continue %}"])
    if kind == 8:
        return f"{{% set {name} %}}{random_block(rng, depth + 1, 0)}{{% endset %}}"
    return "."


def test_random_programs():
    """Scopes, loops and their control."""
    rng = random.Random(SEED)
    # All names are set first: jinja2 finds by static analysis that one set later hides the context's before.
    start = "".join(f"{{% set {name} = '{name}' %}}" for name in NAMES_SET)
    check([(start + random_block(rng, 0, 0), CONTEXT) for _ in range(RANDOM_PROGRAMS)])


def knowingly_different(template):
    """What template.h says is not supported (% formats, // of floats), or is random in Python: addresses."""
    want = expected(template, CONTEXT)
    unsupported = "%" in template or ("//" in template and "." in template)
    return isinstance(want, str) and (unsupported or " at 0x" in want)


# ---- errors

ERRORS = [
    ("{{ raise_exception('Roles must alternate: é') }}", "ISO_E_FORMAT", "Roles must alternate: é", "raise_exception"),
    ("a\nbé {{ x. }}", "ISO_E_FORMAT", "line 2, column 10: expected an attribute's name, got '}}'", "line 2, column 10"),
    ("{{ messages[9].role }}", "ISO_E_FORMAT", "line 1, column 15: the list object has no such element", None),
    ("{{ messages[0].x.y }}", "ISO_E_FORMAT", "line 1, column 17: 'dict object' has no attribute 'x'", None),
    ("{{ nope.x }}", "ISO_E_FORMAT", "line 1, column 8: 'nope' is undefined", None),
    ("{% call x() %}{% endcall %}", "ISO_E_UNSUPPORTED", "line 1, column 4: the tag 'call' is not supported", None),
    ("{% for a in [1] %}{% macro x() %}{% endmacro %}{% endfor %}", "ISO_E_UNSUPPORTED",
     "line 1, column 22: a macro inside a loop, set block or macro is not supported", None),
    ("{% macro x() %}{{ x() }}{% endmacro %}{{ x() }}", "ISO_E_LIMIT",
     "line 1, column 20: macros call each other deeper than 12", None),
    ("{% macro x(" + ", ".join(f"p{i}" for i in range(33)) + ") %}{% endmacro %}", "ISO_E_LIMIT",
     "line 1, column 162: more than 32 parameters", None),
    ("{{ range(1000001) }}", "ISO_E_FORMAT", "line 1, column 9: range takes whole numbers from -1000000 to 1000000", None),
    ("{{ 1|nope }}", "ISO_E_UNSUPPORTED", "line 1, column 6: there is no filter 'nope'", None),
    ("{% if 1 %}", "ISO_E_FORMAT", "line 1, column 11: expected the tag 'endif', got the end of the template", None),
    ("{{ '%s' % 1 }}", "ISO_E_UNSUPPORTED", "line 1, column 9: formatting with '%' is not supported", None),
    ("{{ 9223372036854775807 + 1 }}", "ISO_E_LIMIT", "line 1, column 24: the result of '+' has more than 63 bits", None),
    ("{{ 1e308 * 10 }}", "ISO_E_NONFINITE", "line 1, column 10: the result of '*' is not a finite number", None),
    ("{{ 9223372036854775808 }}", "ISO_E_LIMIT", "line 1, column 4: the integer has more than 63 bits", None),
]


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case[0][:30])
def test_errors(case):
    template, code, text, field = case
    (answer,) = render([(template, CONTEXT)])
    assert (answer.get("code"), answer.get("error")) == (code, text)
    assert field is None or answer["field"] == field


def test_case_of_every_character():
    """upper and lower of all characters, as far as this Python and the library know the same Unicode."""
    chars = [chr(c) for c in range(0x80, sys.maxunicode + 1) if not 0xD800 <= c < 0xE000 and chr(c).isprintable()]
    chars = [c for c in chars if c.lower() != c or c.upper() != c]
    answers = render([("{{ c|upper }}\n{{ c|lower }}", {"c": c}) for c in chars])
    wrong = [c for c, a in zip(chars, answers) if a["out"] != f"{c.upper()}\n{c.lower()}"]
    assert not wrong, [f"U+{ord(c):04X}" for c in wrong]
