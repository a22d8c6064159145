"""Read the label of a choice, A to J or further, that a text states as its answer.

A statement counts only if it names one label: "A or C" states none that could be right, unless the
reference has several labels, too.
"""

import re
from functools import cache, lru_cache

from hierrouter.questions import final
from hierrouter.questions.final import fold
from hierrouter_cache.keys import Choices

LAST_USUAL_LABEL = "J"  # of a question whose choices are not known
# A reference that is a label, perhaps in brackets, or several of them.
LABEL_REFERENCE_PATTERN = re.compile(
    r"[\s$]*(?:\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{)?\s*"
    r"(?:\(([A-J])\)|\[([A-J])\]|([A-J])[.)]?)\s*\}?[\s$.]*"
)
LABELS_REFERENCE_PATTERN = re.compile(
    r"\s*\(?[A-J]\)?(?:\s*(?:,|;|/|&|,?\s*\band\b)\s*\(?[A-J]\)?)+\s*"
)
SINGLE_LABEL_PATTERN = re.compile(r"(?<![A-Za-z])[A-J](?![A-Za-z])")

LATEX_FONT_PATTERN = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|rm|bf)\b\s*")
MARKUP_PATTERN = re.compile(r"[*_`$]+")
# Words that follow a label and do not make it a part of a name, as "major" does in "C major".
AFTER_LABEL_WORDS_REGEX = (
    r"(?:because|since|as|is|are|was|which|where|when|that|this|due|for|with|and|or|but|from|in|on"
    r"|by|based|given|according|if|so|option|choice|would|at|nor|not|here|also|the|rather|will|has)"
)
DENIED_LABEL_PATTERN = re.compile(  # "not B but C"
    r"\bnot\s+(?:(?:option|choice|answer)\s+)?\(?[A-Z]\)?\s*,?\s*but\s+(?:rather\s+)?"
)
# "None of A, B, C, or D is right", "neither A nor B"
NONE_OF_PATTERN = re.compile(r"\b(?:none\s+of|neither)\b[^.;\n]*\(?\b[A-Z]\b\)?[^.;\n]*", re.I)
CHOICE_CUE_REGEX = (
    r"(?:\b(?:answers?|options?|choices?)\b[^\n.:=]{0,40}?\b(?:is|are)\b"
    r"|\b(?:answers?|option|choice)\b\s*[:=-]"
    r"|\b(?:therefore|thus|hence|so)\b,?(?:\s+it\s+is\b|\s+it's\b)?"
    r"|\b(?:it\s+is|it's|(?:must|would|should)\s+be|choose|pick|select|go\s+with)\b)"
    r"\s*(?::\s*)?(?:(?:the|both|options?|choices?|letters?|answers?|probably|likely|clearly)\s+){0,3}"
)
VERDICT_REGEX = (
    r"\s+(?:is|are)\s+(?:both\s+|the\s+|most\s+|only\s+){0,2}"
    r"(?:correct|right|best|answer|true)\b"
)
JOINT_REGEX = r"(?:\s*(?:[,;/&+]|,?\s*\b(?:and|or|nor)\b)\s*(?:also\s+|options?\s+)?)"
REJECTION_REGEX = r"(?:is|are|was|were)\s+(?:not|wrong|incorrect|false)"
# A choice that is stated by its text may be followed by a reason.
CHOICE_TEXT_END_REGEX = r"(?=$|[,;:]\s|\s+(?:because|since|as)\b|\s*\()"
MAX_LABEL_LINES = 26  # with nothing but a label, one under the other
MAX_JOINED_CHARACTERS = 20  # looked at before a label
OUTER_MARKS = " .,;:!?\"'*_`$\ufeff"


class LabelPatterns:
    """The patterns that find labels from A up to a last one.

    A letter is a label if it is in brackets. A capital that is no English word is a label unless it
    begins a name ("C-reactive", "D.C.", "C++", "C major"). "A", "I" and small letters are labels
    only if something separates them from the words that follow.

    Attributes:
        marked: a label within marks, such as **B**.
        stated: "the answer is B", "B is correct", or a line with nothing but a label.
        leading: a label at the beginning of a text that neither rejects it nor lists others.
        field: a label at the beginning of an answer field; "A" may begin a sentence there.
        mentioned: a label in brackets or at the beginning of a line.
        listed: a label at the beginning of a line, as in a list of choices.
        joined: a further label directly after one, "A, C".
        bare: lines with nothing but a label.
    """

    def __init__(self, last: str) -> None:
        """Compile the patterns.

        Args:
            last: the last label, a capital.
        """
        any_case = f"A-{last}a-{last.lower()}"
        capital = f"A-{last}"
        no_words = "".join(
            letter for letter in map(chr, range(ord("B"), ord(last) + 1)) if letter != "I"
        )
        end = r"(?=\s*(?:[,;:!?)]|\.(?!\w)|$))"
        reason = rf"(?=\s+(?:because|since|is)\b|\s+(?:and|or)\s+\(?[{no_words}]\b)"
        no_name = rf"(?![\w'’+#-]|\.\w|\s+(?!{AFTER_LABEL_WORDS_REGEX}\b)[a-z])"
        label = (
            rf"(?:\(([{any_case}])\)|([{no_words}]){no_name}"
            rf"|(?<!\w)([{any_case}]){end}|(?<!\w)([AI]){reason})"
        )
        self.marked = re.compile(
            rf"(?<!\w)[*_`\"'“‘\[{{($]{{1,6}}([{any_case}])[.:]?[*_`\"'”’\]}})$]{{1,6}}(?!\w)"
        )
        self.stated = re.compile(
            rf"(?i:{CHOICE_CUE_REGEX}){label}"
            rf"|(?:\(([{any_case}])\)|(?<![\w'’-])([{capital}]))(?i:{VERDICT_REGEX})"
            rf"|^[^\w\n]*(?:(?i:option|choice|letter|answer)[ ])?([{any_case}])[^\w\n]*$",
            re.M,
        )
        self.leading = re.compile(
            rf"\s*(?:\(([{any_case}])\)"
            rf"|([{any_case}])(?=\s*(?:[),;:!?\n&/]|\.(?!\w))|\s+(?:-|and|or|because|since)\s))"
            rf"(?!\s*{REJECTION_REGEX})"
        )
        self.field = re.compile(
            rf"\s*[\[(]?\s*[\"']?([{any_case}])[\"']?(?:\s*[).:,\]]|\s*$|\s+[-–]|\s+(?:and|or)\b)"
        )
        self.mentioned = re.compile(
            rf"(?<!\bnot )\(([{any_case}])\)|^[ \t]*([{capital}])[.):]", re.M
        )
        self.listed = re.compile(rf"^[ \t(]*([{capital}])[.):]", re.M)
        self.joined = re.compile(
            rf"[\"')\]]?{JOINT_REGEX}[\"'(\[]?([{capital}])[\"')\]]?"
            rf"(?=\s*(?:$|[.,;:!?)\]/&\n]|and\b|or\b|nor\b|(?:are|is)\s+(?:both\s+|the\s+)?(?:correct|right|true)))"
        )
        self.before = re.compile(rf"\(?([{capital}])\)?{JOINT_REGEX}$")
        self.bare_line = re.compile(rf"[^\w\n]*([{any_case}])[^\w\n]*")


@cache
def patterns_for(last: str) -> LabelPatterns:
    """The patterns for labels from A to `last`, compiled once."""
    return LabelPatterns(last)


def stated_label(text: str, choices: Choices = ()) -> str | None:
    """The only label that a text states as its answer; None if there is none, or more than one."""
    labels = stated_labels(text, choices)
    return next(iter(labels)) if len(labels) == 1 else None


def stated_labels(text: str, choices: Choices = ()) -> frozenset[str]:
    """The labels that a text states as its answer, as capitals; empty if there is none.

    In an answer field, they are at the beginning. Elsewhere the last statement counts, such as "the
    answer is B" or "B is correct". Without a statement it is what begins the text, else the only
    label that the text mentions.

    Args:
        text: a readable text, see `hierrouter.questions.final.readable_text`.
        choices: label and text of each choice, if they are known.
    """
    return _stated_labels(text, _last_label(choices))


@lru_cache(final.CACHED_TEXTS)
def _stated_labels(text: str, last_label: str) -> frozenset[str]:
    patterns = patterns_for(last_label)
    declared = final.declared_text(text)
    text = _plain(text if declared is None else declared, patterns)
    if declared is not None:
        field_label = patterns.field.match(text)
        if field_label:
            return _with_joined(text, field_label, patterns)
    text = _without_denials(text)
    statement = None
    for match in patterns.stated.finditer(text):
        statement = match
    if statement:
        return _with_joined(text, statement, patterns) | _labels_before(text, statement, patterns)
    leading_label = patterns.leading.match(text)
    if leading_label and not _lists_choices(text, patterns):
        return _with_joined(text, leading_label, patterns)
    mentioned = {_label(match) for match in patterns.mentioned.finditer(text)}
    return frozenset(mentioned) if len(mentioned) == 1 else frozenset()


def labels_of_field(text: str) -> frozenset[str]:
    """The labels at the beginning of the text of an answer; empty if it begins otherwise."""
    patterns = patterns_for(LAST_USUAL_LABEL)
    text = _plain(text, patterns)
    match = patterns.field.match(text)
    return _with_joined(text, match, patterns) if match else frozenset()


def _without_denials(text: str) -> str:
    """The text without the labels that it denies."""
    if "but" in text:
        text = DENIED_LABEL_PATTERN.sub("", text)
    lowered = text.lower()
    return NONE_OF_PATTERN.sub(" ", text) if "none" in lowered or "neither" in lowered else text


def _last_label(choices: Choices) -> str:
    labels = [label for label, _ in choices if len(label) == 1 and "A" <= label <= "Z"]
    return max([*labels, LAST_USUAL_LABEL])


def _plain(text: str, patterns: LabelPatterns) -> str:
    """The text without LaTeX fonts and Markdown; boxes become a line that states the answer."""
    statement = final.boxed_statement(text)
    if statement is not None:
        text = f"{text}\nanswer: {LATEX_FONT_PATTERN.sub('', statement)}"
    text = LATEX_FONT_PATTERN.sub("", text)
    return MARKUP_PATTERN.sub("", patterns.marked.sub(r"(\1)", text))


def _with_joined(text: str, match: re.Match[str], patterns: LabelPatterns) -> frozenset[str]:
    """The label of a match and those that follow it directly: "A, C", or lines of labels."""
    labels = {_label(match)}
    end = match.end()
    joined = patterns.joined.match(text, end)
    while joined:
        labels.add(joined[1])
        end = joined.end()
        joined = patterns.joined.match(text, end)
    if len(labels) > 1 and re.match(rf"\s*{REJECTION_REGEX}", text[end : end + 40]):
        return frozenset({_label(match)})
    return frozenset(labels)


def _labels_before(text: str, match: re.Match[str], patterns: LabelPatterns) -> frozenset[str]:
    """The labels directly before a match: of "A and C are correct" A, of lines of labels all."""
    labels = set()
    start = match.start()
    before = patterns.before.search(text[max(0, start - MAX_JOINED_CHARACTERS) : start])
    while before:
        labels.add(before[1])
        start -= len(before[0])
        before = patterns.before.search(text[max(0, start - MAX_JOINED_CHARACTERS) : start])
    if patterns.bare_line.fullmatch(match[0].strip("\n")):
        for line in reversed(text[:start].rstrip().split("\n")[-MAX_LABEL_LINES:]):
            bare = patterns.bare_line.fullmatch(line)
            if bare is None:
                break
            labels.add(bare[1].upper())
    return frozenset(labels)


def label_of_text(text: str, choices: Choices) -> str | None:
    """The label of the choice whose text is given as the answer; None if it is not exactly one.

    The answer is in the answer field or the last box, else after the last "answer is", where a
    reason may follow it; else it is the complete text. Case, white space and outer punctuation do
    not count.
    """
    folded_choices = [(label, _folded(choice_text)) for label, choice_text in choices]
    folded_choices = [(label, folded) for label, folded in folded_choices if folded]
    stated = final.stated_text(text)
    if stated is None:
        labels = [label for label, folded in folded_choices if folded == _folded(text)]
    else:
        answer = _folded(stated)
        matches = [
            (len(folded), label)
            for label, folded in folded_choices
            if re.match(re.escape(folded) + CHOICE_TEXT_END_REGEX, answer)
        ]
        # One choice may begin like another: "red", "red, then blue". The longest one is meant.
        longest = max((length for length, _ in matches), default=0)
        labels = [label for length, label in matches if length == longest]
    return labels[0] if len(labels) == 1 else None


def label_of_reference(reference: str) -> str | None:
    r"""The label that a reference is, `B`, `(B)` or `\text{(B)}`; None if it is no label."""
    match = LABEL_REFERENCE_PATTERN.fullmatch(reference)
    return _label(match) if match else None


def labels_of_reference(reference: str) -> frozenset[str]:
    """The labels of a reference that has several, "A, C"; empty if it is something else."""
    if not LABELS_REFERENCE_PATTERN.fullmatch(reference):
        return frozenset()
    return frozenset(SINGLE_LABEL_PATTERN.findall(reference))


def _folded(text: str) -> str:
    folded = LATEX_FONT_PATTERN.sub("", fold(text)).strip("{}")
    return " ".join(folded.casefold().split()).strip(OUTER_MARKS)


def _lists_choices(text: str, patterns: LabelPatterns) -> bool:
    """Whether lines of the text begin with different labels: it repeats the choices."""
    return len({match[1] for match in patterns.listed.finditer(text)}) > 1


def _label(match: re.Match[str]) -> str:
    """The label of a match, as a capital: its only group that is not empty."""
    return next(group for group in match.groups() if group).upper()
