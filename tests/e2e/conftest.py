"""What all end-to-end tests share: a home of their own, and small models made once for each file of tests."""

from types import SimpleNamespace

import pytest

import cli
import gguf_io
import make_tiny


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory):
    """HOME is an empty folder; nothing of the user's is read or written."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LANG", "LC_ALL", "LC_CTYPE"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session", autouse=True)
def built():
    if not cli.BINARY.exists():
        pytest.skip(f"{cli.BINARY} has not been built")


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Tiny: llama and qwen2; `bare`, without a chat template; `endless`, whose answers end only by their length."""
    folder = tmp_path_factory.mktemp("models")
    llama, qwen2, bare, endless = (folder / f"{name}.gguf" for name in ("llama", "qwen2", "bare", "endless"))
    make_tiny.make(llama, type="mixed")
    make_tiny.make(qwen2, arch="qwen2", type="Q4_1", hidden=96, heads=6, kv_heads=3, ffn=224, layers=3)
    c = dict(make_tiny.SHAPES["tiny"], type="Q8_0", tied=True, bias=False, head_dim=16)
    meta = make_tiny.metadata("no template", c)
    gguf_io.write(bare, [m for m in meta if m[0] != "tokenizer.chat_template"], make_tiny.tensor_list(c, 1))
    meta = make_tiny.metadata("endless", dict(c, context=32768))
    tokens = next(value for key, _, value in meta if key == "tokenizer.ggml.tokens")
    tokens[-3:] = ["<|one|>", "<|im_start|>", "<|three|>"]  # no name that is known to end an answer
    gguf_io.write(endless, [m for m in meta if m[0] != "tokenizer.ggml.eos_token_id"], make_tiny.tensor_list(c, 1))
    return SimpleNamespace(llama=llama, qwen2=qwen2, bare=bare, endless=endless)


@pytest.fixture(scope="session")
def plan(models, tmp_path_factory):
    """The llama model's plan, all defaults."""
    path = tmp_path_factory.mktemp("plan") / "llama.plan"
    cli.ok("compile", models.llama, "-o", path)
    return path


@pytest.fixture(scope="session")
def demo_plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "demo.plan"
    cli.ok("compile", cli.demo_model(), "-o", path, "-c", 512)
    return path


@pytest.fixture(scope="session")
def endless_plan(models, tmp_path_factory):
    """Room for an answer that takes many seconds."""
    path = tmp_path_factory.mktemp("endless") / "endless.plan"
    cli.ok("compile", models.endless, "-o", path, "-c", 32768)
    return path


@pytest.fixture(scope="session")
def served_plan(models, tmp_path_factory):
    """The tiny llama (random weights) with four slots."""
    path = tmp_path_factory.mktemp("served") / "tiny.plan"
    cli.ok("compile", models.llama, "-o", path, "--slots", 4, "-c", 256)
    return path


@pytest.fixture(scope="session")
def pair_plan(models, tmp_path_factory):
    """Two answers at once, of many seconds each."""
    path = tmp_path_factory.mktemp("pair") / "pair.plan"
    cli.ok("compile", models.endless, "-o", path, "-c", 32768, "--slots", 2)
    return path
