"""The rooms of python/gravure: who imports whom, as docs/design.md says it, and who PyTorch's."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import module_imports
import pytest
from gravure.torch_api.private_names import NAMES
from module_imports import PACKAGE, room_of

ROOT = Path(__file__).resolve().parents[2]
MODULES = module_imports.modules()
FILES = list(MODULES.values())
IMPORTS = module_imports.imports()
_SECTION = re.compile(r"^## Rooms of python/gravure\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def arrows() -> dict[str, set[str]]:
    """What the modules of a room may import besides their own: the table in docs/design.md."""
    section = _SECTION.search((ROOT / "docs/design.md").read_text())
    assert section is not None
    rows = _ROW.findall(section[1])
    return {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows}


def test_the_table_has_every_room() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == arrows().keys()
    folders = {file.parent for file in FILES} - {PACKAGE}
    assert {folder.name for folder in folders} == rooms  # a room has no rooms


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_room_imports_only_what_it_may(module: str) -> None:
    room = room_of(module)
    if not room:
        return
    allowed = arrows()[room]
    for other in IMPORTS[module]:
        target = room_of(other)
        assert target == room or (target or other) in allowed, f"{module} imports {other}"


def private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Private names of PyTorch's that a module reaches; `own` are those of this package."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{name.name}" for name in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if is_private(node.attr) and node.attr not in own and not is_operator(names[0]):
                yield names[0]
                continue
        for name in names:
            first, *rest = name.split(".")
            if first != "torch" or is_operator(name):
                continue
            if any(map(is_private, rest)) or rest[:2] == ["fx", "experimental"]:
                yield name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_operator(name: str) -> bool:
    """`torch.ops.aten._to_copy` is public: the name of an operator, which is none of Python's."""
    return name.startswith(("torch.ops.", "_aten.", "_prims.", "aten."))


def own_names() -> set[str]:
    """What this package itself calls so: functions, classes, and members that it sets."""
    found: set[str] = set()
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found.add(node.attr)
    return found


def test_private_pytorch_is_reached_from_one_room() -> None:
    own = own_names()
    found = {
        f"{module}: {name}"
        for module, file in MODULES.items()
        if room_of(module) != "torch_api"
        for name in private_names(ast.parse(file.read_text()), own)
    }
    assert not found


def words_on(text: str) -> str:
    """Comments and docstrings of a module."""
    tree = ast.parse(text)
    found = [ast.get_docstring(tree) or ""]
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append(ast.get_docstring(node) or "")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(found)


# What the table of private names has besides them.
NO_NAMES = {"MissingName", "NAMES", "first_missing", "is_there", "warn_of"}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("torch_api/*.py")), ids=lambda f: f.stem)
def test_what_is_imported_of_private_pytorch_is_explained(file: Path) -> None:
    """What it is for, and what happens without it; one that a function wraps is told there."""
    text = file.read_text()
    tree = ast.parse(text)
    words = set(re.findall(r"\w+", words_on(text)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "ithout" in (ast.get_docstring(node) or ""):
            words |= set(re.findall(r"\w+", ast.unparse(node)))
    for node in tree.body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            if isinstance(node, ast.ImportFrom) and node.module == "private_names":
                known = NAMES.get(alias.name)
                told = {alias.name, known.name if known else ""} & (words | NO_NAMES)
                assert told, f"{alias.name} is not explained"
                continue
            one: ast.stmt = ast.Import([alias])
            if isinstance(node, ast.ImportFrom):
                one = ast.ImportFrom(node.module, [alias], node.level)
            for name in private_names(ast.Module([one], []), set()):
                told = {alias.asname, name.rpartition(".")[2]} & words
                assert told, f"{name} is not explained"


@pytest.mark.parametrize(
    "text",
    [
        "import torch._dynamo",
        "from torch._guards import tracing",
        "from torch.optim.optimizer import _global_optimizer_pre_hooks",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from torch import _C",
        "x = torch._C._is_any_autocast_enabled()",
        "x = value.untyped_storage()._cdata",
    ],
)
def test_a_private_name_is_seen(text: str) -> None:
    assert list(private_names(ast.parse(text), {"_own"}))
    assert not list(private_names(ast.parse("torch.ops.aten._to_copy(self._own)"), {"_own"}))


def test_no_modules_import_each_other() -> None:
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_an_init_holds_no_code() -> None:
    """So that a module of a room can be imported alone; the package's own names what is public."""
    for file in FILES:
        if file.name == "__init__.py" and file.parent != PACKAGE:
            (docstring,) = ast.parse(file.read_text()).body
            assert isinstance(docstring, ast.Expr), file


# A private member that an explicit instantiation names, a symbol of PyTorch's that no header lists,
# internals that are not meant for others, and a question for the release.
_PRIVATE_CPP = re.compile(
    r"^template struct \w+<&|^namespace (?:at|c10|torch)(?:::\w+)* \{$|handle_stream_to_workspace"
    r"|TORCH_VERSION_",
    re.MULTILINE,
)
_FORWARD = re.compile(
    r"^namespace (?:at|c10|torch)(?:::\w+)* \{\n(?:(?:class|struct) \w+;\n)+\}", re.M
)
CPP = [
    file
    for folder in ("ir", "passes", "runtime", "python/csrc")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in (".h", ".cpp")
]


def reaches_private(text: str) -> bool:
    return _PRIVATE_CPP.search(_FORWARD.sub("", text)) is not None


def test_private_members_of_pytorch_are_reached_from_one_room_in_cpp() -> None:
    found = {file.parent.name for file in CPP if reaches_private(file.read_text())}
    assert found == {"torch_private"}


def test_each_header_of_that_room_says_what_it_is_for_and_what_happens_without_it() -> None:
    for header in (ROOT / "ir/torch_private").glob("*.h"):
        first = header.read_text().split("#include")[0]
        assert re.search(r"^// (Private|Unlisted|Differs): ", first, re.MULTILINE), header
        assert "ithout" in first, header


def test_a_private_member_is_seen_in_cpp() -> None:
    assert reaches_private("template struct Opened<&at::CUDAGeneratorImpl::state_>;\n")
    assert reaches_private("namespace at::native {\nvoid* getCudnnHandle();\n}\n")
    assert reaches_private("#if TORCH_VERSION_MINOR >= 15\n")
    assert not reaches_private("namespace torch::jit {\nstruct Graph;\n}  // namespace\n")


def test_no_two_headers_have_a_class_of_one_name() -> None:
    """All stand in one namespace, and a linker takes either for both."""
    named: dict[str, set[str]] = {}
    for layer in ("ir", "passes", "runtime", "python", "tools"):
        for header in (ROOT / layer).glob("**/*.h"):
            text = header.read_text()
            for name in re.findall(
                r"^(?:class|struct) (\w+)(?: final)?(?: :[^;{]*)? \{", text, re.M
            ):
                named.setdefault(name, set()).add(str(header.relative_to(ROOT)))
    assert len(named) > 100
    assert {name: files for name, files in named.items() if len(files) > 1} == {}
