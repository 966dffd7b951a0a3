"""Every field of the configuration says in a docstring what it is; every class is frozen and keyword-only."""

import ast
import inspect
import textwrap
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

import pytest

from launcher.schema import RunConfig


def config_classes(cls: type) -> list[type]:
    """The class and every dataclass among its fields, outermost first."""
    nested = [hint for hint in get_type_hints(cls).values() if is_dataclass(hint)]
    return [cls, *(c for hint in nested for c in config_classes(hint))]  # pyright: ignore[reportArgumentType]


def undocumented(cls: type) -> list[str]:
    """Fields that no string literal follows."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    following = zip(tree.body, [*tree.body[1:], None], strict=True)
    return [
        node.target.id
        for node, after in following
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_text(after)
    ]


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.parametrize("cls", config_classes(RunConfig), ids=lambda cls: cls.__name__)
def test_every_field_has_a_docstring(cls: type) -> None:
    assert undocumented(cls) == []


@pytest.mark.parametrize("cls", config_classes(RunConfig), ids=lambda cls: cls.__name__)
def test_configuration_is_frozen_and_keyword_only(cls: Any) -> None:
    assert cls.__dataclass_params__.frozen
    assert all(field.kw_only for field in fields(cls))


@dataclass
class Half:
    told: int = 0
    """Told."""

    untold: int = 0


def test_a_field_without_a_docstring_is_named() -> None:
    assert undocumented(Half) == ["untold"]
