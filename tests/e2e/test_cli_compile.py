"""isochron compile: the same bytes, whole or not at all, progress where it belongs."""

import os
import re
import resource
import signal
import subprocess
import time

import cli
import make_hf
import make_tiny
from cli import IO, OK, USAGE, Terminal, iso, misused, ok, refused


def test_text_and_json_say_the_same(models, tmp_path):
    path = tmp_path / "m.plan"
    r = ok("compile", models.llama, "-o", path, "--json", "-c", 100, "-np", 3)
    assert r.err == b"", r
    told = r.json
    assert told["plan"] == str(path) and told["bytes"] == path.stat().st_size
    assert (told["max_seq_len"], told["slots"]) == (100, 3)
    r = ok("compile", models.llama, "-o", path, "-c", 100, "-np", 3)
    line = r.out.decode()
    assert line.count("\n") == 1 and line.startswith(f"{path}: ")
    assert told["hash"] in line and f"{told['operations']} operations" in line
    seen = ok("inspect", path, "--json").json
    assert (seen["hash"], seen["bytes"], len(seen["operations"]), seen["version"]) == (
        told["hash"], told["bytes"], told["operations"], told["version"])


def test_same_bytes_twice_and_anywhere(models, tmp_path):
    """Also from another folder, under another name, and over an older file."""
    first, second = tmp_path / "a.plan", tmp_path / "other" / "b.plan"
    second.parent.mkdir()
    second.write_bytes(b"older")
    copy = tmp_path / "other" / "copy.gguf"
    copy.write_bytes(models.qwen2.read_bytes())
    ok("compile", models.qwen2, "-o", first)
    ok("compile", "copy.gguf", "-o", "b.plan", cwd=second.parent)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(p.name for p in second.parent.iterdir()) == ["b.plan", "copy.gguf"]


def test_aliases_and_defaults(models, tmp_path):
    a, b = tmp_path / "a.plan", tmp_path / "b.plan"
    ok("compile", models.llama, "-o", a, "-c", 200, "-np", 2)
    ok("compile", "--slots", 2, models.llama, "--max-seq-len=200", f"--output={b}")
    assert a.read_bytes() == b.read_bytes()
    ok("compile", models.llama, "-o", a, "--kv", "f16", "--batch-tokens", 128, "--slots", 1, "-c", 512)
    ok("compile", models.llama, "-o", b)
    assert a.read_bytes() == b.read_bytes()
    ok("compile", models.llama, "-o", b, "--kv", "q8")
    assert a.read_bytes() != b.read_bytes()
    limits = ok("inspect", b, "--json").json["limits"]
    assert limits == {"max_seq_len": 512, "slots": 1, "batch_tokens": 128, "kv": "q8", "quant": "keep", "quant_embedding": "keep"}
    assert ok("compile", models.llama, "-o", b, "-np", 200, "--json").json["slots"] == 200
    assert ok("inspect", b, "--json").json["limits"]["batch_tokens"] == 200


def test_values_that_the_model_rules_out(models, tmp_path):
    path = tmp_path / "m.plan"
    refused(iso("compile", models.llama, "-o", path, "-c", 513), USAGE, models.llama, "--max-seq-len 513", "512")
    refused(iso("compile", models.llama, "-o", path, "--batch-tokens", 3, "-np", 4), USAGE, models.llama,
            "--batch-tokens 3", "4", "8192")
    assert not path.exists()


def test_mistaken_files(models, plan, tmp_path):
    """A plan as the model, the model as the plan: told apart before anything is written."""
    refused(iso("compile", plan, "-o", tmp_path / "x"), USAGE, plan, "plan already")
    copy = tmp_path / "model.gguf"
    copy.write_bytes(models.llama.read_bytes())
    (tmp_path / "link").symlink_to(copy)
    for output in (copy, tmp_path / "link", f"{tmp_path}/./model.gguf"):
        refused(iso("compile", copy, "-o", output), USAGE, output, f"-o names a file that is read: {copy}")
    assert copy.read_bytes() == models.llama.read_bytes()


def test_output_over_an_input(models, tmp_path):
    """A file of the model's folder, of the adapter's, the calibration's text."""
    folder, adapter, text = tmp_path / "model", tmp_path / "adapter", tmp_path / "text.txt"
    make_tiny.make(tmp_path / "m.gguf", arch="llama", type="F32")
    make_hf.make(tmp_path / "m.gguf", folder)
    adapter.mkdir()
    for path in (adapter / "adapter_model.safetensors", text):
        path.write_text("some text " * 20)
    with_text = ["--quant", "w4", "--calibrate", text]
    for output, given, more in ((folder / "model.safetensors", folder, []), (folder / "tokenizer.json", folder, []),
                                (adapter / "adapter_model.safetensors", adapter, ["--lora", adapter]), (text, text, with_text),
                                (folder, folder, [])):
        before = output.read_bytes() if output.is_file() else None
        refused(iso("compile", folder, "-o", output, *more), USAGE, output, f"a file that is read: {given}")
        assert before is None or output.read_bytes() == before
    for _ in range(2):  # a plan in the folder is written anew
        ok("compile", folder, "-o", folder / "m.plan")
    for name in ("model.safetensors", "config.json"):
        refused(iso("compile", folder / name, "-o", tmp_path / "m.plan"), USAGE, name, "the folder is given")


def test_what_calibrating_would_find_too_late(models, tmp_path, monkeypatch):
    """Is said before the model is compiled and run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("some text " * 200)
    calibrate = ["--quant", "w4", "--calibrate"]
    for output, says in ((tmp_path / "none" / "m.plan", "No such file"), ("/dev/null", "no regular file")):
        refused(iso("compile", models.llama, "-o", output, *calibrate, text), IO, says)
    refused(iso("compile", models.llama, "-o", tmp_path / "m.plan", *calibrate, tmp_path / "none.txt"), IO, "none.txt: opening failed")
    refused(iso("compile", models.llama, "-o", tmp_path / "m.plan", *calibrate, tmp_path), IO, "this is a folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["text.txt"]
    for option in ("--calibrate", "--lora", "-o"):
        misused(iso("compile", models.llama, "-o", tmp_path / "m.plan", option, "a", option, "b"), "is given twice")
    misused(iso("compile", models.llama, "-o", tmp_path / "m.plan", "--lora", "a", "--prune-heads", 0.5), "give one of them")


def test_output_that_cannot_be_written(models, tmp_path):
    """Refused with the name of what was to be written; a device or a folder stays what it is."""
    folder, fifo = tmp_path / "folder", tmp_path / "fifo"
    folder.mkdir()
    os.mkfifo(fifo)
    for output in ("/dev/full", "/dev/null", folder, fifo):
        refused(iso("compile", models.llama, "-o", output), IO, output, "no regular file")
    refused(iso("compile", models.llama, "-o", tmp_path / "none" / "m.plan"), IO, "none/m.plan",
            "No such file or directory")
    refused(iso("compile", models.llama, "-o", models.llama / "m.plan"), IO, "m.plan", "Not a directory")
    misused(iso("compile", models.llama, "-o", ""), "-o FILE")
    refused(iso("compile", models.llama, "-o", tmp_path / ("n" * 300)), IO, "File name too long")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fifo", "folder"]
    assert os.stat("/dev/null").st_rdev == os.makedev(1, 3)


def test_full_disk_leaves_the_older_plan(models, plan, tmp_path):
    def no_more_room():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

    path = tmp_path / "m.plan"
    for older in (None, plan.read_bytes()):
        if older:
            path.write_bytes(older)
        refused(iso("compile", models.qwen2, "-o", path, preexec_fn=no_more_room), IO, path, "File too large")
        assert (path.read_bytes() if path.exists() else None) == older
        assert len(list(tmp_path.iterdir())) == (1 if older else 0)


def test_killed_on_the_way_leaves_nothing(tmp_path):
    model = cli.demo_model()
    for number in (signal.SIGKILL, signal.SIGINT):
        p = subprocess.Popen(cli.arguments(["compile", model, "-o", tmp_path / "m.plan"]), stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE)
        line = p.stderr.readline()
        p.send_signal(number)
        p.wait(cli.SECONDS_MAX)
        p.stderr.close()
        assert b"10%" in line and p.returncode == -number
        assert list(tmp_path.iterdir()) == []


def test_plain_lines_without_a_terminal(models, tmp_path):
    r = ok("compile", models.llama, "-o", tmp_path / "m.plan")
    assert b"\r" not in r.err and b"\x1b" not in r.err, r
    percents = [int(n) for n in re.findall(rb"^compiling: (\d+)% of [\d.]+ \w+, \d+ s left$", r.err, re.M)]
    assert len(percents) == r.err.count(b"\n") <= 10
    assert percents == sorted(set(percents)) and percents[-1] == 100


def test_bar_on_a_terminal(models, tmp_path):
    with Terminal("compile", models.llama, "-o", tmp_path / "m.plan", streams=(2,)) as t:
        assert t.end() == OK
        out = t.process.stdout.read()
    assert out.count(b"\n") == 1 and out.startswith(os.fsencode(str(tmp_path)))
    frames = t.screen.split(b"\r")[1:]
    assert frames[-1] == b"\n"
    assert all(re.match(rb"compiling \[#*\.*\] +\d+% of [\d.]+ KiB, \d+ s left \x1b\[K", f) for f in frames[:-1])
    assert b"[" + 30 * b"#" + b"] 100%" in frames[-2]
    assert max(len(f) for f in frames) <= 80


def test_quiet_on_a_terminal_with_json(models, tmp_path):
    with Terminal("compile", models.llama, "-o", tmp_path / "m.plan", "--json", streams=(2,)) as t:
        assert t.end() == OK
        assert t.process.stdout.read().startswith(b"{")
    assert t.screen == b""


def test_mode_follows_umask(models, tmp_path):
    for mask in (0o022, 0o077):
        path = tmp_path / f"{mask}.plan"
        ok("compile", models.llama, "-o", path, preexec_fn=lambda m=mask: os.umask(m))
        assert path.stat().st_mode & 0o777 == 0o644 & ~mask


def test_plan_is_used_where_it_lies(models, tmp_path):
    """Position-independent and without a trace of the model file: moved and alone it answers the same."""
    path, moved = tmp_path / "m.plan", tmp_path / "moved"
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(models.llama.read_bytes())
    ok("compile", copy, "-o", path)
    before = ok("generate", path, "-p", "a b c", "-n", 10).out
    copy.unlink()
    path.rename(moved)
    assert ok("generate", moved, "-p", "a b c", "-n", 10).out == before


def test_older_time_stamps_change_nothing(models, tmp_path):
    a, b = tmp_path / "a.plan", tmp_path / "b.plan"
    copy = tmp_path / "m.gguf"
    copy.write_bytes(models.llama.read_bytes())
    ok("compile", copy, "-o", a)
    os.utime(copy, (time.time() - 1000, time.time() - 1000))
    ok("compile", copy, "-o", b)
    assert a.read_bytes() == b.read_bytes()
