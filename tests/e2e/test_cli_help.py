"""Help is complete, wrong command lines are told what is wrong, and docs/cli.md is true of the program."""

import json
import re
import shlex

import pytest

import cli
import make_hf
import make_tiny
import serving
from cli import ALL_COMMANDS, COMMANDS, OK, ROOT, USAGE, iso, misused, ok

SOURCE = ROOT / "src" / "cli"
PAGE = ROOT / "docs" / "cli.md"
TABLES = {"COMPILE": ("model_options.c", "COMPILE_OPTIONS"), "RUN": ("model_options.c", "RUN_OPTIONS"),
          "SAMPLING": ("generation.c", "OPTIONS")}


def table(file, name):
    """(long name, short name or "") of the options in one table of the source that help shows."""
    text = (SOURCE / file).read_text()
    body = re.search(rf"argp_option {name}\[\] = {{\n(.*?)\n}};", text, re.S).group(1)
    rows = re.findall(r'{"([a-z-]+)",\s*([^,]+),\s*[^,]+,\s*([^,]+),', body)
    return {(long, short.strip("'") if short.startswith("'") else "")
            for long, short, flags in rows if "HIDDEN" not in flags}


def own_options(command):
    """Of the command alone; those of serve are its settings."""
    if command != "serve":
        return table(f"cmd_{command}.c", "OPTIONS")
    text = (ROOT / "src" / "serve" / "config_settings.h").read_text()
    flags = re.findall(r'X\(\w+, "[\w.]+", "([a-z-]+)",', text)
    assert len(flags) > 30
    return {(flag, "") for flag in [*flags, "config", "print-config"]}


def options_of(command):
    file = f"cmd_{command}.c"
    found = own_options(command)
    for child in re.findall(r"&(\w+)_ARGP", (SOURCE / file).read_text()):
        found |= table(*TABLES[child])
    return found


def options_in_help(command):
    text = ok(command, "--help").out.decode()
    return {(long, short) for short, long in re.findall(r"^ +(?:-(\S), | {4})--([a-z-]+)", text, re.M)
            if long not in ("help", "usage")}


@pytest.mark.parametrize("command", ALL_COMMANDS)
def test_help_lists_every_option(command):
    wanted = options_of(command)
    assert len(wanted) >= 1
    assert options_in_help(command) == wanted
    text = ok(command, "--help").out.decode()
    assert text.startswith(f"Usage: isochron {command} [OPTION...] ")
    assert "Exit code" in text
    assert max(map(len, text.splitlines())) <= 80
    for flag in ("-h", "-?"):
        assert ok(command, flag).out.decode() == text


def exit_codes():
    rows = re.findall(r'X\(ISO_(\w+), "([^"]+)", \d+, (\d+)\)', (ROOT / "src/base/err.h").read_text())
    assert len(rows) >= 12
    return {int(code): "success" if name == "OK" else message for name, message, code in rows}


def test_general_help():
    text = ok("--help").out.decode()
    assert text == ok("-h").out.decode() == ok("help").out.decode()
    for command in ALL_COMMANDS:
        assert re.search(rf"^  {command} +\w", text, re.M)
    said = {int(code): message for code, message in re.findall(r"^ +(\d+)  (.+)$", text, re.M)}
    assert said == exit_codes()


def test_no_arguments():
    r = iso()
    assert r.code == USAGE and r.out == b"" and r.err == ok("--help").out


def test_version():
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text()).group(1)
    assert ok("--version").out.decode() == f"isochron {version}\n"


def test_unknown_command():
    for word in ("run", "Compile", "", "--verbose", "\x1b[31m"):
        r = iso(word)
        assert r.code == USAGE and r.out == b"" and r.err.count(b"\n") == 1, r
        assert b"there is no command" in r.err and b"--help" in r.err, r
        assert b"\x1b" not in r.err, r


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_option_and_missing_file(command, plan):
    misused(iso(command, plan, "--no-such-option"), "--no-such-option")
    misused(iso(command, plan, "-Z"), "-Z")
    misused(iso(command, *(["-p", "x"] if command == "generate" else [])), "which model file")
    misused(iso(command, plan, "another"), "another")
    misused(iso(command, plan, "--json=yes"), "json")


def test_missing_arguments(models, plan):
    misused(iso("compile", models.llama), "-o")
    misused(iso("generate", plan), "-p TEXT")
    for command, option in [("compile", "-o"), ("compile", "-c"), ("compile", "-np"), ("fit", "--pool"),
                            ("generate", "-p"), ("chat", "--seed"), ("bench", "--repeat")]:
        misused(iso(command, plan, option), "argument")


WRONG = [
    ("max-seq-len", "0"), ("max-seq-len", "1"), ("max-seq-len", "-5"), ("max-seq-len", "4k"), ("max-seq-len", ""),
    ("max-seq-len", "99999999999999999999"), ("max-seq-len", "4294967296"), ("slots", "0"), ("slots", "1025"),
    ("slots", "2.5"), ("batch-tokens", "0"), ("batch-tokens", "8193"), ("kv", "f32"), ("kv", "Q8"), ("kv", ""),
    ("threads", "0"), ("threads", "65"), ("threads", "two"), ("cpus", ""), ("cpus", "a"), ("cpus", "0,"),
    ("cpus", "3-1"), ("cpus", "0,,1"), ("cpus", "-1"), ("cpus", "0-"), ("cpus", "0-99"), ("cpus", "70000"),
    ("isa", "sse"), ("isa", ""), ("pool", "0"), ("pool", "8GiBs"), ("pool", "-1"), ("pool", "1.5GiB"),
    ("pool", "99999999999GiB"), ("pool", "GiB"), ("temperature", "-0.1"), ("temperature", "nan"),
    ("temperature", "101"), ("temperature", "1e-42"), ("temperature", "0.0009"), ("temperature", "warm"),
    ("temperature", ""), ("top-p", "0"), ("top-p", "1.1"),
    ("top-k", "-1"), ("min-p", "2"), ("repeat-penalty", "0"), ("repeat-penalty", "inf"), ("seed", "-1"),
    ("seed", "18446744073709551616"), ("max-tokens", "0"), ("max-tokens", "1e3"),
]


@pytest.mark.parametrize("option, value", WRONG)
def test_wrong_values(option, value, plan):
    """Each says which option, which value, and what is allowed."""
    r = iso("generate", plan, "-p", "x", f"--{option}={value}")
    misused(r, f"--{option}", f'"{value}"')
    assert re.search(r"allowed|can run|range|more than", r.err.decode()), r


def test_wrong_values_of_bench_and_others(plan):
    for option, value in [("prompt-tokens", "0"), ("output-tokens", "1"), ("repeat", "0"), ("repeat", "1001")]:
        misused(iso("bench", plan, f"--{option}={value}"), f"--{option}", value, "allowed")
    misused(iso("generate", plan, "-p", "x", "--cpus", "0", "--threads", "2"), "--threads 2", "--cpus")
    misused(iso("generate", plan, "-p", "x", *["--stop=x"] * 17), "--stop", "16")


def test_one_dash_and_what_follows_an_option_is_its_value(plan):
    """-np is --slots, but not where it is text."""
    assert ok("fit", plan, "-np", 3, "--json").json["slots"] == 3
    assert ok("fit", plan, "--np", 3, "--json").json["slots"] == 3
    assert ok("generate", plan, "-p", "-np", "-n", 1, "--json").json["usage"]["prompt_tokens"] == 3
    assert ok("generate", plan, "-n3", "-pabc", "-j").json["usage"]["completion_tokens"] == 3
    assert iso("fit", "-np", 2, "--", plan).code in (OK, cli.NOFIT)


# ---- the page


def sections():
    text = PAGE.read_text()
    parts = re.split(r"^## isochron (\w+)$", text, flags=re.M)
    assert parts[1::2] == ALL_COMMANDS
    return {command: part.split("\n## ")[0] for command, part in zip(parts[1::2], parts[2::2])}, text


def test_page_lists_every_option():
    shared = {"COMPILE": "How a model file is compiled", "RUN": "How a plan is run",
              "SAMPLING": "How tokens are chosen"}
    parts, text = sections()

    def described(part):
        return set(re.findall(r"^\| `(?:-\w, )?--([a-z-]+)", part, re.M))

    for child, title in shared.items():
        part = re.search(rf"^### {title}.*?\n(.*?)(?=^##)", text, re.S | re.M).group(1)
        assert described(part) == {long for long, _ in table(*TABLES[child])}
    for command in ALL_COMMANDS:
        own = re.split(r"^### ", parts[command], flags=re.M)[0]
        assert described(own) == {long for long, _ in own_options(command)}, command
        for short, long in re.findall(r"^\| `-(\w), --([a-z-]+)", own, re.M):
            assert (long, short) in options_of(command)


def test_page_has_the_exit_codes():
    _, text = sections()
    rows = {int(code): message for code, message in re.findall(r"^\| (\d+) \| ([^|]+?) \|", text, re.M)}
    assert rows == exit_codes()


def write_audit_file(folder):
    """Of some answers of the page's plan."""
    ok("compile", folder / "model.gguf", "-o", folder / "served.plan", "--slots", 4, "-c", 256)
    with serving.serve(folder / "served.plan", "--audit", folder / "audit.jsonl") as s:
        s.ok("/v1/completions", {"prompt": "x", "max_tokens": 3, "n": 2})
        s.ok("/v1/embeddings", {"input": "x"})


def write_eval_files(folder):
    (folder / "text.txt").write_text("A text of some words, and a few more of them.")
    (folder / "questions.jsonl").write_text('{"prompt": "x", "choices": [" a", " b"], "answer": 0}\n')


def test_pages_examples_work(models, tmp_path):
    """Every line of the page's shell blocks, in order, in one folder with a model.gguf and a folder model/."""
    (tmp_path / "model.gguf").write_bytes(models.llama.read_bytes())
    make_tiny.make(tmp_path / "float.gguf", type="F16")
    make_hf.make(tmp_path / "float.gguf", tmp_path / "model")
    write_eval_files(tmp_path)
    parts, _ = sections()
    write_audit_file(tmp_path)
    for command in ALL_COMMANDS:
        lines = [line for block in re.findall(r"^```sh\n(.*?)^```", parts[command], re.S | re.M)
                 for line in block.splitlines()]
        assert any(line.startswith(f"isochron {command} ") for line in lines), command
        for line in lines:
            words = shlex.split(line, comments=True)
            assert words[0] == "isochron", line
            r = iso(*words[1:], cwd=tmp_path)
            assert r.code == OK, (line, r)


def members(value, prefix=""):
    """The paths of all members of a JSON value; lists by their first element."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield prefix + key
            yield from members(inner, prefix + key + ".")
    elif isinstance(value, list) and value:
        yield from members(value[0], prefix)


def replayed(models, folder):
    """The result of a file in which one answer is not what it was."""
    (folder / "model.gguf").write_bytes(models.llama.read_bytes())
    write_audit_file(folder)
    lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    lines[1]["digest"] = "0" * 64
    (folder / "audit.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    r = iso("replay", folder / "audit.jsonl", "--json")
    assert r.code == cli.CORRUPT and (r.json["same"], r.json["different"]) == (2, 1), r
    return r.json


def test_page_names_every_json_member(models, plan, tmp_path):
    parts, text = sections()
    write_eval_files(tmp_path)
    evaluated = ok("eval", plan, "--against", plan, "--text", tmp_path / "text.txt", "--choices",
                   tmp_path / "questions.jsonl", "--json").json
    assert set(evaluated["against"]) == set(evaluated["model"])
    outputs = {
        "eval": dict(evaluated, against={}),
        "compile": ok("compile", models.llama, "-o", tmp_path / "m.plan", "--json", "--prune-heads", 0.5, "--calibrate",
                      tmp_path / "text.txt").json,
        "fit": ok("fit", plan, "--json", "--pool", "1GiB").json,
        "generate": ok("generate", plan, "-p", "x", "-n", 2, "--json").json,
        "bench": ok("bench", plan, "--json", "--repeat", 1, "--output-tokens", 2).json,
        "replay": replayed(models, tmp_path),
    }
    for command, output in outputs.items():
        documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", parts[command], re.M))
        assert documented == set(members(output)), command
    document = ok("inspect", plan, "--json").json
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", parts["inspect"].split("### A plan")[1], re.M))
    assert documented == set(members(document))
    document = ok("inspect", models.llama, "--json").json
    part = parts["inspect"].split("### A GGUF file")[1].split("### A Hugging Face folder")[0]
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", part, re.M))
    assert documented == set(members(dict(document, metadata={})))
    make_tiny.make(tmp_path / "m.gguf", type="F16")
    make_hf.make(tmp_path / "m.gguf", tmp_path / "model")
    document = ok("inspect", tmp_path / "model", "--json").json
    part = parts["inspect"].split("### A Hugging Face folder")[1].split("### A plan")[0]
    documented = set(re.findall(r"^\| `([a-z0-9_.]+)` \|", part, re.M))
    assert documented == set(members(dict(document, config={})))
    error = iso("inspect", tmp_path / "none", "--json")
    assert set(members(json.loads(error.out))) == set(re.findall(r"^\| `(error[a-z_.]*)` \|", text, re.M))


def test_page_knows_the_environment():
    """Every variable that the program reads is on the page; only src/cli reads any."""
    _, text = sections()
    read = set(re.findall(r'getenv\("(\w+)"\)', "".join(p.read_text() for p in SOURCE.glob("*.c"))))
    part = text.split("## Environment")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", part, re.M)) >= read
    for path in (ROOT / "src").rglob("*.c"):
        assert path.parent == SOURCE or "getenv(" not in path.read_text(), path
