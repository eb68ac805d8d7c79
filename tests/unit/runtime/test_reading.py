"""Trees become Structs; every problem on the way has its key's path, and the rest is still read."""

from typing import Literal

import msgspec
import pytest

from shared.runtime.reading import Problem, Reader, did_you_mean, headline, walk_sections


class Leaf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str
    kind: Literal["red", "green"] = "red"
    size: int = 1
    weight: float = 0.5
    on: bool = False
    ends: tuple[str, str] = ("", "")


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    depth: int = 3


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    branch: Branch = Branch()


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    root: Leaf
    leaves: tuple[Leaf, ...] = ()
    inner: Inner = Inner()


def read(raw: object) -> tuple[Tree, list[str]]:
    reader = Reader(Tree)
    tree = reader.table(Tree, raw)
    return tree, [str(problem) for problem in reader.problems]


def test_a_right_tree_is_read_whole() -> None:
    raw = {
        "root": {"name": "r", "kind": "green", "size": 7, "weight": 2, "on": True, "ends": ["a", "b"]},
        "leaves": [{"name": "l0"}, {"name": "l1"}],
        "inner": {"branch": {"depth": 9}},
    }
    tree, problems = read(raw)
    assert problems == []
    assert tree == msgspec.convert(raw, Tree)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"size": "7"}, "root.size: '7' is not a whole number"),
        ({"size": 1.5}, "root.size: 1.5 is not a whole number"),
        ({"size": True}, "root.size: true is not a whole number"),
        ({"weight": "x"}, "root.weight: 'x' is not a number"),
        ({"weight": float("inf")}, "root.weight: inf is not a finite number"),
        ({"weight": float("nan")}, "root.weight: nan is not a finite number"),
        ({"on": 1}, "root.on: 1 is not true or false"),
        ({"name": 5}, "root.name: 5 is not a string"),
        ({"kind": "gren"}, "root.kind: 'gren' is not one of red, green; did you mean 'green'?"),
        ({"kind": 4}, "root.kind: 4 is not one of red, green"),
        ({"ends": ["a"]}, "root.ends: ['a'] is not a list of two strings"),
        ({"ends": ["a", 1]}, "root.ends: ['a', 1] is not a list of two strings"),
        ({"size": {"x": 1}}, "root.size: a table is not a whole number"),
        ({"sizes": 1}, "root.sizes: unknown key; did you mean 'size'?"),
        ({"zzz": 1}, "root.zzz: unknown key; known here: name, kind, size, weight, on, ends"),
        ({"depth": 1}, "root.depth: unknown key here; it belongs to [inner.branch]"),
        ({"branch": {}}, "root.branch: unknown key here; it belongs to [inner.branch]"),
    ],
)
def test_what_is_wrong_with_a_key_is_said(values: dict[str, object], expected: str) -> None:
    assert read({"root": {"name": "r"} | values})[1] == [expected]


def test_shapes_are_told_apart() -> None:
    assert read({"root": 3, "leaves": {"name": "x"}, "inner": {"branch": []}})[1] == [
        "root: 3 is not a table; write [root]",
        "leaves: a table is not an array of tables; write [[leaves]]",
        "inner.branch: [] is not a table; write [inner.branch]",
    ]


def test_all_problems_are_found_and_the_rest_is_read() -> None:
    tree, problems = read(
        {
            "roof": 1,
            "leaves": [{"name": "l0", "size": "x"}, 5, {"size": 3, "zzz": 1}],
            "inner": {"branch": 2},
        }
    )
    assert problems == [
        "roof: unknown key; did you mean 'root'?",
        "root: is missing",
        "leaves[0].size: 'x' is not a whole number",
        "leaves[1]: 5 is not a table; write [[leaves]]",
        "leaves[2].zzz: unknown key; known here: name, kind, size, weight, on, ends",
        "leaves[2].name: is missing",
        "inner.branch: 2 is not a table; write [inner.branch]",
    ]
    assert [leaf.name for leaf in tree.leaves] == ["l0", "", ""]
    assert tree.leaves[0].size == 1
    assert tree.leaves[2].size == 3
    assert tree.inner.branch.depth == 3


def test_long_values_are_cut() -> None:
    _, problems = read({"root": {"name": "r", "size": "x" * 500}})
    assert len(problems[0]) < 120


def test_sections_are_walked_in_order() -> None:
    assert [path for path, _ in walk_sections(Tree)] == ["", "root", "leaves[]", "inner", "inner.branch"]
    assert headline("leaves[]") == headline("leaves[3]") == "[[leaves]]"
    assert headline("inner.branch") == "[inner.branch]"


def test_no_suggestion_is_better_than_a_wrong_one() -> None:
    assert did_you_mean("prefil", ["prefill", "relay"]) == "; did you mean 'prefill'?"
    assert did_you_mean("xyz", ["prefill", "relay"]) == ""
    assert did_you_mean(7, ["prefill"]) == ""
    assert str(Problem("a.b", "is missing")) == "a.b: is missing"
