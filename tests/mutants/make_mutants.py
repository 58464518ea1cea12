# SPDX-License-Identifier: Apache-2.0
"""Write copies of sources in which each fault can be switched on at run time: one build for all mutants.

A fault is one of these, in one line: a statement that is left out; a condition of an ``if`` that always or never holds;
a condition that is returned as its opposite; a count that lacks its one. `kvferry::mutants::active` is the number of
the fault that is on, from 1 on; 0: none.
"""

import argparse
import re
from pathlib import Path

ONE_LINE_IF = re.compile(r"(?P<head>\s*(?:\} else )?if \()(?P<rest>.*)")
DECLARES = re.compile(r"\b(auto|const)\b|[^=!<>]=[^=]|;")
STATEMENT = re.compile(
    r"(?:\+\+|--)[\w.>\[\]-]+;"
    r"|(?:static_cast<void>\()?[A-Za-z_][\w.:>-]*\(.*\);"
    r"|[A-Za-z_][\w.>\[\]-]*(?:\(\))? [+-]?= .*;"
)
# What only records: a fault there is none of the life cycle.
RECORDS = re.compile(r"\b(calls|decisions|journal_|journal|threw|note|note_end)\b")
NO_STATEMENT = re.compile(r"(return|throw|delete|static_assert|KVFERRY_\w+)\b")
# Faults whose recordings lack what the code read, each with the reason: a recorder takes hashes from the keys that were
# made of them, and how many there are from the request.
EXCEPTIONS = {
    "group == groups.finest() || length": "keys are copied from memory that was never written",
    "hashes->read((block": "keys are made of hashes that were never read",
    "of_group.emplace_back().set(hash": "other groups copy keys that were never made",
    "num_hashes = available;": "the number of hashes is recorded as none",
    "predecessor && state(*predecessor)": "the predecessor is read from memory that was never written",
}
# What stands before a whole statement ends so.
BEFORE = re.compile(r"([;{}:]|\belse|^\s*(if|for|while|else if) \(.*\))$")
RETURN = re.compile(r"\s*return (?P<what>[^;?{\[]+);")
IS_CONDITION = re.compile(r"^!| (==|!=|<|>|<=|>=|&&|\|\|) ")
ONE = re.compile(r"(?<=[\w)\]] [+-]) 1\b(?![.\w'])")


def condition_of(rest: str) -> tuple[str, str] | None:
    """Divide what follows ``if (`` into the condition and the text from its parenthesis on."""
    depth = 1
    for at, char in enumerate(rest):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if depth == 0:
            return rest[:at], rest[at:]
    return None


def outside_parentheses(code: str) -> str:
    """Return what is not in parentheses."""
    depth, out = 0, ""
    for char in code:
        depth += {"(": 1, ")": -1}.get(char, 0)
        out += "" if depth else char
    return out


class Mutator:
    """Numbers the faults of several sources."""

    def __init__(self) -> None:
        self.where: list[str] = []

    def _new(self, place: str, what: str) -> str:
        self.where.append(f"{place}: {what}")
        return f"KVFERRY_MUTANT({len(self.where)})"

    def mutate(self, source: Path) -> str:
        """Return the source with its faults."""
        out = ['#include "mutant.hpp"', f'#line 1 "{source}"']
        before = ""
        for number, line in enumerate(source.read_text().splitlines(), 1):
            out.append(self._line(line, before, f"{source.name}:{number}"))
            code = line.partition("//")[0].rstrip()
            before = code or before
        return "\n".join(out) + "\n"

    def _line(self, line: str, before: str, place: str) -> str:
        code = line.strip()
        if not line.startswith("  ") or code.startswith(("//", "#", "case ", "default:")) or RECORDS.search(line):
            return line
        if any(part in line for part in EXCEPTIONS):
            return line
        if (found := ONE_LINE_IF.fullmatch(line)) and (parts := condition_of(found["rest"])):
            condition, rest = parts
            if DECLARES.search(condition):
                return line
            never, always = self._new(place, f"never ({condition})"), self._new(place, f"always ({condition})")
            return f"{found['head']}{never} ? false : {always} ? true : bool({condition}){rest}"
        is_whole = code.count("(") == code.count(")") and code.count("{") == code.count("}")
        returned = RETURN.fullmatch(line) if is_whole and BEFORE.search(before) else None
        if returned and IS_CONDITION.search(outside_parentheses(returned["what"])):
            opposite = self._new(place, f"opposite of {returned['what']}")
            return f"{line[: returned.start('what')]}({opposite}) != ({returned['what']});"
        if is_whole and BEFORE.search(before) and STATEMENT.fullmatch(code) and not NO_STATEMENT.match(code):
            return f"  {{ if (!{self._new(place, f'without {code}')}) {{ {code} }} }}"
        if not re.search(r"constexpr|std::array<", code) and (found_one := ONE.search(line)):
            lacks = self._new(place, f"0 for 1 in {code}")
            return f"{line[: found_one.start()]} ({lacks} ? 0 : 1){line[found_one.end() :]}"
        return line


def write(path: Path, text: str) -> None:
    """Write a file, unless it has this text already: then nothing has to be built anew."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    """Write the copies, and the table of the faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="folder of the copies")
    parser.add_argument("sources", type=Path, nargs="+")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    mutator = Mutator()
    for source in given.sources:
        write(given.output / source.name, mutator.mutate(source))
    table = "".join(f'    R"~({one})~",\n' for one in mutator.where)
    write(
        given.output / "mutants.cpp",
        f'#include "mutant.hpp"\n\nnamespace kvferry::mutants {{\n\nint active = 0;\n'
        f"const int num_mutants = {len(mutator.where)};\nconst char* const where[] = {{\n{table}}};\n\n}}\n",
    )


if __name__ == "__main__":
    main()
