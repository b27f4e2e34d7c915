"""What an answer is made of, as the `openai` client sees it: reasoning apart from content, its budget, and tool calls in the
three ways that models write them. One server has a scripted model of each way (scripted.py).
"""

import json
from types import SimpleNamespace

import openai
import pytest

import scripted
from scripted import CONTENT, REASONING

ASK = [{"role": "user", "content": "Add 1?"}]
NAMES = ("add", "mul")
TOOLS = [{"type": "function", "function": {
    "name": name, "strict": True, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                                                 "additionalProperties": False}}} for name in NAMES]
STYLES = ("qwen3", "llama", "mistral")
OF_CALL = {"qwen3": "<tool_call>", "llama": '{"name":', "mistral": "[TOOL_CALLS]"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    audit = tmp_path_factory.mktemp("audit") / "audit"
    with scripted.serve(tmp_path_factory.mktemp("scripted"), "--audit", audit) as s, s.client() as client:
        s.openai, s.audit = client, audit
        yield s


def prompt_of(server, answer):
    """The text that the model was given, from the audit's tokens."""
    lines = [json.loads(line) for line in server.audit.read_text().splitlines()]
    prompt = next(line["prompt"] for line in lines if answer.id.endswith(line["id"]))
    return server.ok("/detokenize", {"model": answer.model, "tokens": prompt})["prompt"]


def forbid(server, model, *tokens):
    return {str(server.ids[model][t]): -100 for t in tokens}


def ask(server, model, messages=ASK, **options):
    """An answer, and the same streamed, which must be made of the same parts and have the same digest."""
    body = dict(model=model, messages=messages, seed=1) | options
    r = server.openai.chat.completions.create(**body)
    choice, message = r.choices[0], r.choices[0].message
    parts, order, calls, last = {}, [], {}, None
    for chunk in server.openai.chat.completions.create(**body, stream=True, stream_options={"include_usage": True}):
        if not chunk.choices:
            assert chunk.usage.completion_tokens == r.usage.completion_tokens
            assert chunk.usage.completion_tokens_details == r.usage.completion_tokens_details
            continue
        last = chunk.choices[0]
        for part in ("reasoning_content", "content"):
            text = getattr(last.delta, part, None)
            if text:
                parts[part] = parts.get(part, "") + text
                order.append(part)
        for c in last.delta.tool_calls or []:
            call = calls.setdefault(c.index, SimpleNamespace(id=c.id, name=c.function.name, arguments=""))
            assert c.function.name is None or call.arguments == ""  # the name comes first, and once
            call.arguments += c.function.arguments or ""
    assert parts.get("content") == (message.content or None)
    assert parts.get("reasoning_content") == getattr(message, "reasoning_content", None)
    assert order == sorted(order, reverse=True), "reasoning comes before content"
    assert [(c.id, c.name, c.arguments) for c in calls.values()] == \
        [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
    assert (last.finish_reason, last.isochron) == (choice.finish_reason, choice.isochron)
    return SimpleNamespace(
        reasoning=getattr(message, "reasoning_content", None), content=message.content, finish=choice.finish_reason,
        calls=[(c.function.name, c.function.arguments) for c in message.tool_calls or []], proof=choice.isochron, whole=r,
        tokens=r.usage.completion_tokens, reasoning_tokens=r.usage.completion_tokens_details.reasoning_tokens)


# ---- Reasoning ----


@pytest.mark.parametrize("model", ["qwen3", "open"])
def test_reasoning_is_apart_from_content(server, model):
    """Whether the model or its template opens the reasoning."""
    a = ask(server, model)
    assert (a.reasoning, a.content, a.finish, a.calls) == (REASONING, CONTENT, "stop", [])
    # <think> (of qwen3), five tokens and </think>, "\n\n", four of content.
    assert a.tokens == 11 + (model == "qwen3") and a.reasoning_tokens == 6
    assert ask(server, model).proof == a.proof != ask(server, model, seed=2).proof
    short = ask(server, model, max_tokens=4)
    assert (short.content, short.finish) == ("", "length") and REASONING.startswith(short.reasoning)


def test_the_template_takes_kwargs(server):
    off = ask(server, "qwen3", extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert (off.reasoning, off.content, off.tokens, off.reasoning_tokens) == (None, CONTENT, 4, 0)
    assert prompt_of(server, off.whole).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    on = ask(server, "qwen3", extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    assert (on.reasoning, on.content) == (REASONING, CONTENT)
    assert prompt_of(server, on.whole) == "<|im_start|>user\nAdd 1?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("model", ["qwen3", "open"])
@pytest.mark.parametrize("budget", [0, 1, 2, 3, 4, 17])
def test_budget_closes_the_reasoning(server, model, budget):
    """A model that would think for ever is cut off behind that many tokens, and then answers."""
    endless = forbid(server, model, "</think>")
    a = ask(server, model, logit_bias=endless, max_tokens=60, extra_body={"thinking_budget": budget})
    words = ["Let", " me", " think:", " h\u00e9", " 😀.\n"] + [" me", " think:", " h\u00e9", " 😀.\n"] * 9
    assert (a.reasoning or "") == "".join(words[:budget]).rstrip()
    assert (a.content, a.finish) == (CONTENT, "stop")
    assert a.tokens == budget + 3 + 4 + (model == "qwen3")  # "\n", </think>, "\n\n" are the server's
    again = ask(server, model, logit_bias=endless, max_tokens=60, extra_body={"thinking_budget": budget})
    assert again.proof == a.proof
    other = ask(server, model, logit_bias=endless, max_tokens=60, extra_body={"thinking_budget": budget + 1})
    assert other.proof["digest"] != a.proof["digest"]


@pytest.mark.parametrize("model", ["qwen3", "open"])
def test_budget_that_is_not_used_up(server, model):
    for budget in (7, 100):
        a = ask(server, model, extra_body={"thinking_budget": budget})
        assert (a.reasoning, a.content, a.tokens) == (REASONING, CONTENT, 11 + (model == "qwen3"))
    never = ask(server, model, logit_bias=forbid(server, model, "</think>"), max_tokens=60)
    assert (never.content, never.finish, never.tokens) == ("", "length", 60)
    # No room for what closes it: the answer ends with its length, and is a whole stream all the same.
    for n in (1, 2, 3):
        a = ask(server, model, max_tokens=n, extra_body={"thinking_budget": 0})
        assert (a.reasoning, a.content, a.finish, a.tokens) == (None, "", "length", n)
    roles = [c.choices[0].delta.role for c in server.openai.chat.completions.create(
        model=model, messages=ASK, max_tokens=1, stream=True, extra_body={"thinking_budget": 0})]
    assert roles[0] == "assistant"


def test_budget_where_nothing_thinks(server):
    for model in ("llama", "mistral"):
        plain = dict(tool_choice="none", logit_bias=forbid(server, model, OF_CALL[model], *(["<|python_tag|>"] * (model == "llama"))))
        assert ask(server, model, **plain).content == ask(server, model, extra_body={"thinking_budget": 0}, **plain).content == CONTENT


def test_stop_strings_count_for_the_reasoning_too(server):
    a = ask(server, "qwen3", stop=["e th"])
    assert (a.reasoning, a.content, a.finish) == ("Let m", "", "stop")
    a = ask(server, "open", stop=["42"])
    assert (a.reasoning, a.content, a.finish) == (REASONING, "The answer is ", "stop")


def test_reasoning_of_completions_is_text(server):
    """Nothing is split where no chat is asked for."""
    r = server.openai.completions.create(model="qwen3", prompt="\n", max_tokens=40, temperature=0)
    assert r.choices[0].text == f"<think>\n{REASONING}\n</think>\n\n{CONTENT}"


# ---- Tools ----


@pytest.mark.parametrize("model", STYLES)
def test_calls_of_each_style(server, model):
    """auto: what the model writes as a call is one; with none, or where it is not its way, its answer is text."""
    # Without reasoning where there may be any.
    quiet = forbid(server, model, "<think>") if model == "qwen3" else {}
    a = ask(server, model, tools=TOOLS, logit_bias=quiet)
    assert (a.calls, a.content, a.finish) == ([("add", '{"a": 1}')], None, "tool_calls")
    assert json.loads(a.calls[0][1]) == {"a": 1}
    assert ask(server, model, tools=TOOLS, tool_choice="auto", logit_bias=quiet).proof == a.proof
    none = ask(server, model, tools=TOOLS, tool_choice="none", logit_bias=quiet)
    assert (none.calls, none.finish) == ([], "stop") and '"add"' in none.content
    text = forbid(server, model, OF_CALL[model]) | quiet
    if model == "llama":
        text |= forbid(server, model, "<|python_tag|>")
    said = ask(server, model, tools=TOOLS, logit_bias=text)
    assert (said.calls, said.content, said.finish) == ([], CONTENT, "stop")
    prompt = prompt_of(server, a.whole)
    assert all(f'"{name}"' in prompt for name in NAMES) and not any(f'"{name}"' in prompt_of(server, none.whole) for name in NAMES)


def test_python_tag(server):
    a = ask(server, "llama", tools=TOOLS, logit_bias={str(server.ids["llama"]['{"name":']): -20})
    assert (a.calls, a.content, a.finish) == ([("add", '{"a": 1}')], None, "tool_calls")


def test_reasoning_and_then_a_call(server):
    a = ask(server, "qwen3", tools=TOOLS, logit_bias=forbid(server, "qwen3", "The"))
    assert (a.reasoning, a.content, a.calls, a.finish) == (REASONING, None, [("add", '{"a": 1}')], "tool_calls")


BEGIN = {"qwen3": '<tool_call>\n{"name": "', "llama": '{"name": "', "mistral": '[TOOL_CALLS][{"name": "'}
MIDDLE = {"qwen3": '", "arguments": ', "llama": '", "parameters": ', "mistral": '", "arguments": '}


@pytest.mark.parametrize("model", STYLES)
def test_forced_calls(server, model):
    """The call's beginning is put into the model's mouth: the name that was asked for, or any."""
    for name in NAMES:
        a = ask(server, model, tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}})
        assert (a.calls, a.content, a.reasoning, a.finish) == ([(name, '{"a": 1}')], None, None, "tool_calls")
        assert prompt_of(server, a.whole).endswith(BEGIN[model] + name + MIDDLE[model])
    one = ask(server, model, tools=TOOLS[1:], tool_choice="required")
    assert one.calls == [("mul", '{"a": 1}')] and one.finish == "tool_calls"
    any_of = ask(server, model, tools=TOOLS, tool_choice="required")
    assert any_of.calls == [("mul", '{"a": 1}')]  # the model's own choice
    assert prompt_of(server, any_of.whole).endswith(BEGIN[model])


@pytest.mark.parametrize("model", STYLES)
def test_results_go_back(server, model):
    """The call as the client got it and its result are put where the template has them."""
    named = {"type": "function", "function": {"name": "add"}}
    body = dict(model=model, tools=TOOLS, tool_choice=named, seed=1)
    first = server.openai.chat.completions.create(messages=ASK, **body)
    call = first.choices[0].message.tool_calls[0]
    assert len(call.id) == 9 and call.id.isalnum()
    messages = [*ASK, first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "2"}]
    bias = forbid(server, model, *([OF_CALL[model]] if model != "mistral" else []), *(["<|python_tag|>"] if model == "llama" else []),
                  *(["<think>"] if model == "qwen3" else []))
    a = ask(server, model, messages, tools=TOOLS, logit_bias=bias)
    assert (a.content, a.finish) == (CONTENT, "stop")
    another = server.openai.chat.completions.create(messages=messages, **body)
    assert another.choices[0].message.tool_calls[0].id != call.id
    prompt = prompt_of(server, a.whole)
    assert BEGIN[model] + "add" + MIDDLE[model] + '{"a": 1}' in prompt
    result = {"qwen3": "<tool_response>\n2\n</tool_response>", "llama": "ipython<|end_header_id|>\n\n2<|eot_id|>",
              "mistral": f'{{"content": 2, "call_id": "{call.id}"}}'}
    assert result[model] in prompt and prompt.index('{"a": 1}') < prompt.index(result[model])


@pytest.mark.parametrize("model", STYLES)
def test_the_client_accumulates_and_parses(server, model):
    """Its own helpers take the stream together and read the arguments by the tool's schema."""
    named = {"type": "function", "function": {"name": "mul"}}
    kinds = []
    with server.openai.chat.completions.stream(model=model, messages=ASK, tools=TOOLS, tool_choice=named) as stream:
        for event in stream:
            kinds.append(event.type)
        whole = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds and kinds.count("tool_calls.function.arguments.done") == 1
    call = whole.choices[0].message.tool_calls[0]
    assert (call.function.name, call.function.parsed_arguments) == ("mul", {"a": 1})
    parsed = server.openai.chat.completions.parse(model=model, messages=ASK, tools=TOOLS, tool_choice=named)
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == {"a": 1}


def test_models_of_one_server(server):
    assert [m.id for m in server.openai.models.list()] == list(scripted.SCRIPTS)
    with pytest.raises(openai.NotFoundError):  # with several, none is meant by another name
        ask(server, "qwen")
