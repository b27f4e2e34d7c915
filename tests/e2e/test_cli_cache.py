"""The cache of compiled plans: a model file is compiled once for each content, set of options and version."""

import os
import shutil
import subprocess

import pytest

import cli
from cli import CORRUPT, IO, OK, USAGE, iso, ok, refused

ASK = ["-p", "hello", "-n", 5]


@pytest.fixture
def model(models, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(models.llama, path)
    return path


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def generate(model, cache, *args):
    """(the answer, whether something was compiled)."""
    r = ok("generate", model, *ASK, *args, env={"XDG_CACHE_HOME": cache})
    lines = r.notes.splitlines()
    assert all(line.startswith(b"compiling into the cache: ") for line in lines), r
    assert not lines or lines[-1].startswith(b"compiling into the cache: 100% of ")
    return r.out, bool(lines)


def plans(cache):
    return sorted((cache / "isochron" / "plans").iterdir())


def test_compiled_once(model, cache):
    first, compiled = generate(model, cache)
    assert compiled and len(plans(cache)) == 1
    assert plans(cache)[0].suffix == ".plan"
    for command in (["generate", *ASK], ["chat", *ASK], ["bench", "--repeat", 1, "--output-tokens", 2]):
        name, *rest = command
        r = ok(name, model, *rest, "--json", env={"XDG_CACHE_HOME": cache})
        assert r.notes == b"", r
    assert generate(model, cache) == (first, False)
    assert generate(os.path.relpath(model), cache) == (first, False)
    assert len(plans(cache)) == 1
    assert (cache / "isochron").stat().st_mode & 0o077 == 0


def test_the_same_plan_as_compile_makes(model, cache, tmp_path):
    generate(model, cache, "-c", 100, "-np", 2)
    ok("compile", model, "-o", tmp_path / "m.plan", "-c", 100, "-np", 2)
    assert plans(cache)[0].read_bytes() == (tmp_path / "m.plan").read_bytes()


def test_default_place_is_in_home(model, tmp_path):
    for env in ({"XDG_CACHE_HOME": None}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        ok("generate", model, *ASK, env={"HOME": tmp_path / "home", **env})
        assert len(plans(tmp_path / "home" / ".cache")) == 1


def test_changed_options_compile_anew(model, cache):
    answers = set()
    for n, options in enumerate([[], ["-c", 100], ["-np", 2], ["--batch-tokens", 5], ["--kv", "q8"]]):
        out, compiled = generate(model, cache, *options)
        answers.add(out)
        assert compiled and len(plans(cache)) == n + 1
        assert generate(model, cache, *options) == (out, False)
    assert len(answers) <= 2  # only q8 may answer otherwise


def test_changed_files_compile_anew(model, models, cache):
    first, _ = generate(model, cache)
    stat = model.stat()
    shutil.copy(models.endless, model)  # another content
    other, compiled = generate(model, cache)
    assert compiled and other != first
    shutil.copy(models.llama, model)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # a nanosecond later
    assert generate(model, cache) == (first, True)
    data = model.read_bytes()
    model.rename(model.with_suffix(".old"))
    model.write_bytes(data)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # another file of the same size and time
    assert generate(model, cache) == (first, True)
    assert len(plans(cache)) == 4


def test_damaged_cache_is_made_anew(model, cache):
    """Cut, flipped, of another version: the answer is the same and the plan is whole again."""
    first, _ = generate(model, cache)
    path, = plans(cache)
    good = path.read_bytes()
    for at in (8, 20, 300, 5000, 13000, 17000, 30000, len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        assert generate(model, cache) == (first, True), at
        assert path.read_bytes() == good
    for size in (0, 7, 100, 5000, len(good) - 1):
        os.truncate(path, size)
        assert generate(model, cache) == (first, True), size
        assert path.read_bytes() == good
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    refused(iso("generate", path, *ASK), CORRUPT, path)  # given by name it is the user's file: never touched


def test_no_place(model, tmp_path):
    """One sentence that names the model, and what to do or what stood in the way."""
    refused(iso("generate", model, *ASK, env={"HOME": None}), USAGE, model, "HOME", "XDG_CACHE_HOME")
    refused(iso("generate", model, *ASK, env={"HOME": "not/absolute"}), USAGE, model, "HOME")
    file = tmp_path / "file"
    file.write_text("")
    for env, says in [({"HOME": "/proc/none"}, "/proc/none"), ({"HOME": file}, str(file)),
                      ({"XDG_CACHE_HOME": "/dev/null"}, "/dev/null")]:
        refused(iso("chat", model, *ASK, env=env), IO, model, says, "creating the folder failed")
    (tmp_path / "isochron").mkdir()
    (tmp_path / "isochron" / "plans").write_text("")
    refused(iso("bench", model, env={"XDG_CACHE_HOME": tmp_path}), IO, model, "Not a directory")


def test_folder_without_permission(model, cache):
    """Root may write everywhere, so it runs without that capability."""
    (cache / "isochron" / "plans").mkdir(parents=True)
    (cache / "isochron" / "plans").chmod(0o500)
    as_all = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
    r = subprocess.run([*as_all, *cli.arguments(["generate", model, *ASK])], capture_output=True,
                       env=cli.environment({"XDG_CACHE_HOME": cache}), timeout=cli.SECONDS_MAX)
    refused(cli.Result(r.returncode, r.stdout, r.stderr), IO, cache, "creating failed", "Permission denied")


def test_plans_need_no_cache(plan):
    ok("generate", plan, *ASK, env={"HOME": None})
    ok("fit", plan, env={"HOME": None})


def test_fit_and_inspect_write_nothing(model, cache):
    for command in ("fit", "inspect"):
        ok(command, model, env={"XDG_CACHE_HOME": cache})
    assert not cache.exists()


def test_two_at_once(model, cache):
    """Both answer; one plan stands there, whole, and nothing else."""
    env = cli.environment({"XDG_CACHE_HOME": cache})
    running = [subprocess.Popen(cli.arguments(["generate", model, *ASK]), env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL) for _ in range(4)]
    answers = {p.communicate(timeout=cli.SECONDS_MAX)[0] for p in running}
    assert [p.returncode for p in running] == [OK] * 4 and len(answers) == 1
    assert len(plans(cache)) == 1
    assert generate(model, cache) == (answers.pop(), False)


def test_what_is_refused_leaves_nothing(model, cache):
    env = {"XDG_CACHE_HOME": cache}
    refused(iso("generate", model, *ASK, "-c", 513, env=env), USAGE, model, "512")
    model.write_bytes(model.read_bytes()[:3000])
    refused(iso("generate", model, *ASK, env=env), cli.FORMAT, model)
    assert plans(cache) == []
