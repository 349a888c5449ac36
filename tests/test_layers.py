"""Imports go one way: down the table of the architecture map, never up."""

import ast
import re
from pathlib import Path

import pytest

import treespec

PACKAGE = Path(treespec.__file__).parent
STRATEGIES = {"drafters", "policies", "controllers", "verifiers", "acceptance"}
HYDRA = tuple(
    f"{name}.py"
    for name in ("build", "cli", "compose", "explaining", "parts", "sweeping", "verbs")
)
ONLY_IN = {
    "transformers": "models/",
    "gguf": "models/",
    "wandb": ("sinks/wandb.py", "sinks/wandb_reader.py"),
    "pandas": "analysis/",
    "matplotlib": "analysis/",
    "plotly": "analysis/",
    "hydra": HYDRA,
    "omegaconf": HYDRA,
}
ROW = re.compile(r"^\| (\d) \| ([`\w ]+) \|", re.MULTILINE)


def architecture() -> dict[str, int]:
    """The layer of every part, as the map says."""
    rows = ROW.findall((PACKAGE / "ARCHITECTURE.md").read_text())
    return {
        name: int(layer) for layer, names in rows for name in re.findall(r"\w+", names)
    }


def modules() -> list[Path]:
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    entrances = {Path("__init__.py"), Path("__main__.py")}
    return sorted(set(paths) - entrances)


def part_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Full names of everything that a module imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def parts_imported(path: Path) -> set[str]:
    """Parts of the package that a module imports."""
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "treespec" and len(name) > 1}


LAYERS = architecture()


def test_every_part_has_a_place_on_the_map() -> None:
    assert {part_of(path) for path in modules()} == LAYERS.keys()
    assert {LAYERS[name] for name in STRATEGIES} == {4}


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_go_down(path: Path) -> None:
    part = part_of(path)
    for other in parts_imported(path) & LAYERS.keys():
        assert LAYERS[other] <= LAYERS[part], f"{path} imports {other}, a layer above"
        if part in STRATEGIES and other in STRATEGIES:
            assert part == other, f"{path} imports {other}, another kind of strategy"


@pytest.mark.parametrize("path", modules(), ids=str)
def test_big_libraries_are_known_in_one_place(path: Path) -> None:
    for library in {name.split(".")[0] for name in imported(path)} & ONLY_IN.keys():
        place = ONLY_IN[library]
        assert path.as_posix().startswith(place), f"{path} imports {library}"


def test_the_package_imports_without_trackers_and_configuration() -> None:
    """Someone who only decodes pays for no more than the models."""
    reached, new = set[str](), {"decoder"}
    while new:
        reached |= new
        paths = [path for path in modules() if part_of(path) in new]
        found = set[str]().union(*map(parts_imported, paths))
        new = (found & LAYERS.keys()) - reached
    assert not reached & {"sinks", "build", "cli", "runner"}
