"""How long to wait before trying again."""


def backoff_ms(backoffs_ms: tuple[int, ...], failures: int) -> int:
    """The wait after the n-th failure, counted from 1; the last one repeats."""
    return backoffs_ms[min(failures, len(backoffs_ms)) - 1]
