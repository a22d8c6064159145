"""What a response states as its answer, and whether that matches: words, numbers, choices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from hierrouter_cache.keys import Choices

PUNCTUATION = re.compile(r"[^\w\s]")


def tokens(text: str) -> list[str]:
    """Lower-case words, punctuation replaced by a blank (paper appendix C)."""
    return PUNCTUATION.sub(" ", text.lower()).split()


def token_f1(response: str, references: Sequence[str]) -> float:
    """Token-level F1 with multiset overlap, maximum over references (paper appendix C)."""
    return max(_f1(tokens(response), tokens(reference)) for reference in references)


def exact_match(response: str, references: Sequence[str]) -> float:
    """1 where the response equals a reference but for case, white space and outer punctuation.

    Signs, decimal points and operators count: -5 is not 5 and 1.5 is not 15.
    """
    found = plain(response)
    return float(any(found == plain(reference) for reference in references))


def plain(text: str) -> str:
    """The text without what `exact_match` does not look at."""
    return " ".join(text.lower().split()).strip(" .,;:!?\"'")


def _f1(response: list[str], reference: list[str]) -> float:
    shared = (Counter(response) & Counter(reference)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(response), shared / len(reference)
    return 2 * precision * recall / (precision + recall)


BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
BOXES = 8  # so many are tried, the last ones; a response cut short may have open ones
LONGEST = 2000  # characters in a box
MARK = "####"
CUE = re.compile(
    r"\banswer\b(?:[^\n.:=]{0,40}?\b(?:is|of)\b:?|[\s*_]*[:=])|^[ \t]*A[ \t]*:", re.I | re.M
)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def boxed_text(text: str) -> str | None:
    r"""What stands in the last whole `\boxed{...}`; `\boxed 5` without braces is `5`."""
    for box in reversed(list(BOX.finditer(text))[-BOXES:]):
        content = _in_braces(text, box.end())
        if content is not None:
            return content
    return None


def marked_text(text: str) -> str | None:
    """The line after the last `####`, the way GSM8K writes its answers."""
    _, mark, after = text.rpartition(MARK)
    return after.strip().split("\n")[0] if mark else None


def cued_text(text: str) -> str | None:
    """The rest of the sentence after the last "answer is", "Answer:" or "A:"."""
    cues = list(CUE.finditer(text))
    return sentences(text[cues[-1].end() :].lstrip())[0] if cues else None


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text that are not blank; one blank where all are."""
    return [part for part in SENTENCE_END.split(text) if part.strip()] or [""]


def _in_braces(text: str, start: int) -> str | None:
    if text[start : start + 1] != "{":
        word = text[start:].split(maxsplit=1)
        return word[0].strip("$.,") if word else None
    depth = 0
    for position in range(start, min(len(text), start + LONGEST)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + 1 : position]
    return None


MINUS = dict.fromkeys(map(ord, "−–﹣－"), "-")
FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*(-?[\d.,]+)\s*\}\s*\{\s*(-?[\d.,]+)\s*\}")
LATEX = [  # what LaTeX puts into a number: separators, escapes, thin spaces
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[!,;]|(?<=\d)[\u00a0\u2009\u202f](?=\d{3})"), ""),
    (re.compile(r"\\(?=[$%])"), ""),
]
# Longer digits are no answer, and their arithmetic would take for ever.
DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,130}(?![0-9])|[0-9]{1,400})"
DECIMAL = rf"(?:{DIGITS}(?:\.[0-9]{{1,400}})?|\.[0-9]{{1,400}})"
POWER = r"(?:[eE]|\s?(?:[×xX*]|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\{?)"
NUMBER = re.compile(
    r"(?<![\w^])(?<!\^\{)(?<!\d\.)"  # not inside a word, and not an exponent
    r"(?P<sign>(?<![\w)])-)?(?:[$€£](?P<inner>-)?)?"
    rf"(?:(?:(?P<whole>{DIGITS})[ ])?(?P<over>{DECIMAL})\s?/\s?(?P<under>-?{DECIMAL})"
    rf"|(?P<decimal>{DECIMAL})(?:{POWER}(?P<power>[-+]?[0-9]{{1,3}})(?![0-9])\}}?)?)"
)
PREFIX_END = re.compile(r"-[A-Za-z]")
PLAIN_END = re.compile(r"\s*%?\s*\.?\s*")


def numeric(response: str, references: Sequence[str]) -> float:
    r"""1 where the final number of the response is that of a reference.

    The response's final number stands in its last `\boxed`, after its last `####`, after its last
    "answer is" or "A:", or is its last number; the first of these that has a number counts.
    """
    found = final_number(response)
    return float(found is not None and any(found == final_number(one) for one in references))


def final_number(text: str) -> Fraction | None:
    """The number that a text states as its answer, or None."""
    text = plain_digits(text)
    stated = (
        (boxed_text(text), _result),
        (marked_text(text), _first),
        (cued_text(text), _result),
        (text, _last),
    )
    for answer, pick in stated:
        if answer is not None and (number := pick(answer)) is not None:
            return number
    return None


def plain_number(text: str) -> Fraction | None:
    """The value of a text that is nothing but one number, else None."""
    text = plain_digits(text.strip().strip("$"))
    match = NUMBER.match(text)
    return _value(match) if match and PLAIN_END.fullmatch(text, match.end()) else None


def plain_digits(text: str) -> str:
    """The text with one kind of minus, and without what LaTeX puts into a number."""
    text = text.translate(MINUS)
    for pattern, instead in LATEX:
        text = pattern.sub(instead, text)
    return FRACTION.sub(r" \1/\2", text)


def _result(text: str) -> Fraction | None:
    """What the last equation gives, else the first number: "3 + 4 = 7", "7 in 2 days"."""
    _, equation, right = text.rpartition("=")
    return _first(right) if equation else _first(text)


def _first(text: str) -> Fraction | None:
    return next((value for _, value in _numbers(text)), None)


def _last(text: str) -> Fraction | None:
    # A number that begins a word ("9-digit") is no answer.
    free = [value for end, value in _numbers(text) if not PREFIX_END.match(text, end)]
    return free[-1] if free else None


def _numbers(text: str) -> Iterator[tuple[int, Fraction]]:
    for match in NUMBER.finditer(text):
        value = _value(match)
        if value is not None:
            yield match.end(), value


def _value(match: re.Match[str]) -> Fraction | None:
    part = match.groupdict()
    if part["decimal"]:
        value = _fraction(part["decimal"]) * Fraction(10) ** int(part["power"] or 0)
    elif under := _fraction(part["under"]):
        value = _fraction(part["whole"] or "0") + _fraction(part["over"]) / under
    else:
        return None
    return -value if part["sign"] or part["inner"] else value


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.replace(",", ""))


WRAPPERS = re.compile(r"\\(?:text|textbf|mathrm|mathbf|rm|bf)\b\s*")
ENCLOSED = re.compile(r"(?<!\w)[*_`\"'“‘\[{($]{1,6}([A-Ja-j])[.:]?[*_`\"'”’\]})$]{1,6}(?!\w)")
MARKUP = re.compile(r"[*_`$]+")

# A label in brackets is one. A capital that is no English word is one unless it starts a name
# ("C-reactive", "D.C."). "A", "I" and small letters need to be cut off from what follows.
LABEL_END = r"(?=\s*(?:[,;:!?)]|\.(?!\w)|$))"
REASON = r"(?=\s+(?:because|since|is)\b)"
LABEL = (
    r"(?:\(([A-Ja-j])\)|([B-HJ])(?![\w'’-]|\.\w)"
    rf"|(?<!\w)([A-Ja-j]){LABEL_END}|(?<!\w)([AI]){REASON})"
)
CHOICE_CUE = (
    r"(?:\b(?:answer|option|choice)\b(?:[^\n.:=]{0,40}?\bis\b|\s*[:=–-])"
    r"|\b(?:therefore|thus|hence|so)\b,?(?:\s+it\s+is\b|\s+it's\b)?"
    r"|\b(?:it\s+is|it's|(?:must|would|should)\s+be|choose|pick|select|go\s+with)\b)"
    r"\s*(?::\s*)?(?:(?:the|option|choice|letter|answer|probably|likely|clearly)\s+){0,3}"
)
VERDICT = r"\s+is\s+(?:the\s+|most\s+|only\s+){0,2}(?:correct|right|best|answer|true)\b"
STATED = re.compile(
    rf"(?i:{CHOICE_CUE}){LABEL}"
    rf"|(?:\(([A-Ja-j])\)|(?<![\w'’-])([A-J]))(?i:{VERDICT})"
    r"|^[^\w\n]*(?:(?i:option|choice|letter|answer)[ ])?([A-Ja-j])[^\w\n]*$",
    re.M,
)
LEADING = re.compile(
    r"\s*(?:\(([A-Ja-j])\)|([A-Ja-j])(?=\s*(?:[),;:!?\n]|\.(?!\w))|\s+(?:[–-]|because|since)\s))"
    r"(?!\s*(?:is\s+(?:not|wrong|incorrect|false)|(?:and|or|,)\s+\(?[A-J])\b)"
)
# What may follow a choice's text that is stated as the answer: its reason.
TEXT_END = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
MARKS = " .,;:!?\"'*_`$\ufeff"
MENTION = re.compile(r"(?<!\bnot )\(([A-Ja-j])\)|^[ \t]*([A-J])[.):]", re.M)


def choice(response: str, references: Sequence[str], choices: Choices = ()) -> float:
    """1 where the label that the response states is that of a reference.

    Args:
        response: what a model said.
        references: labels.
        choices: label and text of each choice, where they are known.
    """
    found = stated_label(response) or label_of_text(response, choices)
    return float(found is not None and any(found == one.strip(" ().") for one in references))


def stated_label(text: str) -> str | None:
    """The capital label that a text states as its answer, or None.

    Where nothing is stated, a label that opens the text counts, then the only one mentioned.
    """
    text = _without_markup(text)
    stated = [_label(match) for match in STATED.finditer(text)]
    if stated:
        return stated[-1]
    mentioned = {_label(match) for match in MENTION.finditer(text)}
    leading = LEADING.match(text)
    if leading and not _enumerates(text):
        return _label(leading)
    return mentioned.pop() if len(mentioned) == 1 else None


def label_of_text(text: str, choices: Choices) -> str | None:
    """The label of the one choice whose text is given as the answer, or None.

    What is given is in the last box, else after the last "answer is", where a reason may follow
    it; else it is the whole text. Case, white space and outer punctuation do not count.
    """
    texts = [(label, _folded(said)) for label, said in choices if _folded(said)]
    stated = boxed_text(text) or cued_text(text)
    if stated is None:
        found = [label for label, said in texts if said == _folded(text)]
    else:
        begun = [
            (len(said), label)
            for label, said in texts
            if re.match(re.escape(said) + TEXT_END, _folded(stated))
        ]
        longest = max(begun, default=(0, ""))[0]
        found = [label for length, label in begun if length == longest]
    return found[0] if len(found) == 1 else None


def _folded(text: str) -> str:
    return " ".join(text.replace("\ufeff", "").casefold().split()).strip(MARKS)


def _without_markup(text: str) -> str:
    text = BOX.sub("\nanswer: ", WRAPPERS.sub("", text))
    return MARKUP.sub("", ENCLOSED.sub(r"(\1)", text))


def _enumerates(text: str) -> bool:
    """Whether lines of the text begin with several labels: the choices, said again."""
    return len({match[1] for match in re.finditer(r"^[ \t(]*([A-J])[.):]", text, re.M)}) > 1


def _label(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group).upper()
