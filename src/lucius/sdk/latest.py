"""The latest attempt of each step that came to this process.

In: directives as they come. Out: whether one was overtaken: attempts of a step are numbered in the order in
which they begin, and each begins after the one before was given up. So nobody waits for an older one.
"""

from collections import OrderedDict

from lucius.sdk.directive import Directive

STEPS_MAX = 10_000


class Latest:
    def __init__(self, *, steps_max: int = STEPS_MAX) -> None:
        self._steps_max = steps_max
        self._attempts: OrderedDict[tuple[str, str], int] = OrderedDict()

    def note(self, directive: Directive) -> int:
        """The latest attempt that was known before; 0 if none was."""
        step, attempt_no = (directive.job_id, directive.step_id), directive.attempt_no
        known = self._attempts.get(step, 0)
        if attempt_no > known:
            self._attempts[step] = attempt_no
            self._attempts.move_to_end(step)
            if len(self._attempts) > self._steps_max:
                self._attempts.popitem(last=False)
        return known
