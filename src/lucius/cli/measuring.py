"""What the parts of `lucius bench` have in common."""


class NotMeasured(Exception):
    """Something is not installed, or would not start. The text says what."""
