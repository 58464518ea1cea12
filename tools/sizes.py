# SPDX-License-Identifier: Apache-2.0
"""Check the size of the product's classes and files: one that cannot be read in one go should be split."""

import re
from collections.abc import Iterator

MOST_FUNCTIONS = 30  # The most public functions of a class, counted by distinct names.
MOST_LINES = 400

NO_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^\s*#(?:[^\n]*\\\n)*[^\n]*", re.DOTALL | re.MULTILINE
)
CLASS = re.compile(
    r"(?<!enum )\b(class|struct)\s+(?:alignas\([^)]*\)\s*)?(?:[\w:]+::)?(\w+)\s*(?:final\s*)?(?::[^:].*)?$", re.DOTALL
)
ACCESS = re.compile(r"\s*(public|protected|private)\s*:(?!:)")
# Things that have parentheses but are not functions.
DECORATION = re.compile(r"\[\[.*?\]\]|\b(?:KVFERRY_[A-Z_]+|alignas|decltype|noexcept|explicit)\s*\([^()]*\)", re.DOTALL)
# After a comma comes the next member that a constructor initialises.
NO_FUNCTION = re.compile(r"\s*(?:,|(?:friend|typedef|static_assert|enum)\b)|.*\boperator\b", re.DOTALL)
NAMED_FROM_BASE = re.compile(r"\s*using\s+[\w:<>]+::(\w+)\s*$")


def large_file(name: str, text: str) -> Iterator[str]:
    """Yield a complaint if the file has too many lines."""
    num_lines = text.count("\n")
    if num_lines > MOST_LINES:
        yield f"{name}: {num_lines} lines; at most {MOST_LINES}"


def large_classes(name: str, text: str) -> Iterator[str]:
    """Yield a complaint for each class of a header that has too many public functions."""
    for class_name, functions in public_functions(text):
        if len(functions) > MOST_FUNCTIONS:
            yield f"{name}: {class_name} has {len(functions)} public functions; at most {MOST_FUNCTIONS}"


def public_functions(text: str) -> list[tuple[str, set[str]]]:
    """Return the classes that a header defines, each with the names of its public functions.

    Constructors, destructors, operators and the functions of base classes do not count.
    """
    found: list[tuple[str, set[str]]] = []
    _read(NO_CODE.sub(" ", text), 0, None, found)
    return found


def _read(code: str, at: int, of_class: re.Match[str] | None, found: list[tuple[str, set[str]]]) -> int:
    """Read declarations up to the brace that ends them; return the text after it."""
    functions: set[str] = set()
    is_public = of_class is None or of_class[1] == "struct"
    if of_class:
        found.append((of_class[2], functions))
    begin, num_open = at, 0
    while at < len(code):
        if of_class and begin == at and (access := ACCESS.match(code, at)):
            is_public = access[1] == "public"
            begin = at = access.end()
            continue
        one = code[at]
        num_open += (one == "(") - (one == ")")
        at += 1
        if num_open > 0 or one not in ";{}":
            continue
        head = code[begin : at - 1]
        if one == "{":
            opened = CLASS.search(head) if "(" not in DECORATION.sub("", head) else None
            is_scope = opened or re.match(r"\s*(?:inline\s+)?namespace\b|\s*extern\b", head)
            at = _read(code, at, opened, found) if is_scope else _after_body(code, at)
        if one != "}" and of_class and is_public and (function := _function(head, of_class[2])):
            functions.add(function)
        if one == "}":
            return at
        begin = at
    return at


def _after_body(code: str, at: int) -> int:
    """Return the text after the brace that ends a body."""
    depth = 1
    while at < len(code) and depth > 0:
        depth += (code[at] == "{") - (code[at] == "}")
        at += 1
    return at


def _function(head: str, of_class: str) -> str | None:
    """Return the name of the function that a declaration in a class begins with, if that function counts."""
    if named := NAMED_FROM_BASE.match(head):
        return named[1]
    head = DECORATION.sub(" ", head)
    if NO_FUNCTION.match(head):
        return None
    depth = 0
    for at, one in enumerate(head):
        depth += (one == "<") - (one == ">" and head[at - 1] != "-")
        if depth > 0 or one not in "(=":
            continue
        name = re.search(r"(~?\w+)\s*$", head[:at])
        if one == "=" or not name or head[at + 1 :].lstrip().startswith("*"):
            return None
        return None if name[1].lstrip("~") == of_class else name[1]
    return None
