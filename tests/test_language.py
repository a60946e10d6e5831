"""The pages and the errors are written in plain English: sentences are short, and some phrases do not occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.each_of import each_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "methods").glob("*.md"),
                *(ROOT / "deploy").rglob("*.md")])
"""Not the decisions, which stay as they were written."""
WRITTEN = [page for page in PAGES if page.name != "CHANGELOG.md"]
MOST_WORDS_ON_AVERAGE = 20
MOST_WORDS = 60

BANNED = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\btipp(ed|ing) over\b": "say what happened: the model collapsed",
    r"\bwoken for\b": "say: alerts",
    r"\bdisk lies\b": "say what it does: it returns other data",
    r"\b(is|are) worth\b": "accuracy, effect, benefit",
    r"\bfor ever\b": "without limit, keeps trying",
    r"\bgo(es)? on by (itself|themselves)\b": "continues automatically",
    r"\b(thin line|line is thin)\b": "low bandwidth",
    r"\bSince \d+ s\b": "say what has been so for that time",
    r"\bpresses most\b": "say: most urgent first",
    r"\bout of all reason\b": "say what it is: far too large",
}
BANNED_IN_PROGRAMS = {
    r"(?<![Tt]here )\b(is|are) no (?!longer\b|more\b)[a-z]+": "is not a ..., is neither ... nor ...",
    r"\b(that|what) is none\b": "name what it is not",
    r"\bgo(es)? on (from|with|working)\b": "continues",
    r"\botherwise than\b": "differently from",
    r"\b(stands|stand) in \[": "is set in",
    r"\bby (itself|themselves)\b": "automatically, alone, one by one",
}
"""In errors, log lines and output, beside those above: they are read in haste, and by people of many languages."""


def prose(text: str) -> Iterator[str]:
    """The paragraphs and list items of a page in Markdown, without code, tables, headings and addresses of links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = text.partition("\n## Reference\n")[0]  # what follows on the page of a method comes from docstrings
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        item = re.match(r"(?:[-*]|\d+\.)\s+(.*)", stripped)
        if (not stripped or stripped.startswith(("|", "#", "<")) or item) and block:
            paragraph = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block))
            yield re.sub(r"`[^`]*`", "code", re.sub(r"<[^>]+>", " ", paragraph))
            block = []
        if item:
            block = [item[1]]
        elif stripped and not stripped.startswith(("|", "#", "<")):
            block.append(stripped)


def sentences(text: str) -> list[str]:
    """The sentences of a page."""
    return [sentence for paragraph in prose(text) for sentence in re.split(r"(?<=[.!?:])[\"')*_]*\s+", paragraph)
            if words(sentence)]


def words(sentence: str) -> int:
    """How many words a sentence has."""
    return len(re.findall(r"[A-Za-z0-9][\w'’.,/%-]*", sentence))


def banned_in(text: str, banned: Mapping[str, str] = BANNED) -> list[str]:
    """The banned phrases of a text, each with what to write instead."""
    return [f"{found[0]!r}: {instead}" for pattern, instead in banned.items()
            for found in [re.search(pattern, text, re.IGNORECASE if "Since" not in pattern else 0)] if found]


def strings_of(source: str) -> Iterator[str]:
    """The texts of a module that a person may read: arguments of errors, of log lines and of output, and docstrings of
    commands. Only strings with a space in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                    yield part.value


@each_of("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_of_a_page_are_short(page: Path) -> None:
    found = [(words(sentence), sentence) for sentence in sentences(page.read_text(encoding="utf-8"))]
    if found:
        assert sum(count for count, _ in found) / len(found) <= MOST_WORDS_ON_AVERAGE
    assert [sentence for count, sentence in found if count > MOST_WORDS] == []


@each_of("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_banned_phrase(page: Path) -> None:
    assert banned_in(page.read_text(encoding="utf-8")) == []


def test_errors_log_lines_and_output_have_no_banned_phrase() -> None:
    found, every = {}, {**BANNED, **BANNED_IN_PROGRAMS}
    assert all(pattern.startswith((r"\b", r"(?<![Tt]here )\b")) for pattern in every), "each begins with a word"
    any_of = re.compile(rf"\b(?:{'|'.join(every)})", re.IGNORECASE)  # tried where words begin: a third of the time
    for folder in ("common", "coordinator", "silo", "semisilo"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            if any_of.search(source) and (said := [text for text in strings_of(source) if banned_in(text, every)]):
                found[str(path.relative_to(ROOT))] = said  # only files with a hit are parsed: it takes a second for all
    for path in (path for side in ("coordinator", "common", "silo") for path in (ROOT / side / "page").rglob("*.js")):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines()
                 if not line.lstrip().startswith(("/", "*"))]
        if said := banned_in("\n".join(lines), every):
            found[str(path.relative_to(ROOT))] = said
    assert found == {}


def test_help_of_commands_has_no_banned_phrase() -> None:
    found = {}
    for folder in ("coordinator", "silo", "semisilo"):
        for path in (ROOT / folder / "cli").rglob("*.py"):
            if said := banned_in(path.read_text(encoding="utf-8")):
                found[str(path.relative_to(ROOT))] = said
    assert found == {}


def test_the_control_a_long_sentence_and_a_banned_phrase_are_found() -> None:
    page = ("# Head\n\nOne two three. Four `a b c` [five six](x.md)!\n\n| a table | of words |\n\n"
            "```sh\nnot this\n```\n- item\n")
    assert [words(sentence) for sentence in sentences(page)] == [3, 4, 1]
    assert banned_in("Mend that line.")
    assert banned_in("Since 46 s.")
    assert not banned_in("amend")
    assert banned_in("weights.pt is no file of tensors", BANNED_IN_PROGRAMS)
    assert not banned_in("There is no file weights.pt; it is no longer needed", BANNED_IN_PROGRAMS)
    assert list(strings_of('raise Bad(f"{x}: broken", remedy="Mend it.")')) == [": broken", "Mend it."]
