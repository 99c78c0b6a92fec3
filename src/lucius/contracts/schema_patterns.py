"""How much a regular expression of a schema repeats.

In: a pattern. Out: how many parts it has once every counted repetition is written out, which is what it takes
in memory, and the most that each character of a text is compared with; or what in it cannot be matched in one
pass over a text.
"""

import re
from typing import Final

WEIGHT_MAX: Final = 1_000_000
# A class of Unicode is hundreds of ranges of bytes.
UNICODE_CLASS_WEIGHT: Final = 40

_TOKEN: Final = re.compile(r"\\[pP]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?[^):]*:?|.", re.DOTALL)
_COUNTED: Final = re.compile(r"\{(\d{1,6})(?:,(\d{0,6}))?\}")
_BACKTRACKS: Final = re.compile(r"\(\?(?:=|!|<=|<!|>)|\\[1-9]|\\k<")


def pattern_weight(pattern: str) -> int:
    """At most `WEIGHT_MAX`, however deep repetitions stand in each other."""
    groups = [
        [0, 0]
    ]  # of each open group: its parts, and those of the last item, which a repetition multiplies
    at = 0
    while at < len(pattern):
        if (counted := _COUNTED.match(pattern, at)) is not None:
            times = int(counted[2] or counted[1])
            whole, last = groups[-1]
            more = min(last * max(times, 1), WEIGHT_MAX)
            groups[-1] = [min(whole - last + more, WEIGHT_MAX), more]
            at = counted.end()
            continue
        token = _TOKEN.match(pattern, at)
        text = pattern[at] if token is None else token[0]
        at += len(text)
        if text.startswith("("):
            groups.append([1, 0])
        elif text == ")" and len(groups) > 1:
            whole, _ = groups.pop()
            groups[-1] = [min(groups[-1][0] + whole, WEIGHT_MAX), whole]
        elif text not in "*+?|^$":
            weight = UNICODE_CLASS_WEIGHT if "\\p" in text or "\\P" in text else 1
            groups[-1] = [min(groups[-1][0] + weight, WEIGHT_MAX), weight]
    return sum(whole for whole, _ in groups)


def goes_back(pattern: str) -> bool:
    """Whether it looks around or refers to what it matched: such a pattern cannot be matched in one pass."""
    return _BACKTRACKS.search(pattern) is not None
